/* SPDX-License-Identifier: Apache-2.0
 * A job spec from a file. */
#include "workers/trainer/spec_file.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/spec/spec_json.h"

int spec_file_read(const char *path, struct job_spec *ret, struct err *err)
{
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	size_t bytes = 0;
	int rc = file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, JSON_BYTES_MAX, &doc, err);
	if (rc == 0)
		rc = spec_json_read(json_doc_root(doc), ret, &metadata, err);
	return rc;
}
