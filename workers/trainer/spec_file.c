/* SPDX-License-Identifier: Apache-2.0
 * A job spec from a file. */
#include "workers/trainer/spec_file.h"

#include "core/json/reader.h"
#include "core/spec/spec_json.h"
#include "workers/plan/scale_type.h"
#include "workers/trainer/hf_config.h"

#include <stdio.h>
#include <string.h>

enum { BYTES_VOCABULARY = 256 };

/* What a spec takes from the files that it starts from: the model, and their tokenizer unless it
 * names one. A vocabulary of bytes needs no file. */
static int read_base(const char *init_dir, struct spec_base *ret, struct err *err)
{
	char path[FILE_PATH_MAX];
	memset(ret, 0, sizeof(*ret));
	int rc = hf_config_read(init_dir, &ret->model, err);
	if (rc == 0)
		rc = file_join(path, init_dir, "tokenizer.json", err);
	if (rc < 0)
		return rc;
	if (ret->model.vocab_size == BYTES_VOCABULARY) {
		ret->tokenizer = SPEC_TOKENIZER_BYTES;
	} else if (file_exists(path)) {
		ret->tokenizer = SPEC_TOKENIZER_FILE;
		snprintf(ret->tokenizer_file, sizeof(ret->tokenizer_file), "file_init");
	}
	return 0;
}

/* All ranks come to the same: the search reads nothing but the spec. */
static int settle(const struct json_val *root, struct job_spec *spec,
	char why[static SPEC_FILE_WHY_MAX], struct err *err)
{
	const struct spec_open open = spec_json_open(root, spec);
	const struct scale_type type = { .name = spec->instance_type };
	struct scale_cluster cluster;
	struct scale_chosen chosen;
	why[0] = '\0';
	if (!open.mesh)
		return 0;
	scale_type_cluster(&type, (int)spec->device_count, &cluster);
	int rc = scale_choose(spec, &open, &cluster, &chosen, err);
	if (rc < 0 && rc != ERR_PLAN_TOO_LARGE)
		return rc;
	const struct spec_parallel *p = &chosen.parallel;
	snprintf(why, SPEC_FILE_WHY_MAX,
		"data %lld x tensor %lld x pipeline %lld (interleave %lld), ZeRO stage %lld: %s",
		(long long)p->data, (long long)p->tensor, (long long)p->pipeline,
		(long long)(p->interleave > 1 ? p->interleave : 1), (long long)p->zero_stage,
		chosen.reason);
	return 0;
}

int spec_file_read(const char *path, const char *init_dir, struct job_spec *ret, struct err *err)
{
	char why[SPEC_FILE_WHY_MAX];
	return spec_file_read_why(path, init_dir, ret, why, err);
}

int spec_file_read_why(const char *path, const char *init_dir, struct job_spec *ret,
	char why[static SPEC_FILE_WHY_MAX], struct err *err)
{
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	struct spec_base base;
	bool from_base = false;
	size_t bytes = 0;
	int rc = file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, JSON_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *root = json_doc_root(doc);
	const char *id = spec_json_base(root);
	if (init_dir == NULL && id != NULL && json_get(json_get(root, "model"), "config") == NULL)
		return err_set(err, ERR_MISSING_FIELD, "$.model.base",
			"what %s is made of is not known here: name the folder of its files with --init, or "
			"give $.model.config",
			id);
	if (init_dir != NULL && id != NULL) {
		from_base = true;
		rc = read_base(init_dir, &base, err);
	}
	if (rc == 0)
		rc = spec_json_read_from(root, from_base ? &base : NULL, ret, &metadata, err);
	return rc < 0 ? rc : settle(root, ret, why, err);
}

int spec_file_tokenizer(const struct job_spec *spec, struct session_inputs *in,
	char room[static FILE_PATH_MAX], struct err *err)
{
	bool needed =
		spec->data.tokenizer == SPEC_TOKENIZER_GPT2 || spec->data.tokenizer == SPEC_TOKENIZER_FILE;
	if (in->tokenizer_path != NULL || !needed)
		return 0;
	int rc = in->init_dir != NULL ? file_join(room, in->init_dir, "tokenizer.json", err) : 0;
	if (rc < 0)
		return rc;
	if (in->init_dir == NULL || !file_exists(room))
		return err_set(err, ERR_MISSING_FIELD, "--tokenizer",
			"the spec's data.tokenizer needs a tokenizer.json");
	in->tokenizer_path = room;
	return 0;
}
