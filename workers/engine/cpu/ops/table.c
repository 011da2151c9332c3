/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend's table for one instruction set. */
#include "workers/engine/cpu/isa.h"

#include "workers/engine/cpu/cpu_private.h"

#define CPU_STR2(x) #x
#define CPU_STR(x) CPU_STR2(x)

const struct cpu_table CPU_FN(cpu_table) = {
	.backend = {
		.name = "cpu-" CPU_STR(CPU_ISA),
		.open = cpu_open,
		.close = cpu_close,
		.map = cpu_memory_map,
		.memory_bytes = cpu_memory_bytes,
		.enter = cpu_enter,
		.linear_create = cpu_linear_create,
		.linear_run = cpu_linear_run,
		.linear_destroy = cpu_linear_destroy,
		.linear_backward_data = cpu_linear_backward_data,
		.linear_backward_weight = cpu_linear_backward_weight,
		.conv_create = cpu_conv_create,
		.conv_run = cpu_conv_run,
		.conv_destroy = cpu_conv_destroy,
		.embedding = CPU_FN(embedding_forward),
		.embedding_backward = CPU_FN(embedding_backward),
		.layernorm = CPU_FN(layernorm_forward),
		.layernorm_backward = CPU_FN(layernorm_backward),
		.attention = CPU_FN(attention_forward),
		.attention_backward = CPU_FN(attention_backward),
		.gelu = CPU_FN(gelu_forward),
		.gelu_backward = CPU_FN(gelu_backward),
		.relu_backward = CPU_FN(relu_backward),
		.add = CPU_FN(add_into),
		.maxpool = CPU_FN(maxpool_forward),
		.maxpool_backward = CPU_FN(maxpool_backward),
		.dropout = CPU_FN(dropout_apply),
		.softmax_xent = CPU_FN(softmax_xent),
		.mse = CPU_FN(mse_loss),
		.sum = CPU_FN(reduce_sum),
		.square_sum = CPU_FN(reduce_square_sum),
		.fill = CPU_FN(fill_value),
		.adamw = CPU_FN(adamw_update),
		.sgd = CPU_FN(sgd_update),
	},
	.helpers = {
		.relu_bias = CPU_FN(relu_bias),
		.add = CPU_FN(add_into),
		.column_sum = CPU_FN(column_sum),
	},
};
