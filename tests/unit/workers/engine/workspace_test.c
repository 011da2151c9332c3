/* SPDX-License-Identifier: Apache-2.0
 * The plan gives each operation the scratch that the backend's headers ask for: the plan may not
 * include them and repeats their formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/workspace.h"
#include "workers/plan/plan.h"

static struct err err;

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* A product or its transpose. */
static int64_t product(int64_t m, int64_t n, int64_t k)
{
	return most(gemm_workspace_bytes(m, n, k), gemm_workspace_bytes(n, m, k));
}

/* What the backend's headers say; -1 = nothing that is checked here. */
static int64_t wanted(const struct plan *p, const struct plan_op *op)
{
	const int64_t *d = op->dim;
	switch (op->kind) {
	case PLAN_OP_LINEAR: return product(d[0], d[2], d[1]);
	case PLAN_OP_LINEAR_BACKWARD_DATA: return product(d[0], d[1], d[2]);
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT: return product(d[1], d[2], d[0]);
	case PLAN_OP_LAYERNORM_BACKWARD: return workspace_norm_backward(d[1], 1);
	case PLAN_OP_RMSNORM_BACKWARD: return workspace_norm_backward(d[1], 0);
	case PLAN_OP_ATTENTION: return workspace_attention(d[0], d[1], d[3], d[4]);
	case PLAN_OP_ATTENTION_BACKWARD: return workspace_attention_backward(d[0], d[1], d[2], d[4]);
	case PLAN_OP_CLASSIFIER:
		return workspace_classifier(d[3], d[2], plan_type_bytes(p->type),
			most(product(d[3], d[2], d[1]), product(d[2], d[1], d[3])));
	case PLAN_OP_GRADIENT_NORM: return workspace_gradient_norm();
	default: return -1;
	}
}

static struct job_spec spec_of(enum spec_family family, int64_t c, int64_t t, int64_t v)
{
	struct job_spec s = { .task = SPEC_LANGUAGE_MODEL, .device_count = 1 };
	s.model = (struct spec_model){ .family = family,
		.n_layer = 2,
		.n_head = c > 1024 ? 32 : 4,
		.n_kv_head = family == SPEC_LLAMA ? 2 : 0,
		.n_embd = c,
		.n_inner = 3 * c,
		.n_positions = t,
		.vocab_size = v,
		.norm_eps = 1e-5,
		.rope_theta = 10000 };
	s.data.sequence_length = t;
	s.hyper = (struct spec_hyper){ .epochs = 1, .batch_size = 3 };
	return s;
}

static void test_scratch(void **state)
{
	static const int64_t shapes[][3] = { { 8, 5, 256 }, { 768, 64, 50257 }, { 1600, 1024, 50257 },
		{ 8192, 128, 32000 } };
	for (size_t i = 0; i < ARRAY_LEN(shapes) * 4; i++) {
		const int64_t *shape = shapes[i / 4];
		struct job_spec s = spec_of(i & 1 ? SPEC_LLAMA : SPEC_GPT2, shape[0], shape[1], shape[2]);
		s.precision = i & 2 ? SPEC_BF16 : SPEC_FP32;
		if (i & 2)
			s.lora = (struct spec_lora){
				.rank = 8, .alpha = 8, .target = { "c_attn" }, .target_count = i & 1 ? 0 : 1
			};
		if (i & 1)
			s.lora.rank = 0;
		struct plan *p = NULL;
		if (plan_compile(&s, NULL, &p, &err))
			fail_msg("%s", err.message);
		int checked = 0;
		for (int o = 0; o < p->op_count; o++) {
			const struct plan_op *op = &p->ops[o];
			int64_t want = wanted(p, op);
			int64_t have = op->workspace < 0 ? 0 : p->buffers[op->workspace].bytes;
			if (want >= 0 && have != want)
				fail_msg("%s %s: the plan gives %lld bytes, the backend asks for %lld", op->name,
					plan_op_word(op->kind), (long long)have, (long long)want);
			checked += want >= 0;
		}
		assert_true(checked > 20);
		plan_destroy(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_scratch) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
