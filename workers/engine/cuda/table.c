/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend's tables, one for each activation type. Called by the trainer through
 * engine_backend_cuda, and by tests. */
#include "workers/engine/cuda/cuda.h"
#include "workers/engine/cuda/device.h"
#include "workers/engine/engine.h"

#include <pthread.h>

/* Functions of backend.h that know activations; each is exported for every type (CUDA_EXPORT). */
#define TYPED(X, t)              \
	X(cast, t)                   \
	X(linear, t)                 \
	X(linear_backward_data, t)   \
	X(linear_backward_weight, t) \
	X(conv, t)                   \
	X(conv_backward_data, t)     \
	X(conv_backward_weight, t)   \
	X(classifier, t)             \
	X(embedding, t)              \
	X(embedding_backward, t)     \
	X(layernorm, t)              \
	X(layernorm_backward, t)     \
	X(rmsnorm, t)                \
	X(rmsnorm_backward, t)       \
	X(batchnorm, t)              \
	X(batchnorm_backward, t)     \
	X(rope, t)                   \
	X(attention, t)              \
	X(attention_backward, t)     \
	X(gelu, t)                   \
	X(swiglu, t)                 \
	X(swiglu_backward, t)        \
	X(relu_backward, t)          \
	X(add, t)                    \
	X(dropout, t)                \
	X(maxpool, t)                \
	X(maxpool_backward, t)       \
	X(avgpool, t)                \
	X(avgpool_backward, t)       \
	X(embedding_bag, t)          \
	X(interaction, t)            \
	X(interaction_backward, t)   \
	X(sparse_store, t)           \
	X(piece_gather, t)           \
	X(piece_spread, t)           \
	X(softmax_xent, t)           \
	X(xent_statistics, t)        \
	X(xent_shared, t)            \
	X(mse, t)                    \
	X(bce, t)                    \
	X(adamw, t)                  \
	X(sgd, t)                    \
	X(round_random, t)
/* Those over fp32 and integers alone. */
#define PLAIN(X)     \
	X(rope_table)    \
	X(piece_ids)     \
	X(sum)           \
	X(square_sum)    \
	X(fill)          \
	X(sparse_reduce) \
	X(sparse_adamw)  \
	X(sparse_sgd)    \
	X(add_f32)       \
	X(average)

#define TYPE_OF(name) __typeof__(*((struct backend *)0)->name)
#define DECLARE_TYPED(name, t) extern TYPE_OF(name) name##_cuda_##t;
#define DECLARE_PLAIN(name) extern TYPE_OF(name) name##_cuda;
#define SET_TYPED(name, t) .name = name##_cuda_##t,
#define SET_PLAIN(name) .name = name##_cuda,

TYPED(DECLARE_TYPED, f32)
TYPED(DECLARE_TYPED, bf16)
TYPED(DECLARE_TYPED, f16)
PLAIN(DECLARE_PLAIN)

#define TABLE(type_of_plan, t)                                                         \
	{                                                                                  \
		.name = "cuda", .act_type = (type_of_plan), .apart = true, .open = cuda_open,  \
		.close = cuda_close, .map = cuda_map, .memory_bytes = cuda_memory_bytes,       \
		.enter = cuda_enter, .finish = cuda_finish, .group_device = cuda_group_device, \
		.allow_tf32 = cuda_allow_tf32, .put = cuda_put_of, .put_wait = cuda_put_wait,  \
		.get = cuda_get, .copy = cuda_copy, .put_ahead = cuda_put_ahead,               \
		.take_ahead = cuda_take_ahead, .replay = cuda_replay, .record = cuda_record,   \
		.recorded = cuda_recorded, TYPED(SET_TYPED, t) PLAIN(SET_PLAIN)                \
	}

static struct backend tables[] = {
	TABLE(PLAN_F32, f32),
	TABLE(PLAN_BF16, bf16),
	TABLE(PLAN_F16, f16),
};

/* Conversions in the host's memory are the host's. */
static void add_conversions(void)
{
	for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
		const struct backend *cpu = engine_backend_cpu(tables[i].act_type);
		tables[i].from_f32 = cpu->from_f32;
		tables[i].to_f32 = cpu->to_f32;
		tables[i].prepare_thread = cpu->prepare_thread;
	}
}

const struct backend *cuda_table(enum plan_type type)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, add_conversions);
	for (size_t i = 0; i < ARRAY_LEN(tables); i++)
		if (tables[i].act_type == type)
			return &tables[i];
	return NULL;
}

const struct backend *engine_backend_cuda(enum plan_type type)
{
	return cuda_table(type);
}
