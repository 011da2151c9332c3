/* SPDX-License-Identifier: Apache-2.0
 * Operations that may write a weight's gradient instead of adding to it: the bits of adding to
 * zeros, whatever was there. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/workspace.h"

static void fill_bytes(struct ops_vec *x, int byte)
{
	memset(x->p, byte, (size_t)x->count * sizeof(float));
}

static void test_linear(void **state)
{
	enum { M = 37, K = 50, N = 70 };
	for (int transposed = 0; transposed < 2; transposed++) {
		struct ops_vec x = ops_random(ops_type, M * K, 1), dy = ops_random(ops_type, M * N, 1);
		struct ops_vec zeros = ops_new(PLAN_F32, K * N), any = ops_new(PLAN_F32, K * N);
		struct backend_linear_backward_weight d = { .m = M,
			.k = K,
			.n = N,
			.ldx = K,
			.lddy = N,
			.transposed = transposed,
			.alpha = 0.5f,
			.x = x.p,
			.dy = dy.p,
			.dw = zeros.p,
			.ws = ops_workspace(gemm_workspace_bytes(K, N, M)) };
		ops->linear_backward_weight(&d);
		fill_bytes(&any, 0xff);
		d.dw = any.p;
		d.overwrite = true;
		ops->linear_backward_weight(&d);
		assert_memory_equal(any.p, zeros.p, K * N * sizeof(float));
	}
}

/* Rows of the first and the last chunk have no labels; or none has. */
static void classifier_case(bool labelled)
{
	enum { ROWS = 40, C = 24, V = 50, CHUNK = 8 };
	struct ops_vec x = ops_random(ops_type, ROWS * C, 1), w = ops_random(ops_type, V * C, 1);
	struct ops_vec loss = ops_new(PLAN_F32, ROWS), hit = ops_new(PLAN_F32, ROWS);
	struct ops_vec dx = ops_new(ops_type, ROWS * C);
	struct ops_vec zeros = ops_new(PLAN_F32, V * C), any = ops_new(PLAN_F32, V * C);
	int32_t labels[ROWS];
	for (int i = 0; i < ROWS; i++)
		labels[i] = labelled && i >= CHUNK && i < ROWS - CHUNK ? (int32_t)ops_pick(0, V - 1) : -1;
	int64_t a = gemm_workspace_bytes(CHUNK, V, C), b = gemm_workspace_bytes(V, C, CHUNK);
	struct backend_classifier d = { .rows = ROWS,
		.c = C,
		.v = V,
		.chunk = CHUNK,
		.w_type = ops_type,
		.x = x.p,
		.w = w.p,
		.labels = labels,
		.row_loss = loss.p,
		.row_hit = hit.p,
		.dx = dx.p,
		.dw = zeros.p,
		.scale = 2,
		.ws = ops_workspace(
			workspace_classifier(CHUNK, V, plan_type_bytes(ops_type), a > b ? a : b)) };
	ops->classifier(&d);
	fill_bytes(&any, 0xff);
	d.dw = any.p;
	d.overwrite = true;
	ops->classifier(&d);
	assert_memory_equal(any.p, zeros.p, V * C * sizeof(float));
	fill_bytes(&any, 0x11);
	fill_bytes(&zeros, 0x11);
	d.scale = 0; /* evaluation touches no gradient */
	ops->classifier(&d);
	assert_memory_equal(any.p, zeros.p, V * C * sizeof(float));
}

static void test_classifier(void **state)
{
	classifier_case(true);
	classifier_case(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_linear),
		OPS_TEST(test_classifier),
	};
	return ops_main(NULL, 0, tests, ARRAY_LEN(tests));
}
