/* SPDX-License-Identifier: Apache-2.0
 * Loading a checkpoint: the manifest first, then what this rank keeps of every tensor, by name,
 * type and shape, then the state. Part of checkpoint.h. */
#include "workers/trainer/checkpoint.h"

#include "core/json/reader.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/hf_config.h"
#include "workers/trainer/safetensors.h"
#include "workers/trainer/shards.h"
#include "workers/trainer/span.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

enum { STATE_BYTES_MAX = 64 * 1024 };

static int copy_exactly(
	const struct safetensors_tensor *s, const struct engine_tensor *t, struct err *err)
{
	const int64_t total = hf_weights_elements(t);
	const struct span kept = span_of(t), whole = span_stretch(total, 0, total);
	enum half_type type;
	if (strcmp(s->dtype, t->dtype) != 0 || !half_type_of(s->dtype, &type) || s->rank != t->rank ||
		memcmp(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0)
		return err_set(err, ERR_INVALID_DATA, t->name,
			"optimizer.safetensors: the type or shape of %s is not the model's", t->name);
	span_copy(&kept, type, t->data, &whole, type, s->data);
	return 0;
}

static int check_known(const struct hf_weights *w, const struct safetensors *file, struct err *err)
{
	for (int k = 0; k < safetensors_count(file); k++) {
		const char *name = safetensors_at(file, k)->name;
		bool known = hf_weights_elsewhere(w, name);
		for (int i = 0; i < w->count && !known; i++)
			known = w->list[i].kind != ENGINE_PARAMETER && strcmp(w->list[i].name, name) == 0;
		if (!known)
			return err_set(err, ERR_INVALID_DATA, name,
				"optimizer.safetensors has the tensor %s, which the model does not have", name);
	}
	return 0;
}

/* Moments and averages, exactly as they were. */
static int restore_optimizer(const struct hf_weights *w, const char *dir, struct err *err)
{
	static const char name[] = "optimizer.safetensors";
	char path[FILE_PATH_MAX];
	cleanup(safetensors_closep) struct safetensors *file = NULL;
	int rc = file_join(path, dir, name, err), wanted = 0;
	if (rc == 0)
		rc = safetensors_open(path, &file, err);
	for (int i = 0; i < w->count && rc == 0; i++) {
		const struct engine_tensor *t = &w->list[i];
		if (t->kind == ENGINE_PARAMETER)
			continue;
		wanted++;
		const struct safetensors_tensor *s = safetensors_find(file, t->name);
		if (s == NULL)
			return err_set(err, ERR_INVALID_DATA, t->name, "%s lacks the tensor %s", name, t->name);
		rc = copy_exactly(s, t, err);
	}
	return rc < 0 || safetensors_count(file) == wanted ? rc : check_known(w, file, err);
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

/* What is loaded must have been vouched for: the weights in one file, or an index and no such file.
 * Shards that the index names are checked with it. */
static int check_listed(
	const struct manifest *m, const char *dir, const char *stem, struct err *err)
{
	static const char *const needed[] = { "state.json", "optimizer.safetensors" };
	const bool shards = shards_count(m) > 0;
	char one[64], index[64], path[FILE_PATH_MAX];
	snprintf(one, sizeof(one), "%s.safetensors", stem);
	snprintf(index, sizeof(index), "%s.safetensors.index.json", stem);
	for (size_t i = 0; i < (shards ? 1 : ARRAY_LEN(needed)); i++)
		if (manifest_find(m, needed[i]) == NULL)
			return err_set(
				err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", needed[i]);
	int rc = file_join(path, dir, one, err);
	if (rc < 0 || shards || manifest_find(m, one) != NULL)
		return rc;
	if (manifest_find(m, index) == NULL || file_exists(path))
		return err_set(err, ERR_INVALID_DATA, NULL, "the checkpoint's manifest lacks %s", one);
	return 0;
}

/* The ranks share the work of hashing all files; each of them hears what is wrong with any. */
static int verify(
	const char *dir, struct mesh *mesh, const char *stem, struct manifest *m, struct err *err)
{
	struct comm *others = mesh != NULL ? mesh->save : NULL;
	const int rank = others != NULL ? others->rank : 0, size = others != NULL ? others->size : 1;
	int rc = manifest_read(dir, m, err);
	if (rc == 0)
		rc = check_listed(m, dir, stem, err);
	for (int i = rank; rc == 0 && i < m->count; i += size)
		rc = manifest_check_file(dir, &m->files[i], err);
	return agree_on(others, rc, err);
}

/* Weights, moments and averages, from the pieces of those ranks that saved. */
static int restore_shards(const struct hf_weights *w, const char *dir, const struct manifest *m,
	bool lora, struct err *err)
{
	cleanup(shards_closep) struct shards *s = NULL;
	int rc = shards_open(dir, m, &s, err);
	for (int i = 0; i < w->count && rc == 0; i++)
		if (shards_include(&w->list[i], lora))
			rc = shards_load(s, &w->list[i], err);
	return rc < 0 ? rc : shards_check_used(s, w, err);
}

static int restore_files(
	const struct hf_weights *w, const struct job_spec *spec, const char *dir, struct err *err)
{
	int rc = hf_weights_read(w, dir, hf_model_stem(spec), &spec->model, spec->lora.rank > 0, err);
	return rc < 0 ? rc : restore_optimizer(w, dir, err);
}

/* Said by the spec's field, where it would otherwise be some tensor that does not fit. */
static int check_config(
	const struct job_spec *spec, const char *dir, const struct manifest *m, struct err *err)
{
	struct spec_model given = spec->model, saved;
	if (manifest_find(m, "config.json") == NULL)
		return 0;
	int rc = hf_config_read(dir, &saved, err);
	return rc < 0 ? rc : hf_config_agree(&given, &saved, err);
}

/* What this rank keeps, and the state. */
static int restore(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir, const struct manifest *m, struct engine_state *state,
	struct summary_metrics *metrics, struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	int rc = check_config(spec, dir, m, err);
	if (rc == 0)
		rc = hf_weights_of_rank(e, mesh, &w, err);
	if (rc == 0)
		rc = shards_count(m) > 0 ? restore_shards(&w, dir, m, spec->lora.rank > 0, err)
								 : restore_files(&w, spec, dir, err);
	if (rc == 0)
		rc = read_state(dir, state, metrics, err);
	if (rc == 0 && state->step != m->step)
		rc =
			err_set(err, ERR_INVALID_DATA, NULL, "state.json is of step %lld, the manifest of %lld",
				(long long)state->step, (long long)m->step);
	return rc;
}

int checkpoint_restore(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir, struct summary_metrics *ret_metrics, struct err *err)
{
	struct manifest manifest;
	struct engine_state state = { 0 };
	struct summary_metrics metrics = { 0 };
	int rc = verify(dir, mesh, hf_model_stem(spec), &manifest, err);
	if (rc < 0)
		return rc;
	rc = restore(e, mesh, spec, dir, &manifest, &state, &metrics, err);
	rc = agree_on(mesh != NULL ? mesh->save : NULL, rc, err);
	if (rc == 0)
		rc = engine_state_set(e, &state, err);
	if (rc == 0)
		rc = engine_parameters_changed(e, err); /* rounds as the state's step does */
	if (rc == 0)
		*ret_metrics = metrics;
	return rc;
}
