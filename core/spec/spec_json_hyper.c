/* SPDX-License-Identifier: Apache-2.0
 * Reads `hyperparameters`. "auto" chooses by task, family and optimizer (spec_json_auto.c); a field
 * that is absent has the documented default. Called by spec_json.c after model, lora and data. */
#include "core/spec/spec_json_private.h"

#include <stddef.h>

enum { BATCH_DEFAULT = 32, WARMUP_DEFAULT = 100 };

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
	NUMBER(ema_decay, 0, 0.9999999, 0),
};

static double *slot(struct spec_hyper *h, const struct number *n)
{
	return (double *)(void *)((char *)h + n->offset);
}

static void read_numbers(struct json_obj *o, struct job_spec *spec)
{
	struct spec_hyper automatic = { 0 };
	bool absent_is_auto = spec_json_absent_is_auto(spec);
	for (size_t i = 0; i < ARRAY_LEN(NUMBERS); i++)
		*slot(&automatic, &NUMBERS[i]) = NUMBERS[i].def;
	spec_json_auto_numbers(spec, &automatic);
	for (size_t i = 0; i < ARRAY_LEN(NUMBERS); i++) {
		const struct number *n = &NUMBERS[i];
		double *value = slot(&spec->hyper, n);
		*value = absent_is_auto ? *slot(&automatic, n) : n->def;
		if (spec_json_is_auto(o, n->key))
			*value = *slot(&automatic, n);
		else
			json_obj_f64(o, n->key, n->min, n->max, value);
	}
}

/* The ranks of the data axis take equal shares of each batch. What is chosen is made to fit; what
 * is given has to where the mesh is known. */
static void read_batch_size(struct json_obj *o, struct job_spec *spec, bool open)
{
	struct spec_hyper *h = &spec->hyper;
	int64_t ranks = spec_json_parallel_data(spec), given = 0;
	h->batch_size = spec_json_absent_is_auto(spec) ? spec_json_auto_batch(spec) : BATCH_DEFAULT;
	if (spec_json_is_auto(o, "batch_size"))
		h->batch_size = spec_json_auto_batch(spec);
	else
		json_obj_i64(o, "batch_size", 1, SPEC_BATCH_MAX, &given);
	if (given == 0)
		h->batch_size = (h->batch_size + ranks - 1) / ranks * ranks;
	else
		h->batch_size = given;
	if (!o->code && !open && h->batch_size % ranks != 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "batch_size",
			"%s.batch_size (%lld) must be a multiple of parallelism.data (%lld)", o->path,
			(long long)h->batch_size, (long long)ranks);
}

static void read_batch(struct json_obj *o, struct job_spec *spec, bool open)
{
	struct spec_hyper *h = &spec->hyper;
	int64_t ranks = spec_json_parallel_data(spec), given = 0;
	read_batch_size(o, spec, open);
	if (o->code)
		return;
	h->micro_batch_size = spec_json_auto_micro_batch(spec);
	if (!spec_json_is_auto(o, "micro_batch_size"))
		json_obj_i64(o, "micro_batch_size", 1, SPEC_BATCH_MAX, &given);
	if (o->code || given == 0)
		return;
	h->micro_batch_size = given;
	if ((open ? h->batch_size : h->batch_size / ranks) % given == 0)
		return;
	if (ranks == 1 || open)
		json_obj_fail(o, ERR_INVALID_VALUE, "micro_batch_size",
			"%s.micro_batch_size (%lld) must divide batch_size (%lld)", o->path,
			(long long)h->micro_batch_size, (long long)h->batch_size);
	else
		json_obj_fail(o, ERR_INVALID_VALUE, "micro_batch_size",
			"%s.micro_batch_size (%lld) must divide what each of parallelism.data's %lld ranks has "
			"of batch_size (%lld): %lld",
			o->path, (long long)h->micro_batch_size, (long long)ranks, (long long)h->batch_size,
			(long long)(h->batch_size / ranks));
}

/* What is trained has fp32 masters; there must be something that they are rounded to. */
static void read_rounding(struct json_obj *o, struct job_spec *spec)
{
	bool *stochastic = &spec->hyper.stochastic_rounding;
	if (!spec_json_is_auto(o, "stochastic_rounding"))
		json_obj_bool(o, "stochastic_rounding", stochastic);
	if (!o->code && *stochastic && spec->precision != SPEC_BF16)
		json_obj_fail(o, ERR_INVALID_VALUE, "stochastic_rounding",
			"%s.stochastic_rounding: only weights in bf16 are rounded so, not those of precision "
			"%s; give false",
			o->path, spec_precision_word(spec->precision));
}

static void read_steps(struct json_obj *o, struct spec_hyper *h)
{
	if (!spec_json_is_auto(o, "max_steps"))
		json_obj_i64(o, "max_steps", 1, SPEC_STEPS_MAX, &h->max_steps);
	/* The default warm-up never outlasts max_steps (how many steps epochs are is not known here);
	 * one that was asked for must fit. */
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

void spec_json_hyper_read(struct json_obj *up, struct job_spec *spec)
{
	struct json_obj o;
	if (up->code)
		return;
	bool given = spec_json_open_part(up, "hyperparameters", &o);
	if (up->code)
		return;
	if (!given) /* what an empty object reads as */
		o = (struct json_obj){ .err = up->err };
	int optimizer = (int)spec_json_auto_optimizer(spec);
	int schedule = SPEC_COSINE;
	spec_json_word_or_auto(&o, "optimizer", spec_json_optimizer_words, &optimizer);
	spec_json_word_or_auto(&o, "schedule", spec_json_schedule_words, &schedule);
	spec->hyper.optimizer = (enum spec_optimizer)optimizer;
	spec->hyper.schedule = (enum spec_schedule)schedule;
	read_numbers(&o, spec);
	read_batch(&o, spec, spec_json_parallel_open(up->value, spec));
	read_steps(&o, &spec->hyper);
	read_rounding(&o, spec);
	spec_json_close_part(up, &o);
}
