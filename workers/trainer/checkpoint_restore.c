/* SPDX-License-Identifier: Apache-2.0
 * Loading a checkpoint: the manifest first, then every tensor by name, type and shape, then the
 * state. Part of checkpoint.h. */
#include "core/base/file.h"
#include "workers/trainer/checkpoint.h"

#include "core/json/reader.h"
#include "workers/trainer/manifest.h"
#include "workers/trainer/safetensors.h"

#include <float.h>
#include <string.h>

enum { STATE_BYTES_MAX = 64 * 1024 };

static int restore_tensors(struct engine *e, enum engine_tensor_kind kind, const char *dir,
	const char *name, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(safetensors_closep) struct safetensors *file = NULL;
	int rc = file_join(path, dir, name, err), wanted = 0;
	if (rc == 0)
		rc = safetensors_open(path, &file, err);
	if (rc < 0)
		return rc;
	for (int i = 0; i < engine_tensor_count(e); i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		if (t.kind != kind)
			continue;
		wanted++;
		const struct safetensors_tensor *s = safetensors_find(file, t.name);
		if (s == NULL)
			return err_set(err, ERR_INVALID_DATA, t.name, "%s lacks the tensor %s", name, t.name);
		if (strcmp(s->dtype, t.dtype) != 0 || s->rank != t.rank || s->bytes != t.bytes ||
			memcmp(s->shape, t.shape, sizeof(t.shape[0]) * (size_t)t.rank) != 0)
			return err_set(err, ERR_INVALID_DATA, t.name,
				"%s: the type or shape of %s is not the model's", name, t.name);
		memcpy(t.data, s->data, (size_t)t.bytes);
	}
	if (safetensors_count(file) != wanted)
		return err_set(err, ERR_INVALID_DATA, NULL, "%s has %d tensors, the model needs %d", name,
			safetensors_count(file), wanted);
	return 0;
}

static int read_metrics(const struct json_val *v, struct checkpoint_metrics *m, struct err *err)
{
	struct json_obj o;
	json_obj_open(&o, v, "$.metrics", err);
	m->has_loss = json_obj_has(&o, "loss");
	json_obj_f64(&o, "loss", -DBL_MAX, DBL_MAX, &m->loss);
	json_obj_f64(&o, "validation_loss", -DBL_MAX, DBL_MAX, &m->validation_loss);
	json_obj_f64(&o, "bits_per_byte", -DBL_MAX, DBL_MAX, &m->bits_per_byte);
	json_obj_f64(&o, "order0_bits_per_byte", -DBL_MAX, DBL_MAX, &m->order0_bits_per_byte);
	json_obj_f64(&o, "accuracy", -DBL_MAX, DBL_MAX, &m->accuracy);
	return json_obj_close(&o);
}

static int read_state(
	const char *dir, struct engine_state *s, struct checkpoint_metrics *m, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	size_t bytes = 0;
	int rc = file_join(path, dir, "state.json", err);
	if (rc == 0)
		rc = file_read(path, STATE_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, STATE_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc;
	struct json_obj o;
	const struct json_val *metrics = NULL;
	int64_t format = 0;
	static const char *const needed[] = { "format", "step", "position", "tokens", "seed",
		"metrics" };
	json_obj_open(&o, json_doc_root(doc), "$", err);
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		json_obj_need(&o, needed[i]);
	json_obj_i64(&o, "format", 1, 1, &format);
	json_obj_i64(&o, "step", 0, INT64_MAX, &s->step);
	json_obj_i64(&o, "position", 0, INT64_MAX, &s->position);
	json_obj_i64(&o, "tokens", 0, INT64_MAX, &s->tokens);
	json_obj_i64(&o, "seed", INT64_MIN, INT64_MAX, &s->seed);
	json_obj_i64(&o, "evaluated_step", 0, INT64_MAX, &m->evaluated_step);
	json_obj_object(&o, "metrics", &metrics);
	rc = json_obj_close(&o);
	return rc < 0 ? rc : read_metrics(metrics, m, err);
}

/* What is loaded must have been vouched for. */
static int check_listed(const struct manifest *m, const char *name, struct err *err)
{
	for (int i = 0; i < m->count; i++)
		if (strcmp(m->files[i].name, name) == 0)
			return 0;
	return err_set(err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", name);
}

int checkpoint_restore(
	struct engine *e, const char *dir, struct checkpoint_metrics *ret_metrics, struct err *err)
{
	struct manifest manifest;
	struct engine_state state = { 0 };
	struct checkpoint_metrics metrics = { 0 };
	static const char *const needed[] = { "model.safetensors", "optimizer.safetensors",
		"state.json" };
	int rc = manifest_verify(dir, &manifest, err);
	for (size_t i = 0; rc == 0 && i < ARRAY_LEN(needed); i++)
		rc = check_listed(&manifest, needed[i], err);
	if (rc == 0)
		rc = restore_tensors(e, ENGINE_PARAMETER, dir, "model.safetensors", err);
	if (rc == 0)
		rc = restore_tensors(e, ENGINE_OPTIMIZER, dir, "optimizer.safetensors", err);
	if (rc == 0)
		rc = read_state(dir, &state, &metrics, err);
	if (rc < 0)
		return rc;
	if (state.step != manifest.step)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"state.json is of step %lld, the manifest of %lld", (long long)state.step,
			(long long)manifest.step);
	rc = engine_state_set(e, &state, err);
	if (rc == 0)
		*ret_metrics = metrics;
	return rc;
}
