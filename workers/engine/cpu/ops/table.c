/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend's table for one instruction set and activation type. Chosen by cpu.c. */
#include "workers/engine/cpu/cpu_private.h"
#include "workers/engine/cpu/isa.h"

#define CPU_STR2(x) #x
#define CPU_STR(x) CPU_STR2(x)
#define TYPE_f32 PLAN_F32
#define TYPE_bf16 PLAN_BF16
#define TYPE_f16 PLAN_F16

extern const struct backend CPU_FN(cpu_table);
const struct backend CPU_FN(cpu_table) = {
	.name = "cpu-" CPU_STR(CPU_ISA),
	.act_type = CPU_JOIN(TYPE, CPU_TYPE),
	.open = cpu_open,
	.close = cpu_close,
	.map = cpu_memory_map,
	.memory_bytes = cpu_memory_bytes,
	.enter = cpu_enter,
	.from_f32 = CPU_FN(from_f32),
	.to_f32 = CPU_FN(to_f32),
	.linear = CPU_FN(linear_forward),
	.linear_backward_data = CPU_FN(linear_backward_data),
	.linear_backward_weight = CPU_FN(linear_backward_weight),
	.conv = CPU_FN(conv_forward),
	.conv_backward_data = CPU_FN(conv_backward_data),
	.conv_backward_weight = CPU_FN(conv_backward_weight),
	.classifier = CPU_FN(classifier_run),
	.embedding = CPU_FN(embedding_forward),
	.embedding_backward = CPU_FN(embedding_backward),
	.layernorm = CPU_FN(layernorm_forward),
	.layernorm_backward = CPU_FN(layernorm_backward),
	.rmsnorm = CPU_FN(rmsnorm_forward),
	.rmsnorm_backward = CPU_FN(rmsnorm_backward),
	.batchnorm = CPU_FN(batchnorm_forward),
	.batchnorm_backward = CPU_FN(batchnorm_backward),
	.rope = CPU_FN(rope_apply),
	.rope_table = CPU_PLAIN(rope_table),
	.attention = CPU_FN(attention_forward),
	.attention_backward = CPU_FN(attention_backward),
	.gelu = CPU_FN(gelu_forward),
	.swiglu = CPU_FN(swiglu_forward),
	.swiglu_backward = CPU_FN(swiglu_backward),
	.relu_backward = CPU_FN(relu_backward),
	.add = CPU_FN(add_into),
	.dropout = CPU_FN(dropout_apply),
	.maxpool = CPU_FN(maxpool_forward),
	.maxpool_backward = CPU_FN(maxpool_backward),
	.avgpool = CPU_FN(avgpool_forward),
	.avgpool_backward = CPU_FN(avgpool_backward),
	.embedding_bag = CPU_FN(bag_forward),
	.interaction = CPU_FN(interaction_forward),
	.interaction_backward = CPU_FN(interaction_backward),
	.sparse_store = CPU_FN(sparse_store),
	.piece_ids = CPU_FN(piece_ids),
	.piece_gather = CPU_FN(piece_gather),
	.piece_spread = CPU_FN(piece_spread),
	.softmax_xent = CPU_FN(softmax_xent),
	.xent_statistics = CPU_FN(xent_statistics),
	.xent_shared = CPU_FN(xent_shared),
	.mse = CPU_FN(mse_loss),
	.bce = CPU_FN(bce_loss),
	.sum = CPU_PLAIN(reduce_sum),
	.square_sum = CPU_PLAIN(reduce_square_sum),
	.fill = CPU_PLAIN(fill_value),
	.sparse_reduce = CPU_PLAIN(sparse_reduce),
	.adamw = CPU_FN(adamw_update),
	.sgd = CPU_FN(sgd_update),
	.sparse_adamw = CPU_PLAIN(sparse_adamw),
	.sparse_sgd = CPU_PLAIN(sparse_sgd),
	.add_f32 = CPU_PLAIN(accumulate),
	.average = CPU_PLAIN(average_update),
};
