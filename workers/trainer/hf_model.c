/* SPDX-License-Identifier: Apache-2.0
 * Model folders. */
#include "workers/trainer/hf_model.h"

#include "workers/trainer/agree.h"
#include "workers/trainer/gather.h"
#include "workers/trainer/hf_adapter.h"
#include "workers/trainer/hf_config.h"
#include "workers/trainer/shards.h"

#include <string.h>

enum { CONFIG_TEXT_MAX = 8 * 1024 * 1024 }; /* a name for each of 64 Ki classes, twice */

const char *hf_model_stem(const struct job_spec *spec)
{
	return spec->lora.rank > 0 ? "adapter_model" : "model";
}

int hf_model_describe(const struct hf_model *m, struct folder *f, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, CONFIG_TEXT_MAX);
	hf_config_write(m->spec, m->plan, &m->tokenizer->ids, &text);
	int rc = folder_add_text(f, "config.json", &text, err);
	if (rc == 0 && spec_is_language(m->spec)) {
		buf_reset(&text);
		hf_config_write_generation(&m->tokenizer->ids, &text);
		rc = folder_add_text(f, "generation_config.json", &text, err);
	}
	if (rc == 0 && m->spec->lora.rank > 0) {
		buf_reset(&text);
		hf_adapter_write(m->spec, &text);
		rc = folder_add_text(f, "adapter_config.json", &text, err);
	}
	return rc < 0 ? rc : hf_tokenizer_write(m->tokenizer, m->spec, f, err);
}

int64_t hf_model_batches(const struct hf_model *m, int64_t step)
{
	return step * m->plan->micro_steps * m->plan->mesh.data;
}

int hf_model_weights(const struct hf_model *m, const struct hf_weights *w, int64_t batches,
	struct gather *gather, struct folder *f, struct err *err)
{
	struct hf_weights_options o = {
		.adapters = m->spec->lora.rank > 0, .batches = batches, .gather = gather
	};
	return hf_weights_write(w, hf_model_stem(m->spec), &o, f, err);
}

/* All files of weights; or, of a rank that does not write (f NULL), its part of them. */
static int write_weights(const struct hf_model *m, const struct hf_weights *w, int64_t batches,
	struct gather *gather, struct folder *f, struct err *err)
{
	bool lora = m->spec->lora.rank > 0;
	struct hf_weights_options o = { .batches = batches, .gather = gather };
	int rc = hf_model_weights(m, w, batches, gather, f, err);
	if (rc == 0 && lora && !m->base_elsewhere)
		rc = hf_weights_write(w, "model", &o, f, err);
	o.adapters = lora;
	o.averages = true;
	if (rc == 0 && m->spec->hyper.ema_decay > 0 && batches > 0) /* the first step makes them */
		rc = hf_weights_write(w, lora ? "ema_adapter_model" : "ema", &o, f, err);
	return rc;
}

static int write_folder(const struct hf_model *m, const struct hf_weights *w, struct gather *gather,
	const char *dir, int64_t step, const struct buf *summary, struct err *err)
{
	struct folder f;
	char parent[FILE_PATH_MAX];
	const char *name = NULL;
	int rc = folder_split(dir, parent, &name, err);
	if (rc == 0)
		rc = folder_begin(&f, parent, ".writing-model", name, step, err);
	if (rc == 0)
		rc = write_weights(m, w, hf_model_batches(m, step), gather, &f, err);
	if (rc == 0)
		rc = hf_model_describe(m, &f, err);
	if (rc == 0)
		rc = folder_add_text(&f, "trainyard.json", summary, err);
	return rc < 0 ? rc : folder_publish(&f, err);
}

/* Rank 0 writes what all have. A rank that fails ends it for all: the others wait for its bytes. */
static int write_together(const struct hf_model *m, const struct hf_weights *w, const char *dir,
	int64_t step, const struct buf *summary, struct err *err)
{
	struct comm *others = m->mesh->save;
	cleanup(gather_destroyp) struct gather *gather = NULL;
	int rc = gather_create(m->mesh, w, &gather, err);
	if (rc == 0 && others->rank == 0)
		rc = write_folder(m, w, gather, dir, step, summary, err);
	else if (rc == 0)
		rc = write_weights(m, w, hf_model_batches(m, step), gather, NULL, err);
	if (rc < 0)
		comm_abort(others, "the model could not be written");
	return rc < 0 ? rc : agree_on(others, 0, err);
}

int hf_model_write(const struct hf_model *m, const char *dir, int64_t step,
	const struct buf *summary, struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	const bool pieces = shards_are_used(&m->plan->mesh);
	if (!pieces && m->mesh != NULL && m->mesh->world->rank != 0)
		return 0;
	int rc = hf_weights_of(m->engine, &w, err);
	if (rc < 0)
		return rc;
	return pieces ? write_together(m, &w, dir, step, summary, err)
				  : write_folder(m, &w, NULL, dir, step, summary, err);
}

/* ------------------------------------------------------------------------------ reading */

static int read_adapters(
	const struct hf_weights *w, const struct job_spec *spec, const char *dir, struct err *err)
{
	int rc = hf_adapter_agree(dir, &spec->lora, err);
	return rc < 0 ? rc : hf_weights_read(w, dir, "adapter_model", &spec->model, true, err);
}

static int read_weights(
	const struct hf_weights *w, const struct job_spec *spec, const char *dir, struct err *err)
{
	bool adapters = hf_weights_exist(dir, "adapter_model");
	if (adapters && !hf_weights_exist(dir, "model"))
		return err_set(err, ERR_INVALID_DATA, NULL,
			"%s holds adapters without the model that they adapt", dir);
	if (adapters && spec->lora.rank == 0)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"%s holds adapters beside the model, but the spec has no lora: they would be lost",
			dir);
	int rc = hf_weights_read(w, dir, "model", &spec->model, false, err);
	return rc < 0 || !adapters ? rc : read_adapters(w, spec, dir, err);
}

/* The engine rounds on all ranks together, once all have read. */
static int read_with(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir,
	int (*read)(const struct hf_weights *, const struct job_spec *, const char *, struct err *),
	struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	int rc = hf_weights_of_rank(e, mesh, &w, err);
	if (rc == 0)
		rc = read(&w, spec, dir, err);
	rc = agree_on(mesh != NULL ? mesh->save : NULL, rc, err);
	return rc < 0 ? rc : engine_parameters_changed(e, err);
}

int hf_model_read_adapters(struct engine *e, struct mesh *mesh, const struct job_spec *spec,
	const char *dir, struct err *err)
{
	return read_with(e, mesh, spec, dir, read_adapters, err);
}

int hf_model_read(struct engine *e, struct mesh *mesh, const struct job_spec *spec, const char *dir,
	struct err *err)
{
	return read_with(e, mesh, spec, dir, read_weights, err);
}
