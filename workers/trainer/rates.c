/* SPDX-License-Identifier: Apache-2.0
 * Reading measured rates. */
#include "workers/trainer/rates.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/spec/spec_json.h"

int rates_read_peak(
	const char *path, enum spec_precision precision, double *ret_flops, struct err *err)
{
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	size_t bytes = 0;
	int rc = file_read(path, RATES_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, RATES_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *peaks = json_get(json_doc_root(doc), "peak_flops");
	double flops = json_f64_or(json_get(peaks, spec_precision_word(precision)), 0);
	if (!(flops > 0))
		return err_set(err, ERR_INVALID_DATA, "peak_flops", "%s has no peak_flops of %s", path,
			spec_precision_word(precision));
	*ret_flops = flops;
	return 0;
}
