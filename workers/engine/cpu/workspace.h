/* SPDX-License-Identifier: Apache-2.0
 * Bytes of scratch that the operations of cpu/ops need, in terms of the plan's dimensions. The plan
 * repeats these formulas, the operations rely on them, tests give exactly so much. Products and
 * convolutions have theirs in gemm.h. */
#pragma once

#include "core/base/num.h"
#include "workers/plan/plan_op.h"

#include <stdint.h>

enum {
	WORKSPACE_KEYS = 64, /* keys and queries of one block of attention */
	WORKSPACE_LANES = 16,
};

/* PLAN_OP_LAYERNORM_BACKWARD, and PLAN_OP_RMSNORM_BACKWARD without the bias. */
static inline int64_t workspace_norm_backward(int64_t c, int with_bias)
{
	return PLAN_ROW_BLOCKS * c * (with_bias ? 2 : 1) * (int64_t)sizeof(float);
}

/* PLAN_OP_ATTENTION: keys and values of each head in fp32. */
static inline int64_t workspace_attention(int64_t b, int64_t t, int64_t kv_heads, int64_t head_size)
{
	return b * kv_heads * num_round_up(t, WORKSPACE_KEYS) * 2 *
		num_round_up(head_size, WORKSPACE_LANES) * (int64_t)sizeof(float);
}

/* PLAN_OP_ATTENTION_BACKWARD: the queries' gradients in fp32, and one sum for each query. */
static inline int64_t workspace_attention_backward(
	int64_t b, int64_t t, int64_t heads, int64_t head_size)
{
	return b * heads * num_round_up(t, WORKSPACE_KEYS) *
		(num_round_up(head_size, WORKSPACE_LANES) + 1) * (int64_t)sizeof(float);
}

/* PLAN_OP_CLASSIFIER: a chunk's logits in the plan's type, and what the largest of its three
 * products wants (gemm_bytes: of gemm_workspace_bytes for (chunk, v, c), (chunk, c, v) and
 * (v, c, chunk)). */
static inline int64_t workspace_classifier(
	int64_t chunk, int64_t v, int64_t type_bytes, int64_t gemm_bytes)
{
	return num_round_up(chunk * v * type_bytes, PLAN_ALIGN_BYTES) + gemm_bytes;
}

/* PLAN_OP_GRADIENT_NORM; PLAN_OP_EMBEDDING_BACKWARD needs none. */
static inline int64_t workspace_gradient_norm(void)
{
	return PLAN_ROW_BLOCKS * (int64_t)sizeof(double);
}
