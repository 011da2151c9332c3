/* SPDX-License-Identifier: Apache-2.0
 * Plans of several data ranks: what each rank keeps by ZeRO stage beside the field's formulas, what
 * it sends, and that no operation reads or writes what a call between ranks still has. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include <stdio.h>

enum { STAGES = 4, RANKS = 8 };

static struct plan *compile_rank(struct job_spec *s, int data, int zero, int rank)
{
	struct plan *p = NULL;
	if (s->hyper.batch_size % (data * s->hyper.micro_batch_size))
		s->hyper.batch_size = data * s->hyper.micro_batch_size;
	s->parallel = (struct spec_parallel){ .data = data, .zero_stage = zero };
	int rc = plan_compile_rank(s, NULL, rank, &p, &err);
	if (rc)
		fail_msg("data %d, ZeRO %d: %s", data, zero, err.message);
	return p;
}

static struct job_spec gpt2_1558m(void)
{
	struct job_spec s = fixture_gpt2(48, 25, 1600, 1024, 50257);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = 64;
	s.hyper.micro_batch_size = 2;
	return s;
}

/* Bytes a parameter, of P parameters on N ranks: Rajbhandari et al. 2020, with bf16 weights and
 * fp32 gradients: 2 + 4 + 12; what is left of each stage is divided by N. */
static void test_memory_is_the_formulas(void **state)
{
	(void)state;
	static const double whole[STAGES] = { 18, 6, 2, 0 };
	struct job_spec s = gpt2_1558m();
	for (int zero = 0; zero < STAGES; zero++) {
		struct plan *p = compile_rank(&s, RANKS, zero, 3);
		double formula = (whole[zero] + (18 - whole[zero]) / RANKS) * (double)p->parameter_count;
		double bytes = (double)(p->kind_bytes[PLAN_WEIGHTS] + p->kind_bytes[PLAN_GRADIENTS] +
			p->kind_bytes[PLAN_OPTIMIZER]);
		if (fabs(bytes / formula - 1) > 0.03)
			fail_msg("ZeRO %d: %.4g bytes of state, the formula says %.4g", zero, bytes, formula);
		plan_destroy(p);
	}
}

/* LoRA: 2 bytes of each frozen weight, of which stage 3 keeps a part, and 18 of each trained one.
 */
static void test_frozen_weights_are_cut(void **state)
{
	(void)state;
	struct job_spec s = fixture_llama(32, 32, 32, 4096, 11008, 4096, 32000);
	s.task = SPEC_FINE_TUNE;
	s.data.format = SPEC_FORMAT_JSONL;
	s.precision = SPEC_BF16;
	s.hyper.batch_size = RANKS;
	s.hyper.micro_batch_size = 1;
	s.lora = (struct spec_lora){
		.rank = 16, .alpha = 32, .target = { "q_proj", "v_proj" }, .target_count = 2
	};
	for (int zero = 0; zero < STAGES; zero++) {
		struct plan *p = compile_rank(&s, RANKS, zero, 7);
		double frozen = (double)(p->parameter_count - p->trained_count);
		double formula = 2 * frozen / (zero == 3 ? RANKS : 1);
		if (fabs((double)p->kind_bytes[PLAN_WEIGHTS] / formula - 1) > 0.03)
			fail_msg("ZeRO %d: %.4g bytes of weights, the formula says %.4g", zero,
				(double)p->kind_bytes[PLAN_WEIGHTS], formula);
		plan_destroy(p);
	}
}

/* Beside the state: with stage 2 gradients of two buckets, with stage 3 also weights of two layers
 * and of the embedding. */
static void test_scratch_is_a_few_layers(void **state)
{
	(void)state;
	struct job_spec s = gpt2_1558m();
	struct plan *p[STAGES];
	for (int zero = 0; zero < STAGES; zero++)
		p[zero] = compile_rank(&s, RANKS, zero, 0);
	double layer = 12.0 * 1600 * 1600, embedding = 50257.0 * 1600;
	double rest[STAGES];
	for (int zero = 0; zero < STAGES; zero++)
		rest[zero] = (double)(p[zero]->total_bytes - p[zero]->kind_bytes[PLAN_WEIGHTS] -
			p[zero]->kind_bytes[PLAN_GRADIENTS] - p[zero]->kind_bytes[PLAN_OPTIMIZER]);
	assert_true(rest[1] <= rest[0] * 1.01);
	assert_true(rest[2] - rest[0] <= 4 * (embedding + 4 * layer));
	assert_true(rest[3] - rest[0] <= 4 * (embedding + 4 * layer) + 2 * (embedding + 4 * layer));
	for (int zero = 0; zero < STAGES; zero++)
		plan_destroy(p[zero]);
}

