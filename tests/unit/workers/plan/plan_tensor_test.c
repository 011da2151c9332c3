/* SPDX-License-Identifier: Apache-2.0
 * Plans of ranks that share layers: which elements each keeps, what memory and work are left of the
 * whole, what goes between the ranks, and what cannot be shared. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include <stdio.h>
#include <stdlib.h>

enum { RANKS_MAX = 8 };

static struct plan *compile(struct job_spec *s, int tensor, int data, int zero, int rank)
{
	struct plan *p = NULL;
	s->parallel = (struct spec_parallel){
		.data = data, .tensor = tensor, .zero_stage = zero, .bucket_bytes = 4096
	};
	int rc = plan_compile_rank(s, NULL, rank, &p, &err);
	if (rc)
		fail_msg("tensor %d, data %d, ZeRO %d: %s", tensor, data, zero, err.message);
	return p;
}

static int64_t whole_count(const struct plan_param *p)
{
	int64_t n = 1;
	for (int i = 0; i < p->rank; i++)
		n *= p->shape[i];
	return n;
}

/* Each element of a tensor is one rank's, or all ranks'. */
static void check_cover(struct plan *const *plans, int tensor, int param)
{
	const struct plan_param *first = &plans[0]->params[param];
	int64_t count = whole_count(first);
	char *seen = calloc((size_t)count, 1);
	for (int r = 0; r < tensor; r++) {
		const struct plan_param *p = &plans[r]->params[param];
		assert_string_equal(p->name, first->name);
		assert_int_equal(p->number, param);
		assert_true(p->room == first->count && p->count <= p->room);
		for (int64_t i = 0; i < p->count; i++) {
			int64_t at = plan_cut_at(&p->cut, i);
			assert_in_range(at, 0, count - 1);
			seen[at]++;
		}
	}
	for (int64_t i = 0; i < count; i++)
		if (seen[i] != (first->cut.run == first->cut.period ? tensor : 1))
			fail_msg("%s: element %lld is %d ranks'", first->name, (long long)i, seen[i]);
	free(seen);
}

/* A vocabulary that is a prime; queries, keys and values in one matrix and in three. */
static void test_every_element_is_somebodys(void **state)
{
	(void)state;
	struct job_spec specs[] = { fixture_gpt2(2, 8, 32, 16, 263),
		fixture_llama(2, 8, 8, 32, 48, 16, 263) };
	specs[1].lora = (struct spec_lora){
		.rank = 3, .alpha = 6, .target = { "q_proj", "down_proj" }, .target_count = 2
	};
	for (size_t i = 0; i < ARRAY_LEN(specs); i++)
		for (int tensor = 1; tensor <= RANKS_MAX; tensor *= 2) {
			struct plan *plans[RANKS_MAX];
			for (int r = 0; r < tensor; r++)
				plans[r] = compile(&specs[i], tensor, 1, 0, r);
			for (int k = 0; k < plans[0]->param_count; k++)
				check_cover(plans, tensor, k);
			for (int r = 0; r < tensor; r++)
				plan_destroy(plans[r]);
		}
}

/* The third head of four is the third quarter of the queries, of the keys and of the values. */
static void test_heads_are_cut(void **state)
{
	(void)state;
	enum { C = 32, HEADS = 4, RANK = 2, OWN = C / HEADS };
	struct job_spec s = fixture_gpt2(1, HEADS, C, 16, 256);
	struct plan *p = compile(&s, HEADS, 1, 0, RANK);
	for (int k = 0; k < p->param_count; k++) {
		const struct plan_param *q = &p->params[k];
		if (strstr(q->name, "c_attn.weight") == NULL)
			continue;
		assert_int_equal(q->count, C * 3 * OWN);
		for (int64_t i = 0; i < q->count; i++) {
			int64_t row = i / (3 * OWN), block = i / OWN % 3, column = i % OWN;
			assert_int_equal(
				plan_cut_at(&q->cut, i), row * 3 * C + block * C + RANK * OWN + column);
		}
	}
	plan_destroy(p);
}

static double state_bytes(const struct plan *p)
{
	return (double)(p->kind_bytes[PLAN_WEIGHTS] + p->kind_bytes[PLAN_GRADIENTS] +
		p->kind_bytes[PLAN_OPTIMIZER]);
}

/* Megatron's 1.2B shape (Shoeybi et al. 2019): of weights and state a rank has its share, and so of
 * the work; 2 bytes, 4 and 12 a parameter. Norms and positions are few. */
static void test_memory_and_work_are_shared(void **state)
{
	(void)state;
	struct job_spec s = fixture_gpt2(40, 16, 1536, 1024, 51200);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = s.hyper.micro_batch_size = 8;
	struct plan *one = compile(&s, 1, 1, 0, 0);
	for (int tensor = 2; tensor <= RANKS_MAX; tensor *= 2) {
		struct plan *p = compile(&s, tensor, 1, 0, tensor - 1);
		double state_share = state_bytes(p) * tensor / state_bytes(one);
		double work = p->flops_per_step * tensor / one->flops_per_step;
		if (fabs(state_share - 1) > 0.03 || fabs(work - 1) > 1e-6)
			fail_msg("tensor %d: %.4g of the state, %.6g of the work", tensor, state_share, work);
		assert_int_equal(p->parameter_count, one->parameter_count);
		plan_destroy(p);
	}
	plan_destroy(one);
}

