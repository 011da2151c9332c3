/* SPDX-License-Identifier: Apache-2.0
 * Reading attempt.json. Our agent wrote it, the spec inside is a customer's. */
#include "workers/trainer/attempt.h"

#include "core/base/file.h"
#include "core/crypto/digest.h"
#include "core/spec/spec_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024 };

/* tokenizer.json: one of the job's files, or one that the agent has put among them. */
static int set_tokenizer(struct attempt *a, const char *dir, const char *name, struct err *err)
{
	int rc = file_join(a->tokenizer, dir, name, err);
	if (rc == 0)
		a->inputs.tokenizer_path = a->tokenizer;
	return rc;
}

static int add_file(struct attempt *a, const char *dir, const struct json_val *v, struct err *err)
{
	struct session_inputs *in = &a->inputs;
	const char *role = json_str_or(json_get(v, "role"), "");
	const char *sha256 = json_str_or(json_get(v, "sha256"), "");
	bool validation = strcmp(role, "validation_file") == 0;
	bool tokenizer = strcmp(role, "tokenizer") == 0;
	int *count = validation ? &in->validation_count : &in->training_count;
	struct data_file *list = validation ? in->validation : in->training;
	char name[FILE_PATH_MAX];
	if ((!tokenizer && *count == SPEC_FILES_MAX) || !digest_is_hex(sha256) ||
		(!validation && !tokenizer && strcmp(role, "training_file") != 0))
		return err_set(err, ERR_INTERNAL, "$.files", "attempt.json lists a file wrongly");
	snprintf(name, sizeof(name), "files/%s", sha256);
	if (tokenizer)
		return set_tokenizer(a, dir, name, err);
	char *path = a->paths[in->training_count + in->validation_count];
	int rc = file_join(path, dir, name, err);
	if (rc < 0)
		return rc;
	list[*count].path = path;
	list[*count].label = json_str_or(json_get(v, "filename"), sha256);
	(*count)++;
	return 0;
}

/* Folders that the agent has filled, and the one where data may be kept while it is used. */
static int read_places(
	struct attempt *a, const char *dir, const struct json_val *root, struct err *err)
{
	int rc = file_join(a->scratch_dir, dir, ".", err);
	a->inputs.scratch_dir = a->scratch_dir;
	if (rc == 0)
		rc = file_join(a->rendezvous, dir, "rendezvous", err);
	if (rc == 0 && json_get(root, "resume") != NULL) {
		rc = file_join(a->resume_dir, dir, "resume", err);
		a->inputs.resume_dir = a->resume_dir;
	}
	if (rc == 0 && json_get(root, "init") != NULL) {
		rc = file_join(a->init_dir, dir, "init", err);
		a->inputs.init_dir = a->init_dir;
	}
	const char *tokenizer = json_str_or(json_get(root, "tokenizer"), NULL);
	return rc < 0 || tokenizer == NULL ? rc : set_tokenizer(a, dir, tokenizer, err);
}

static int read_all(struct attempt *a, const char *dir, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	int rc = file_join(path, dir, "attempt.json", err);
	if (rc == 0)
		rc = file_read(path, ATTEMPT_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, ATTEMPT_BYTES_MAX, &a->doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *root = json_doc_root(a->doc), *metadata = NULL;
	a->max_runtime_s = json_i64_or(json_get(root, "max_runtime_s"), 0);
	a->first_seq = json_i64_or(json_get(root, "first_seq"), 0);
	a->inputs.threads = (int)json_i64_or(json_get(root, "threads"), 0);
	a->inputs.memory_bytes = json_i64_or(json_get(root, "memory_bytes"), 0);
	a->inputs.peak_flops = json_f64_or(json_get(root, "peak_flops"), 0);
	a->host = json_str_or(json_get(root, "host"), NULL);
	a->comm_deadline_ms = json_i64_or(json_get(root, "comm_deadline_ms"), 0);
	if (a->max_runtime_s < 0 || a->comm_deadline_ms < 0 || !(a->inputs.peak_flops >= 0) ||
		a->first_seq < 1 || a->inputs.threads < 1 || a->inputs.threads > THREADS_MAX)
		return err_set(err, ERR_INTERNAL, "$", "attempt.json has a number out of range");
	if (device_parse(
			json_str_or(json_get(root, "device"), NULL), "$.device", &a->inputs.device, err) < 0)
		return err_set(err, ERR_INTERNAL, "$.device", "attempt.json names no device that there is");
	const struct json_val *files = json_get(root, "files");
	for (size_t i = 0; rc == 0 && i < json_array_len(files); i++)
		rc = add_file(a, dir, json_array_at(files, i), err);
	if (rc == 0)
		rc = read_places(a, dir, root, err);
	if (rc == 0)
		a->spec_code = spec_json_read(json_get(root, "spec"), &a->spec, &metadata, &a->spec_err);
	return rc;
}

int attempt_read(const char *dir, struct attempt **ret, struct err *err)
{
	cleanup(attempt_freep) struct attempt *a = calloc(1, sizeof(*a));
	if (a == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the attempt");
	a->first_seq = 1;
	int rc = read_all(a, dir, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(a);
	return 0;
}

void attempt_free(struct attempt *a)
{
	if (a == NULL)
		return;
	json_doc_free(a->doc);
	free(a);
}

void attempt_freep(struct attempt **a)
{
	attempt_free(*a);
	*a = NULL;
}