/* Per step and rank: (N-1)/N of the gradients out and back (stage 0, all-reduce), or the gradients
 * out and weights back (1, 2), or weights twice more for each micro-batch (3). */
static void test_bytes_sent(void **state)
{
	(void)state;
	struct job_spec s = fixture_gpt2(4, 4, 128, 64, 512);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = 2 * RANKS;
	s.hyper.micro_batch_size = 1; /* two micro-batches */
	for (int zero = 0; zero < STAGES; zero++) {
		struct plan *p = compile_rank(&s, RANKS, zero, 1);
		double n = (double)p->parameter_count, part = (RANKS - 1.0) / RANKS, sent = 0;
		const double want[STAGES] = { 2 * 4 * n, 4 * n + 2 * n, 2 * 4 * n + 2 * n,
			2 * 4 * n + 2 * 2 * 2 * n };
		for (int i = 0; i < p->op_count; i++)
			sent += p->ops[i].wire_bytes *
				(p->ops[i].phase == PLAN_OPTIMIZE || p->ops[i].last_micro ? 1
																		  : (double)p->micro_steps);
		/* Vectors are fp32; the last layer and the tied embedding are gathered more or less often.
		 */
		double slack = zero == 3 ? 0.35 : 0.03;
		if (fabs(sent / (part * want[zero]) - 1) > slack)
			fail_msg(
				"ZeRO %d: %.4g bytes sent, the formula says %.4g", zero, sent, part * want[zero]);
		plan_destroy(p);
	}
}

static int count_calls(const struct plan *p, enum plan_op_kind kind)
{
	int n = 0;
	for (int i = 0; i < p->optimize_begin; i++)
		n += p->ops[i].kind == kind;
	return n;
}

/* A layer of the 1.5B is larger than PLAN_BUCKET_BYTES, so each is reduced by itself, as soon as it
 * is there; those of a small model share one piece. */
static void test_pieces_of_gradients(void **state)
{
	(void)state;
	struct job_spec large = gpt2_1558m(), small = fixture_gpt2(4, 4, 64, 32, 300);
	for (int zero = 0; zero < 3; zero++) {
		enum plan_op_kind kind = zero == 0 ? PLAN_OP_ALL_REDUCE : PLAN_OP_REDUCE_SCATTER;
		struct plan *p = compile_rank(&large, RANKS, zero, 0);
		assert_in_range(count_calls(p, kind), 48, 52);
		plan_destroy(p);
		p = compile_rank(&small, RANKS, zero, 0);
		assert_int_equal(count_calls(p, kind), 1);
		plan_destroy(p);
	}
}

/* Stage 3: the embedding, each layer and the head in the forward pass; in the backward pass each
 * layer but the last, which is still there. */
static void test_each_layer_is_gathered_twice(void **state)
{
	(void)state;
	struct job_spec s = fixture_llama(5, 4, 2, 32, 48, 8, 256);
	struct plan *p = compile_rank(&s, RANKS, 3, 0);
	assert_int_equal(count_calls(p, PLAN_OP_ALL_GATHER), 1 + 5 + 1 + 4);
	plan_destroy(p);
}

static bool is_call(const struct plan_op *op)
{
	return op->kind == PLAN_OP_ALL_REDUCE || op->kind == PLAN_OP_REDUCE_SCATTER ||
		op->kind == PLAN_OP_ALL_GATHER || op->kind == PLAN_OP_ALL_TO_ALL;
}

/* Places of an operand in the arena; how many elements is not known of parts of wider rows, so
 * whole buffers count, but for buckets' parameters and parts. */
static bool overlap(const struct plan *p, const struct plan_op *a, const struct plan_op *b)
{
	for (int i = 0; i < PLAN_OPERANDS_MAX; i++)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++)
			if (a->operand[i] >= 0 && b->operand[k] >= 0) {
				const struct plan_buffer *x = &p->buffers[a->operand[i]],
										 *y = &p->buffers[b->operand[k]];
				if (x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes)
					return true;
			}
	return false;
}

/* Between a call and its wait nobody else touches its buffers. Stage 0 reduces pieces of one flat
 * range, told apart by buffers: those of the range are checked by its first. */