/* With sequence parallelism a layer without recomputation keeps about 34 sbh bytes a layer of what
 * one rank has, of which norms' inputs are cut too: activations shrink by nearly the ranks. */
static void test_activations_are_shared(void **state)
{
	(void)state;
	struct job_spec s = fixture_gpt2(24, 16, 2048, 1024, 51200);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = s.hyper.micro_batch_size = 4;
	s.checkpointing = SPEC_SELECTIVE;
	struct plan *one = compile(&s, 1, 1, 0, 0), *p = compile(&s, 8, 1, 0, 7);
	double whole = (double)one->total_bytes - state_bytes(one);
	double rank = (double)p->total_bytes - state_bytes(p);
	if (rank * 8 > 1.6 * whole)
		fail_msg("a rank of 8 keeps %.4g bytes beside its state, one rank %.4g", rank, whole);
	plan_destroy(one);
	plan_destroy(p);
}

/* Korthikanti et al. 2022: a layer has four all-gathers and four reduce-scatters of the rows, and
 * one all-gather more for each module's input that is made again for the gradient of its weight. */
static void test_calls_of_a_layer(void **state)
{
	(void)state;
	enum { LAYERS = 6, C = 64, T = 32, RANKS = 4 };
	static const struct {
		enum spec_checkpointing keep;
		int gathers, scatters;
	} of[] = { { SPEC_KEEP_ALL, 4, 4 }, { SPEC_SELECTIVE, 6, 4 }, { SPEC_FULL, 6, 5 } };
	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct job_spec s = fixture_llama(LAYERS, 4, 4, C, 96, T, 512);
		s.hyper.batch_size = s.hyper.micro_batch_size = 2;
		s.checkpointing = of[i].keep;
		struct plan *p = compile(&s, RANKS, 1, 0, 1);
		int gathers = 0, scatters = 0;
		for (int k = 0; k < p->op_count; k++) {
			const struct plan_op *op = &p->ops[k];
			bool layer = strstr(op->name, "layers.") != NULL && op->axis == PLAN_AXIS_TENSOR;
			gathers += layer && op->kind == PLAN_OP_ALL_GATHER;
			scatters += layer && op->kind == PLAN_OP_REDUCE_SCATTER;
			if (layer && op->kind != PLAN_OP_WAIT)
				assert_true(op->wire_bytes == (RANKS - 1.0) / RANKS * 2 * T * C * 4);
		}
		assert_int_equal(gathers, LAYERS * of[i].gathers);
		assert_int_equal(scatters, LAYERS * of[i].scatters);
		plan_destroy(p);
	}
}

static void test_refusals(void **state)
{
	(void)state;
	struct job_spec gpt2 = fixture_gpt2(2, 6, 48, 16, 7),
					llama = fixture_llama(2, 8, 2, 32, 50, 16, 256);
	struct job_spec odd = fixture_gpt2(2, 2, 32, 15, 256);
	odd.hyper.batch_size = odd.hyper.micro_batch_size = 1;
	struct job_spec few = fixture_gpt2(2, 8, 64, 16, 7);
	const struct {
		struct job_spec s;
		int tensor;
		const char *says;
	} bad[] = {
		{ gpt2, 4, "the number of heads (6)" },
		{ llama, 4, "the number of key-value heads (2)" },
		{ llama, 2, NULL },
		{ odd, 2, "the tokens of a micro-batch (15)" },
		{ few, 8, "the vocabulary has only 7 tokens" },
		{ fixture_mlp(), 2, "only layers of language models" },
		{ fixture_dlrm(), 2, "only layers of language models" },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct job_spec s = bad[i].s;
		struct plan *p = NULL;
		s.data.tokenizer = SPEC_TOKENIZER_NONE; /* bytes need a larger vocabulary */
		s.parallel = (struct spec_parallel){ .data = 1, .tensor = bad[i].tensor };
		int rc = plan_compile_rank(&s, NULL, 0, &p, &err);
		if (bad[i].says == NULL) {
			assert_int_equal(rc, 0);
			plan_destroy(p);
			continue;
		}
		assert_int_equal(rc, ERR_INVALID_VALUE);
		assert_string_equal(err.param, "$.parallelism.tensor");
		if (strstr(err.message, bad[i].says) == NULL)
			fail_msg("case %zu: \"%s\"", i, err.message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_element_is_somebodys),
		cmocka_unit_test(test_heads_are_cut),
		cmocka_unit_test(test_memory_and_work_are_shared),
		cmocka_unit_test(test_activations_are_shared),
		cmocka_unit_test(test_calls_of_a_layer),
		cmocka_unit_test(test_refusals),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
