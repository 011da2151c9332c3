/* SPDX-License-Identifier: Apache-2.0
 * Loading a checkpoint: the manifest first, then every tensor by name, type and shape, then the
 * state. Part of checkpoint.h. */
#include "workers/trainer/checkpoint.h"

#include "core/json/reader.h"
#include "workers/trainer/safetensors.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

enum { STATE_BYTES_MAX = 64 * 1024 };

/* Moments and averages, exactly as they were. */
static int restore_optimizer(const struct hf_weights *w, const char *dir, struct err *err)
{
	static const char name[] = "optimizer.safetensors";
	char path[FILE_PATH_MAX];
	cleanup(safetensors_closep) struct safetensors *file = NULL;
	int rc = file_join(path, dir, name, err), wanted = 0;
	if (rc == 0)
		rc = safetensors_open(path, &file, err);
	if (rc < 0)
		return rc;
	for (int i = 0; i < w->count; i++) {
		const struct engine_tensor *t = &w->list[i];
		if (t->kind == ENGINE_PARAMETER)
			continue;
		wanted++;
		const struct safetensors_tensor *s = safetensors_find(file, t->name);
		if (s == NULL)
			return err_set(err, ERR_INVALID_DATA, t->name, "%s lacks the tensor %s", name, t->name);
		if (strcmp(s->dtype, t->dtype) != 0 || s->rank != t->rank || s->bytes != t->bytes ||
			memcmp(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0)
			return err_set(err, ERR_INVALID_DATA, t->name,
				"%s: the type or shape of %s is not the model's", name, t->name);
		memcpy(t->data, s->data, (size_t)t->bytes);
	}
	if (safetensors_count(file) != wanted)
		return err_set(err, ERR_INVALID_DATA, NULL, "%s has %d tensors, the model needs %d", name,
			safetensors_count(file), wanted);
	return 0;
}

static int read_state(
	const char *dir, struct engine_state *s, struct summary_metrics *m, struct err *err)
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
		"loss_scale", "scale_steps", "metrics" };
	json_obj_open(&o, json_doc_root(doc), "$", err);
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		json_obj_need(&o, needed[i]);
	json_obj_i64(&o, "format", 2, 2, &format);
	json_obj_i64(&o, "step", 0, INT64_MAX, &s->step);
	json_obj_i64(&o, "position", 0, INT64_MAX, &s->position);
	json_obj_i64(&o, "tokens", 0, INT64_MAX, &s->tokens);
	json_obj_i64(&o, "seed", INT64_MIN, INT64_MAX, &s->seed);
	json_obj_f64(&o, "loss_scale", 0, DBL_MAX, &s->loss_scale);
	json_obj_i64(&o, "scale_steps", 0, INT64_MAX, &s->scale_steps);
	json_obj_i64(&o, "evaluated_step", 0, INT64_MAX, &m->evaluated_step);
	json_obj_object(&o, "metrics", &metrics);
	rc = json_obj_close(&o);
	return rc < 0 ? rc : summary_read_metrics(metrics, m, err);
}

static bool listed(const struct manifest *m, const char *name)
{
	for (int i = 0; i < m->count; i++)
		if (strcmp(m->files[i].name, name) == 0)
			return true;
	return false;
}

/* What is loaded must have been vouched for: the weights in one file, or an index and no such file.
 * Shards that the index names are checked with it. */
static int check_listed(
	const struct manifest *m, const char *dir, const char *stem, struct err *err)
{
	static const char *const needed[] = { "optimizer.safetensors", "state.json" };
	char one[64], index[64], path[FILE_PATH_MAX];
	snprintf(one, sizeof(one), "%s.safetensors", stem);
	snprintf(index, sizeof(index), "%s.safetensors.index.json", stem);
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		if (!listed(m, needed[i]))
			return err_set(
				err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", needed[i]);
	int rc = file_join(path, dir, one, err);
	if (rc < 0 || listed(m, one))
		return rc;
	if (!listed(m, index) || file_exists(path))
		return err_set(err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", one);
	return 0;
}

int checkpoint_restore(struct engine *e, const struct job_spec *spec, const char *dir,
	struct summary_metrics *ret_metrics, struct err *err)
{
	struct manifest manifest;
	struct engine_state state = { 0 };
	struct summary_metrics metrics = { 0 };
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	const char *stem = hf_model_stem(spec);
	int rc = manifest_verify(dir, &manifest, err);
	if (rc == 0)
		rc = check_listed(&manifest, dir, stem, err);
	if (rc == 0)
		rc = hf_weights_of(e, &w, err);
	if (rc == 0)
		rc = hf_weights_read(&w, dir, stem, &spec->model, spec->lora.rank > 0, err);
	if (rc == 0)
		rc = restore_optimizer(&w, dir, err);
	if (rc == 0)
		rc = read_state(dir, &state, &metrics, err);
	if (rc < 0)
		return rc;
	if (state.step != manifest.step)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"state.json is of step %lld, the manifest of %lld", (long long)state.step,
			(long long)manifest.step);
	rc = engine_parameters_changed(e, err);
	if (rc == 0)
		rc = engine_state_set(e, &state, err);
	if (rc == 0)
		*ret_metrics = metrics;
	return rc;
}
