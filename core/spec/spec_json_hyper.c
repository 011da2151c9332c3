/* SPDX-License-Identifier: Apache-2.0
 * Reads `hyperparameters`. A field that is absent has the documented default; "auto" chooses by
 * task, family and optimizer. Called by spec_json.c after model and data are read. */
#include "core/spec/spec_json_private.h"

#include <stddef.h>

enum {
	BATCH_DEFAULT = 32,
	BATCH_AUTO_SAMPLES = 64,
	MICRO_AUTO_TOKENS = 8192,
	MICRO_AUTO_SAMPLES = 256,
	WARMUP_DEFAULT = 100,
	SMALL_EMBD = 512, /* below it a language model bears a higher rate */
};

/* The number fields: `automatic` is for the task and optimizer at hand, filled in below. */
struct number {
	const char *key;
	size_t offset;
	double min, max, def;
};

#define NUMBER(field, min, max, def)                                    \
	{                                                                   \
#field, offsetof(struct spec_hyper, field), (min), (max), (def) \
	}

static const struct number NUMBERS[] = {
	NUMBER(epochs, 0.001, 10000, 1),
	NUMBER(learning_rate, 0, 100, 3e-4),
	NUMBER(min_lr_ratio, 0, 1, 0.1),
	NUMBER(weight_decay, 0, 10, 0.1),
	NUMBER(beta1, 0, 0.9999999, 0.9),
	NUMBER(beta2, 0, 0.9999999, 0.95),
	NUMBER(eps, 1e-15, 1, 1e-8),
	NUMBER(momentum, 0, 0.9999999, 0.9),
	NUMBER(grad_clip, 0, 1e6, 1),
	NUMBER(dropout, 0, 0.95, 0),
	NUMBER(label_smoothing, 0, 0.95, 0),
};

static double *slot(struct spec_hyper *h, const struct number *n)
{
	return (double *)(void *)((char *)h + n->offset);
}

/* What "auto" means for the numbers where it is not the default. */
static void fill_auto(const struct job_spec *spec, struct spec_hyper *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(NUMBERS); i++)
		*slot(ret, &NUMBERS[i]) = NUMBERS[i].def;
	bool language = spec->task == SPEC_LANGUAGE_MODEL;
	if (spec->hyper.optimizer == SPEC_SGD) {
		ret->learning_rate = 0.05;
		ret->weight_decay = 5e-4;
	} else if (!language) {
		ret->learning_rate = 1e-3;
		ret->weight_decay = 0.01;
		ret->beta2 = 0.999;
	} else if (spec->model.n_embd < SMALL_EMBD) {
		ret->learning_rate = 1e-3;
	}
}

static void read_numbers(struct json_obj *o, struct job_spec *spec)
{
	struct spec_hyper automatic = { 0 };
	fill_auto(spec, &automatic);
	for (size_t i = 0; i < ARRAY_LEN(NUMBERS); i++) {
		const struct number *n = &NUMBERS[i];
		double *value = slot(&spec->hyper, n);
		*value = n->def;
		if (spec_json_is_auto(o, n->key))
			*value = *slot(&automatic, n);
		else
			json_obj_f64(o, n->key, n->min, n->max, value);
	}
}

/* The largest divisor of batch that is at most `most`. */
static int64_t divisor_at_most(int64_t batch, int64_t most)
{
	int64_t d = most < 1 ? 1 : most < batch ? most : batch;
	while (batch % d != 0)
		d--;
	return d;
}

static int64_t auto_micro_batch(const struct job_spec *spec)
{
	int64_t most = MICRO_AUTO_SAMPLES;
	if (spec->task == SPEC_LANGUAGE_MODEL)
		most = MICRO_AUTO_TOKENS / spec->data.sequence_length;
	return divisor_at_most(spec->hyper.batch_size, most);
}

static void read_batch(struct json_obj *o, struct job_spec *spec)
{
	struct spec_hyper *h = &spec->hyper;
	h->batch_size = BATCH_DEFAULT;
	if (!spec_json_is_auto(o, "batch_size"))
		json_obj_i64(o, "batch_size", 1, SPEC_BATCH_MAX, &h->batch_size);
	else if (spec->task != SPEC_LANGUAGE_MODEL)
		h->batch_size = BATCH_AUTO_SAMPLES;

	if (o->code)
		return;
	h->micro_batch_size = auto_micro_batch(spec);
	if (!spec_json_is_auto(o, "micro_batch_size"))
		json_obj_i64(o, "micro_batch_size", 1, SPEC_BATCH_MAX, &h->micro_batch_size);
	if (!o->code && h->batch_size % h->micro_batch_size != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "micro_batch_size",
			"%s.micro_batch_size (%lld) must divide batch_size (%lld)", o->path,
			(long long)h->micro_batch_size, (long long)h->batch_size);
}

static void read_steps(struct json_obj *o, struct spec_hyper *h)
{
	if (!spec_json_is_auto(o, "max_steps"))
		json_obj_i64(o, "max_steps", 1, SPEC_STEPS_MAX, &h->max_steps);
	/* The default warm-up never outlasts the run; one that was asked for must fit. */
	h->warmup_steps = WARMUP_DEFAULT;
	if (h->max_steps > 0 && h->max_steps < WARMUP_DEFAULT * 10)
		h->warmup_steps = h->max_steps / 10;
	if (!spec_json_is_auto(o, "warmup_steps"))
		json_obj_i64(o, "warmup_steps", 0, SPEC_STEPS_MAX, &h->warmup_steps);
	if (!o->code && h->max_steps > 0 && h->warmup_steps > h->max_steps)
		json_obj_fail(o, ERR_INVALID_VALUE, "warmup_steps",
			"%s.warmup_steps (%lld) must not be above max_steps (%lld)", o->path,
			(long long)h->warmup_steps, (long long)h->max_steps);
}

static int read_hyper(
	const struct json_val *v, const char *path, struct job_spec *spec, struct err *err)
{
	struct json_obj o;
	int optimizer = SPEC_ADAMW;
	int schedule = SPEC_COSINE;
	json_obj_open(&o, v, path, err);
	spec_json_word_or_auto(&o, "optimizer", spec_json_optimizer_words, &optimizer);
	spec_json_word_or_auto(&o, "schedule", spec_json_schedule_words, &schedule);
	spec->hyper.optimizer = (enum spec_optimizer)optimizer;
	spec->hyper.schedule = (enum spec_schedule)schedule;
	read_numbers(&o, spec);
	read_batch(&o, spec);
	read_steps(&o, &spec->hyper);
	return json_obj_close(&o);
}

/* The defaults alone: what an empty object would read as. */
static void fill_defaults(struct job_spec *spec)
{
	struct spec_hyper *h = &spec->hyper;
	h->optimizer = SPEC_ADAMW;
	h->schedule = SPEC_COSINE;
	h->batch_size = BATCH_DEFAULT;
	h->warmup_steps = WARMUP_DEFAULT;
	h->micro_batch_size = auto_micro_batch(spec);
	for (size_t i = 0; i < ARRAY_LEN(NUMBERS); i++)
		*slot(h, &NUMBERS[i]) = NUMBERS[i].def;
}

void spec_json_hyper_read(struct json_obj *o, struct job_spec *spec)
{
	const struct json_val *v = NULL;
	json_obj_object(o, "hyperparameters", &v);
	if (o->code)
		return;
	if (!v) {
		fill_defaults(spec);
		return;
	}
	char path[JSON_PATH_MAX];
	json_obj_path(o, "hyperparameters", path);
	json_obj_adopt(o, read_hyper(v, path, spec, o->err));
}