static void check_calls(const struct plan *p, const char *what)
{
	for (int i = 0; i < p->op_count; i++) {
		const struct plan_op *call = &p->ops[i];
		if (!is_call(call))
			continue;
		bool waited = false;
		for (int k = i + 1; k < p->op_count && !waited; k++) {
			const struct plan_op *op = &p->ops[k];
			waited = op->kind == PLAN_OP_WAIT && op->ticket == call->ticket;
			if (waited || op->kind == PLAN_OP_WAIT)
				continue;
			if (overlap(p, call, op))
				fail_msg("%s: %s (%s) touches what %s (%s) has", what, op->name,
					plan_op_word(op->kind), call->name, plan_op_word(call->kind));
		}
		if (!waited)
			fail_msg("%s: nobody waits for %s (%s)", what, call->name, plan_op_word(call->kind));
	}
}

static void test_nothing_is_touched_before_its_wait(void **state)
{
	(void)state;
	struct job_spec specs[] = { fixture_gpt2(4, 4, 64, 32, 300),
		fixture_llama(3, 4, 2, 32, 48, 8, 256), fixture_cnn(), fixture_mlp(), fixture_dlrm() };
	for (size_t i = 0; i < ARRAY_LEN(specs); i++)
		for (int precision = SPEC_FP32; precision <= SPEC_BF16; precision++)
			for (int zero = 0; zero < STAGES; zero++) {
				char what[64];
				snprintf(what, sizeof(what), "spec %zu, precision %d, ZeRO %d", i, precision, zero);
				specs[i].precision = (enum spec_precision)precision;
				specs[i].hyper.batch_size = 16;
				specs[i].hyper.micro_batch_size = 2;
				specs[i].parallel =
					(struct spec_parallel){ .data = 4, .zero_stage = zero, .bucket_bytes = 4096 };
				struct plan *p = NULL;
				assert_int_equal(plan_compile_rank(&specs[i], NULL, 2, &p, &err), 0);
				check_calls(p, what);
				plan_destroy(p);
			}
}

static void test_refusals(void **state)
{
	(void)state;
	struct job_spec s = fixture_gpt2(2, 2, 32, 16, 256);
	struct plan *p = NULL;
	const struct {
		struct spec_parallel parallel;
		int64_t batch, micro;
		int rank;
		const char *param;
	} bad[] = {
		{ { .data = -1 }, 8, 0, 0, "$.parallelism.data" },
		{ { .data = 1 << 20 }, 8, 0, 0, "$.parallelism.data" },
		{ { .data = 2, .zero_stage = 4 }, 8, 0, 0, "$.parallelism.zero_stage" },
		{ { .data = 2, .tensor = 4 }, 8, 0, 0, "$.parallelism.tensor" }, /* heads */
		{ { .data = 2, .tensor = -2 }, 8, 0, 0, "$.parallelism.tensor" },
		{ { .data = 2, .pipeline = 3 }, 8, 0, 0, "$.parallelism.pipeline" },
		{ { .data = 4096, .tensor = 2 }, 8192, 0, 0, "$.parallelism" },
		{ { .data = 3 }, 8, 0, 0, "$.hyperparameters.batch_size" },
		{ { .data = 4 }, 8, 4, 0, "$.hyperparameters.batch_size" },
		{ { .data = 2 }, 8, 4, 2, "" },
		{ { .data = 2 }, 8, 4, -1, "" },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		s.parallel = bad[i].parallel;
		s.hyper.batch_size = bad[i].batch;
		s.hyper.micro_batch_size = bad[i].micro;
		err = (struct err){ 0 };
		assert_int_equal(plan_compile_rank(&s, NULL, bad[i].rank, &p, &err), ERR_INVALID_VALUE);
		assert_string_equal(err.param, bad[i].param);
	}
}

/* How often the ranks round each element of each parameter, at its place in the whole. */
struct rounded {
	int64_t elements; /* of all parameters */
	uint8_t *times;
};

