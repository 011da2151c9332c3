/* SPDX-License-Identifier: Apache-2.0
 * Model folders. */
#include "workers/trainer/hf_model.h"

#include "workers/trainer/hf_adapter.h"
#include "workers/trainer/hf_config.h"

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

int hf_model_weights(const struct hf_model *m, const struct hf_weights *w, int64_t batches,
	struct folder *f, struct err *err)
{
	struct hf_weights_options o = { .adapters = m->spec->lora.rank > 0, .batches = batches };
	return hf_weights_write(w, hf_model_stem(m->spec), &o, f, err);
}

static int write_rest(const struct hf_model *m, const struct hf_weights *w, int64_t batches,
	struct folder *f, struct err *err)
{
	bool lora = m->spec->lora.rank > 0;
	struct hf_weights_options o = { .batches = batches };
	int rc = 0;
	if (lora && !m->base_elsewhere)
		rc = hf_weights_write(w, "model", &o, f, err);
	o.adapters = lora;
	o.averages = true;
	if (rc == 0 && m->spec->hyper.ema_decay > 0 && batches > 0) /* the first step makes them */
		rc = hf_weights_write(w, lora ? "ema_adapter_model" : "ema", &o, f, err);
	return rc;
}

int hf_model_write(const struct hf_model *m, const char *dir, int64_t step,
	const struct buf *summary, struct err *err)
{
	struct folder f;
	char parent[FILE_PATH_MAX];
	const char *name = NULL;
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	int64_t batches = step * m->plan->micro_steps;
	int rc = folder_split(dir, parent, &name, err);
	if (rc == 0)
		rc = hf_weights_of(m->engine, &w, err);
	if (rc == 0)
		rc = folder_begin(&f, parent, ".writing-model", name, step, err);
	if (rc == 0)
		rc = hf_model_weights(m, &w, batches, &f, err);
	if (rc == 0)
		rc = write_rest(m, &w, batches, &f, err);
	if (rc == 0)
		rc = hf_model_describe(m, &f, err);
	if (rc == 0)
		rc = folder_add_text(&f, "trainyard.json", summary, err);
	return rc < 0 ? rc : folder_publish(&f, err);
}

int hf_model_read_adapters(
	struct engine *e, const struct job_spec *spec, const char *dir, struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	int rc = hf_adapter_agree(dir, &spec->lora, err);
	if (rc == 0)
		rc = hf_weights_of(e, &w, err);
	if (rc == 0)
		rc = hf_weights_read(&w, dir, "adapter_model", &spec->model, true, err);
	if (rc == 0)
		rc = engine_parameters_changed(e, err);
	return rc;
}

int hf_model_read(struct engine *e, const struct job_spec *spec, const char *dir, struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	bool adapters = hf_weights_exist(dir, "adapter_model");
	if (adapters && !hf_weights_exist(dir, "model"))
		return err_set(err, ERR_INVALID_DATA, NULL,
			"%s holds adapters without the model that they adapt", dir);
	if (adapters && spec->lora.rank == 0)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"%s holds adapters beside the model, but the spec has no lora: they would be lost",
			dir);
	int rc = hf_weights_of(e, &w, err);
	if (rc == 0)
		rc = hf_weights_read(&w, dir, "model", &spec->model, false, err);
	if (rc == 0)
		rc = engine_parameters_changed(e, err);
	return rc < 0 || !adapters ? rc : hf_model_read_adapters(e, spec, dir, err);
}
