/* SPDX-License-Identifier: Apache-2.0
 * What "auto" means: the usual first choice for a task, a family and an optimizer, as a table of
 * cases in code. Pure; called by spec_json_hyper.c and spec_json_run.c. */
#include "core/spec/spec_json_private.h"

enum {
	BATCH_LANGUAGE = 32,
	BATCH_SAMPLES = 64,
	BATCH_RESIDUAL = 128,
	BATCH_DLRM = 2048,
	MICRO_TOKENS = 8192,
	MICRO_SAMPLES = 256,
	MICRO_DLRM = 4096,
	MICRO_RESIDUAL_PIXELS = 1024 * 1024, /* of all images of a residual network's micro-batch */
	MICRO_RESIDUAL_UNKNOWN = 32,         /* images of a size that the data decides */
	SMALL_EMBD = 512,                    /* below it a language model bears a higher rate */
	PIPELINE_MICROS = 4,                 /* of each rank of a pipeline, in a step */
	LARGE_EMBD = 8192,                   /* from it on a lower one */
};

static bool is_residual(const struct job_spec *spec)
{
	return spec->model.family == SPEC_CNN && spec->model.block != SPEC_BLOCK_PLAIN;
}

bool spec_json_absent_is_auto(const struct job_spec *spec)
{
	return spec->task == SPEC_FINE_TUNE || spec->model.family == SPEC_DLRM || is_residual(spec);
}

enum spec_optimizer spec_json_auto_optimizer(const struct job_spec *spec)
{
	return spec->model.family == SPEC_DLRM || is_residual(spec) ? SPEC_SGD : SPEC_ADAMW;
}

/* For the optimizer that is in the spec by now. */
static void sgd_numbers(const struct job_spec *spec, struct spec_hyper *ret)
{
	ret->learning_rate = 0.05;
	ret->weight_decay = 5e-4;
	if (is_residual(spec)) {
		ret->learning_rate = 0.1;
		ret->weight_decay = spec->model.stem == SPEC_STEM_7 ? 1e-4 : 5e-4;
		ret->grad_clip = 0;
	}
	if (spec->model.family == SPEC_DLRM) {
		ret->learning_rate = 0.1;
		ret->weight_decay = 0;
		ret->momentum = 0;
		ret->grad_clip = 0;
	}
}

static void adamw_numbers(const struct job_spec *spec, struct spec_hyper *ret)
{
	if (!spec_is_language(spec)) {
		ret->learning_rate = 1e-3;
		ret->weight_decay = spec->model.family == SPEC_DLRM ? 0 : 0.01;
		ret->beta2 = 0.999;
		if (spec->model.family == SPEC_DLRM)
			ret->grad_clip = 0;
	} else if (spec->task == SPEC_FINE_TUNE) {
		ret->learning_rate = spec->lora.rank > 0 ? 2e-4 : 5e-5;
		ret->weight_decay = 0.01;
	} else if (spec->model.n_embd < SMALL_EMBD) {
		ret->learning_rate = 1e-3;
	} else if (spec->model.n_embd >= LARGE_EMBD) {
		ret->learning_rate = 1.5e-4;
	}
}

void spec_json_auto_numbers(const struct job_spec *spec, struct spec_hyper *ret)
{
	if (spec->hyper.optimizer == SPEC_SGD)
		sgd_numbers(spec, ret);
	else
		adamw_numbers(spec, ret);
}

int64_t spec_json_auto_batch(const struct job_spec *spec)
{
	if (spec->model.family == SPEC_DLRM)
		return BATCH_DLRM;
	if (spec_is_language(spec))
		return BATCH_LANGUAGE;
	return is_residual(spec) ? BATCH_RESIDUAL : BATCH_SAMPLES;
}

/* The largest divisor of batch that is at most `most`. */
static int64_t divisor_at_most(int64_t batch, int64_t most)
{
	int64_t d = most < 1 ? 1 : most < batch ? most : batch;
	while (batch % d != 0)
		d--;
	return d;
}

int64_t spec_json_auto_micro_batch_most(const struct job_spec *spec)
{
	const struct spec_model *m = &spec->model;
	int64_t most = MICRO_SAMPLES;
	int64_t pixels = m->in_height * m->in_width;
	if (spec_is_language(spec))
		most = MICRO_TOKENS / spec->data.sequence_length;
	else if (m->family == SPEC_DLRM)
		most = MICRO_DLRM;
	else if (is_residual(spec) && pixels == 0)
		most = MICRO_RESIDUAL_UNKNOWN;
	else if (is_residual(spec) && MICRO_RESIDUAL_PIXELS / pixels < most)
		most = MICRO_RESIDUAL_PIXELS / pixels;
	return most < 1 ? 1 : most;
}

/* The largest that the batch is a multiple of; in a pipeline, of which each rank gets a few, and
 * the number of micro-batches a multiple of the ranks where the batch lets it. A batch that the
 * ranks cannot share is refused by whoever checks it; this only makes a number. */
int64_t spec_json_auto_micro_batch(const struct job_spec *spec)
{
	int64_t most = spec_json_auto_micro_batch_most(spec);
	int64_t each = spec->hyper.batch_size / spec_json_parallel_data(spec);
	int64_t ranks = spec->parallel.pipeline > 1 ? spec->parallel.pipeline : 1;
	if (ranks > 1 && most > each / (ranks * PIPELINE_MICROS))
		most = each / (ranks * PIPELINE_MICROS);
	int64_t share = each % ranks == 0 ? each / ranks : each;
	return divisor_at_most(share < 1 ? 1 : share, most < 1 ? 1 : most);
}

enum spec_precision spec_json_auto_precision(const struct job_spec *spec)
{
	return spec_is_language(spec) ? SPEC_BF16 : SPEC_FP32;
}
