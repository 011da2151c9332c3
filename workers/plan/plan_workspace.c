/* SPDX-License-Identifier: Apache-2.0
 * Bytes of scratch of single operations: upper bounds that any backend must do with, for any number
 * of threads. The formulas are the CPU backend's wishes (cpu/gemm.h, cpu/workspace.h), repeated
 * here because a plan knows no device. Called by the builder and the families. */
#include "core/base/num.h"
#include "workers/plan/plan_private.h"

enum {
	PRODUCT_K_BLOCK = 768,
	PRODUCT_K_EXTRA = 1024,
	PRODUCT_COLUMNS_MAX = 256,
	PRODUCT_COLUMN_UNIT = 32,
	PRODUCT_LINE_BYTES = 16,
	PRODUCT_MIN_BYTES = 256 * 1024,
	PRODUCT_MAX_BYTES = 8 * 1024 * 1024,
	ATTENTION_BLOCK = 64, /* queries or keys */
	ATTENTION_LANES = 16,
	SPARSE_LOOKUP_BYTES = 20,
	SPARSE_EXTRA_BYTES = 1024,
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t product(int64_t n, int64_t k)
{
	int64_t columns = least(num_round_up(n, PRODUCT_COLUMN_UNIT), PRODUCT_COLUMNS_MAX);
	int64_t bytes = PRODUCT_LINE_BYTES * (least(k, PRODUCT_K_BLOCK) + PRODUCT_K_EXTRA) * columns +
		PRODUCT_MIN_BYTES;
	return least(bytes, PRODUCT_MAX_BYTES);
}

/* A backend may compute a product or its transpose, so the larger of the two counts. */
int64_t plan_workspace_product(int64_t m, int64_t n, int64_t k)
{
	return most(product(n, k), product(m, k));
}

int64_t plan_workspace_norm_backward(int64_t c, bool with_bias)
{
	return PLAN_ROW_BLOCKS * c * (with_bias ? 2 : 1) * plan_type_bytes(PLAN_F32);
}

int64_t plan_workspace_attention(int64_t b, int64_t t, int64_t kv_heads, int64_t head_size)
{
	return b * kv_heads * num_round_up(t, ATTENTION_BLOCK) * 2 *
		num_round_up(head_size, ATTENTION_LANES) * plan_type_bytes(PLAN_F32);
}

int64_t plan_workspace_attention_backward(int64_t b, int64_t t, int64_t heads, int64_t head_size)
{
	return b * heads * num_round_up(t, ATTENTION_BLOCK) *
		(num_round_up(head_size, ATTENTION_LANES) + 1) * plan_type_bytes(PLAN_F32);
}

/* The chunk's logits, and the largest of its three products. */
int64_t plan_workspace_classifier(int64_t chunk, int64_t v, int64_t c, enum plan_type type)
{
	int64_t logits = num_round_up(chunk * v * plan_type_bytes(type), PLAN_ALIGN_BYTES);
	int64_t products = most(plan_workspace_product(chunk, v, c),
		most(plan_workspace_product(chunk, c, v), plan_workspace_product(v, c, chunk)));
	return logits + products;
}

int64_t plan_workspace_sparse(int64_t lookups)
{
	return lookups * SPARSE_LOOKUP_BYTES + SPARSE_EXTRA_BYTES;
}
