/* SPDX-License-Identifier: Apache-2.0
 * Words of the plan's enumerations, for people and JSON, and the bytes of its types. Called by
 * everybody. */
#include "workers/plan/plan.h"

int64_t plan_type_bytes(enum plan_type type)
{
	static const int64_t bytes[PLAN_TYPE_COUNT] = {
		[PLAN_F32] = 4, [PLAN_BF16] = 2, [PLAN_F16] = 2, [PLAN_I32] = 4, [PLAN_U8] = 1
	};
	return (unsigned)type < PLAN_TYPE_COUNT ? bytes[type] : 0;
}

static const char *word_of(const char *const *words, unsigned count, unsigned i)
{
	return i < count && words[i] ? words[i] : "unknown";
}

const char *plan_type_word(enum plan_type type)
{
	static const char *const word[PLAN_TYPE_COUNT] = { [PLAN_F32] = "fp32",
		[PLAN_BF16] = "bf16",
		[PLAN_F16] = "fp16",
		[PLAN_I32] = "int32",
		[PLAN_U8] = "uint8" };
	return word_of(word, ARRAY_LEN(word), (unsigned)type);
}

const char *plan_kind_word(enum plan_buffer_kind kind)
{
	static const char *const word[PLAN_KIND_COUNT] = { [PLAN_WEIGHTS] = "weights",
		[PLAN_GRADIENTS] = "gradients",
		[PLAN_OPTIMIZER] = "optimizer",
		[PLAN_ACTIVATIONS] = "activations",
		[PLAN_WORKSPACE] = "workspace",
		[PLAN_DATA] = "data" };
	return word_of(word, ARRAY_LEN(word), (unsigned)kind);
}

const char *plan_phase_word(enum plan_phase phase)
{
	static const char *const word[] = {
		[PLAN_FORWARD] = "forward", [PLAN_BACKWARD] = "backward", [PLAN_OPTIMIZE] = "optimize"
	};
	return word_of(word, ARRAY_LEN(word), (unsigned)phase);
}

const char *plan_role_word(enum plan_role role)
{
	static const char *const word[] = {
		[PLAN_TRAINED] = "trained", [PLAN_FROZEN] = "frozen", [PLAN_STATE] = "state"
	};
	return word_of(word, ARRAY_LEN(word), (unsigned)role);
}

const char *plan_op_word(enum plan_op_kind kind)
{
	static const char *const word[PLAN_OP_COUNT] = {
		[PLAN_OP_CAST] = "cast",
		[PLAN_OP_EMBEDDING] = "embedding",
		[PLAN_OP_EMBEDDING_BACKWARD] = "embedding_backward",
		[PLAN_OP_LAYERNORM] = "layernorm",
		[PLAN_OP_LAYERNORM_BACKWARD] = "layernorm_backward",
		[PLAN_OP_RMSNORM] = "rmsnorm",
		[PLAN_OP_RMSNORM_BACKWARD] = "rmsnorm_backward",
		[PLAN_OP_ROPE] = "rope",
		[PLAN_OP_ATTENTION] = "attention",
		[PLAN_OP_ATTENTION_BACKWARD] = "attention_backward",
		[PLAN_OP_SWIGLU] = "swiglu",
		[PLAN_OP_SWIGLU_BACKWARD] = "swiglu_backward",
		[PLAN_OP_CLASSIFIER] = "classifier",
		[PLAN_OP_XENT_STATISTICS] = "xent_statistics",
		[PLAN_OP_XENT_SHARED] = "xent_shared",
		[PLAN_OP_LINEAR] = "linear",
		[PLAN_OP_LINEAR_BACKWARD_DATA] = "linear_backward_data",
		[PLAN_OP_LINEAR_BACKWARD_WEIGHT] = "linear_backward_weight",
		[PLAN_OP_GELU] = "gelu",
		[PLAN_OP_RELU_BACKWARD] = "relu_backward",
		[PLAN_OP_ADD] = "add",
		[PLAN_OP_DROPOUT] = "dropout",
		[PLAN_OP_DROPOUT_BACKWARD] = "dropout_backward",
		[PLAN_OP_CONV] = "conv",
		[PLAN_OP_CONV_BACKWARD_DATA] = "conv_backward_data",
		[PLAN_OP_CONV_BACKWARD_WEIGHT] = "conv_backward_weight",
		[PLAN_OP_BATCHNORM] = "batchnorm",
		[PLAN_OP_BATCHNORM_BACKWARD] = "batchnorm_backward",
		[PLAN_OP_MAXPOOL] = "maxpool",
		[PLAN_OP_MAXPOOL_BACKWARD] = "maxpool_backward",
		[PLAN_OP_AVGPOOL] = "avgpool",
		[PLAN_OP_AVGPOOL_BACKWARD] = "avgpool_backward",
		[PLAN_OP_EMBEDDING_BAG] = "embedding_bag",
		[PLAN_OP_INTERACTION] = "interaction",
		[PLAN_OP_INTERACTION_BACKWARD] = "interaction_backward",
		[PLAN_OP_SPARSE_STORE] = "sparse_store",
		[PLAN_OP_PIECE_IDS] = "piece_ids",
		[PLAN_OP_PIECE_SUM] = "piece_sum",
		[PLAN_OP_PIECE_GATHER] = "piece_gather",
		[PLAN_OP_PIECE_SPREAD] = "piece_spread",
		[PLAN_OP_PIECE_STORE] = "piece_store",
		[PLAN_OP_SOFTMAX_XENT] = "softmax_xent",
		[PLAN_OP_MSE] = "mse",
		[PLAN_OP_BCE] = "bce",
		[PLAN_OP_GRADIENT_NORM] = "gradient_norm",
		[PLAN_OP_SPARSE_REDUCE] = "sparse_reduce",
		[PLAN_OP_ADAMW] = "adamw",
		[PLAN_OP_SGD] = "sgd",
		[PLAN_OP_SPARSE_ADAMW] = "sparse_adamw",
		[PLAN_OP_SPARSE_SGD] = "sparse_sgd",
		[PLAN_OP_ROUND] = "round",
		[PLAN_OP_AVERAGE] = "average",
		[PLAN_OP_ALL_REDUCE] = "all_reduce",
		[PLAN_OP_REDUCE_SCATTER] = "reduce_scatter",
		[PLAN_OP_ALL_GATHER] = "all_gather",
		[PLAN_OP_ALL_TO_ALL] = "all_to_all",
		[PLAN_OP_SEND] = "send",
		[PLAN_OP_RECEIVE] = "receive",
		[PLAN_OP_WAIT] = "wait",
		[PLAN_OP_ACCUMULATE] = "accumulate",
		[PLAN_OP_CLEAR] = "clear",
		[PLAN_OP_RUNNING] = "running",
		[PLAN_OP_EXCHANGE] = "exchange",
	};
	return word_of(word, ARRAY_LEN(word), (unsigned)kind);
}