/* One rank's operations; the update no longer writes what they do. Returns how many there are. */
static int count_rounded(const struct plan *p, const int64_t *at, struct rounded *r)
{
	int count = 0;
	for (int i = 0; i < p->op_count; i++) {
		const struct plan_op *op = &p->ops[i];
		assert_true(op->kind != PLAN_OP_ADAMW || op->operand[4] < 0);
		if (op->kind != PLAN_OP_ROUND)
			continue;
		const struct plan_buffer *x = &p->buffers[op->operand[0]], *y = &p->buffers[op->operand[1]];
		assert_true(x->type == PLAN_F32 && y->type == PLAN_BF16);
		assert_true((op->shift[0] + op->dim[0]) * 4 <= x->bytes);
		assert_true((op->shift[1] + op->dim[0]) * 2 <= y->bytes);
		const struct plan_cut cut = { op->dim[3], op->dim[4], op->dim[5] };
		for (int64_t k = 0; k < op->dim[0]; k++)
			r->times[at[op->dim[1]] + plan_cut_at(&cut, op->dim[2] + k)]++;
		count++;
	}
	return count;
}

/* Whatever the mesh: once on each rank that has its own copy of the state, and nowhere twice. */
static void test_every_master_is_rounded(void **state)
{
	(void)state;
	for (int i = 0; i < 3 * STAGES; i++) {
		int data = 1 + i / STAGES, zero = i % STAGES, tensor = 2, copies = zero ? 1 : data;
		struct job_spec s = fixture_llama(2, 4, 2, 24, 28, 16, 263);
		s.precision = SPEC_BF16;
		s.hyper.stochastic_rounding = true;
		s.hyper.batch_size = 12;
		s.hyper.micro_batch_size = 1;
		struct plan *whole = fixture_compile(&s);
		struct rounded r = { 0 };
		int64_t *at = calloc((size_t)whole->param_count, sizeof(*at));
		for (int k = 0; k < whole->param_count; k++) {
			at[k] = r.elements;
			r.elements += whole->params[k].count;
		}
		r.times = calloc((size_t)r.elements, 1);
		s.parallel = (struct spec_parallel){ .data = data, .tensor = tensor, .zero_stage = zero };
		for (int rank = 0; rank < data * tensor; rank++) {
			struct plan *p = NULL;
			assert_int_equal(plan_compile_rank(&s, NULL, rank, &p, &err), 0);
			assert_true(count_rounded(p, at, &r) > 0);
			plan_destroy(p);
		}
		for (int k = 0; k < whole->param_count; k++)
			for (int64_t j = 0; j < whole->params[k].count; j++) {
				int want = whole->params[k].rank < 2 ? 0 : copies;
				int seen = r.times[at[k] + j];
				/* The ranks of the tensor axis have some whole. */
				if (seen != want && seen != tensor * want)
					fail_msg("data %d, ZeRO %d: element %lld of %s is rounded %d times", data, zero,
						(long long)j, whole->params[k].name, seen);
			}
		free(r.times);
		free(at);
		plan_destroy(whole);
	}
}

static void test_rounding_is_refused(void **state)
{
	(void)state;
	struct job_spec s = fixture_gpt2(2, 2, 16, 8, 256);
	struct plan *p = NULL;
	s.hyper.stochastic_rounding = true;
	for (int precision = SPEC_FP32; precision < SPEC_PRECISION_COUNT; precision++) {
		s.precision = (enum spec_precision)precision;
		int rc = plan_compile(&s, NULL, &p, &err);
		assert_int_equal(rc, precision == SPEC_BF16 ? 0 : ERR_INVALID_VALUE);
		if (rc)
			assert_string_equal(err.param, "$.hyperparameters.stochastic_rounding");
		else
			plan_destroy(p);
	}
}

/* Ranks of a tensor group are neighbours, and each place has one rank. */
static void test_places(void **state)
{
	(void)state;
	struct job_spec s = { .parallel = { .data = 3, .tensor = 2, .pipeline = 4 } };
	for (int rank = 0; rank < 24; rank++) {
		struct plan_mesh m;
		assert_int_equal(plan_mesh_of(&s, rank, &m, &err), 0);
		assert_int_equal(plan_mesh_rank(&m), rank);
		assert_int_equal(m.tensor_rank, rank % 2);
		assert_int_equal(m.data_rank, rank / 2 % 3);
		assert_int_equal(m.pipeline_rank, rank / 6);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_the_formulas),
		cmocka_unit_test(test_frozen_weights_are_cut),
		cmocka_unit_test(test_scratch_is_a_few_layers),
		cmocka_unit_test(test_pieces_of_gradients),
		cmocka_unit_test(test_each_layer_is_gathered_twice),
		cmocka_unit_test(test_bytes_sent),
		cmocka_unit_test(test_nothing_is_touched_before_its_wait),
		cmocka_unit_test(test_every_master_is_rounded),
		cmocka_unit_test(test_rounding_is_refused),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_places),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
