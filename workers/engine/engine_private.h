/* SPDX-License-Identifier: Apache-2.0
 * The engine's inside, shared by the engine_*.c files and their unit tests. */
#pragma once

#include "workers/engine/backend.h"
#include "workers/engine/engine.h"
#include "workers/engine/loader.h"
#include "workers/engine/mesh.h"

/* fp16: the loss is multiplied by a scale so that small gradients survive. It doubles after so many
 * steps in a row without an overflow, and halves at each overflow. Powers of two: scaling and
 * unscaling round nothing. */
#define ENGINE_SCALE_FIRST 65536.0
#define ENGINE_SCALE_MAX 16777216.0
#define ENGINE_SCALE_MIN 1.0
enum { ENGINE_SCALE_STEPS = 2000, ENGINE_NOTHING = -1 };

/* Of running statistics; torch.nn.BatchNorm2d's default, as it is in fp32. */
#define ENGINE_RUNNING_MOMENTUM ((double)0.1f)

typedef void (*engine_exec_fn)(struct engine *e, const struct plan_op *op);

enum engine_part { ENGINE_EXACT, ENGINE_MOMENT1, ENGINE_MOMENT2, ENGINE_MEAN, ENGINE_PART_COUNT };
/* The elements [begin, begin + count) of a parameter (or what belongs to it) that this rank keeps.
 * EXACT: the master of what is trained. buffer -1: there is nothing of the kind. */
struct engine_piece {
	int buffer;
	int64_t at; /* elements from the buffer's start */
	int64_t begin, count;
};

/* One row of the list of tensors. */
struct engine_slot {
	enum engine_tensor_kind kind;
	const char *prefix;
	int param, number;
	enum engine_part part;
	struct engine_piece piece;
	/* Of a device apart: where the host's copy lies, and whether it is what the device has. */
	int64_t host_at;
	bool host_is_fresh;
};

/* A call that nobody has waited for; number 0 = none. */
struct engine_call {
	struct comm *group;
	int64_t number;
};

struct engine {
	const struct job_spec *spec;
	const struct plan *plan;
	const struct backend *backend;
	struct backend_ctx *ctx;
	char *arena; /* the device's part of the plan's bytes */
	char *ahead; /* the host's, behind it */
	engine_exec_fn run[PLAN_OP_COUNT];
	int update_begin; /* first operation after the gradient's norm */
	/* Flat parameters by weight decay; with buckets, those of bucket k are segments
	 * [bucket_segments[k], bucket_segments[k + 1]). */
	struct backend_segment *segments;
	int segment_count;
	int *bucket_segments;
	struct engine_slot *slots;
	int slot_count;
	/* The running statistics before the step, for a try that is thrown away; behind them room for
	 * as many. */
	float *running;
	/* language: one row of the head's input, twice; click_through: scores and labels of a batch */
	float *scratch;

	const struct data *training, *validation;
	struct loader *loader;
	uint64_t *keys; /* click_through: score and label of each validation sample */
	struct engine_state state;
	struct mesh *mesh;         /* NULL: alone */
	struct engine_call *calls; /* by the plan's ticket */
	double *numbers;           /* EXCHANGE: own ones (the norm's square, losses), then all ranks' */
	double *squares;           /* of the step's parts of the gradient, as far as they are known */
	int square_count;
	char *host; /* of a device apart: the host's copies (engine_host.c) */
	struct data_batch host_batch;
	int64_t ahead_position; /* of the micro-batch that is on its way; ENGINE_NOTHING */
	struct err failure;     /* of a call between ranks: nothing runs any more; code 0 = none */
	engine_trace_fn trace;
	void *trace_ctx;

	/* Of the pass that is running. */
	bool train;
	float row_scale;        /* of each row's gradient; 0 in evaluation */
	int64_t micro;          /* index of the micro-batch in its step, or round of evaluation */
	int64_t micro_position; /* its stream position: key of dropout */
	int64_t wait_us;
	double grad_square; /* sum of the squares of all gradients, scaled as they are */
	double loss_sum;    /* of the rows of the batch */
	float grad_scale;   /* clipping and unscaling */
	float learning_rate;
	int64_t reading_step; /* that reads the weights which are rounded now: key of PLAN_OP_ROUND */
};

/* How far the place of the present micro-batch is from the first. */
static inline int64_t engine_slot_bytes(const struct engine *e, const struct plan_buffer *b)
{
	return b->slots > 1 ? e->micro % b->slots * b->slot_stride : 0;
}
/* Address of a buffer, NULL for -1: of the place of e->micro, where micro-batches have one each. */
void *engine_buffer(const struct engine *e, int buffer);
/* The buffers of a micro-batch, or of what is read ahead. */
struct data_batch engine_batch(const struct engine *e, const struct plan_inputs *in);
static inline bool engine_is_language(const struct engine *e)
{
	return e->plan->family == SPEC_GPT2 || e->plan->family == SPEC_LLAMA;
}

/* engine.c: waits for the device; its failure is the engine's. */
void engine_finish(struct engine *e);
/* The other ranks are there, and no call between ranks has failed. */
int engine_check_joined(const struct engine *e, struct err *err) must_check;

/* engine_exec.c: the table, and running ops [begin, end). */
int engine_exec_prepare(struct engine *e, struct err *err) must_check;
void engine_exec(struct engine *e, int begin, int end);
void *engine_exec_operand(const struct engine *e, const struct plan_op *op, int i);
enum plan_type engine_exec_type(const struct engine *e, const struct plan_op *op, int i);
struct backend_workspace engine_exec_workspace(const struct engine *e, const struct plan_op *op);
/* The function of a kind, NULL where another file has it. */
engine_exec_fn engine_exec_comm(enum plan_op_kind kind);
engine_exec_fn engine_exec_vision(enum plan_op_kind kind);
engine_exec_fn engine_exec_piece(enum plan_op_kind kind);
engine_exec_fn engine_exec_optimize(enum plan_op_kind kind);
int engine_exec_optimize_prepare(struct engine *e, struct err *err) must_check;

/* engine_exec_comm.c. The first failure of a call between ranks, and nothing more runs. */
int engine_exec_failed(const struct engine *e, struct err *err) must_check;
/* Keeps the first failure. */
void engine_exec_fail(struct engine *e, int rc, const struct err *err);
/* Waits for all calls: a pass that ends early leaves some. */
void engine_exec_settle(struct engine *e);
/* After a failure a group may still move what was begun: ends it, before the memory goes. */
void engine_exec_leave(struct engine *e);
/* Stages 1 and 2: brings the others' parts of each bucket's weights. */
void engine_exec_return_weights(struct engine *e);
/* The micro-batch's place among those of all data ranks. */
static inline int64_t engine_micro_index(const struct engine *e, int64_t micro)
{
	return micro * e->plan->mesh.data + e->plan->mesh.data_rank;
}

/* engine_host.c: what the host sees of a device whose memory is apart. Elsewhere it is the memory
 * itself, and nothing is copied. */
int engine_host_prepare(struct engine *e, struct err *err) must_check;
/* Where the host reads and writes the tensor: as the device has it, where that is not known yet. */
void *engine_host_tensor(struct engine *e, int slot);
/* The same, for a tensor that is about to be written as a whole. */
void *engine_host_tensor_anew(struct engine *e, int slot);
/* What the host may have written goes to the device. */
void engine_host_push(struct engine *e);
/* The device changes its tensors: the host's copies are old. */
void engine_host_forget(struct engine *e);
/* A micro-batch for the host to write, and its way into the inputs of e->micro. */
struct data_batch engine_host_batch(const struct engine *e);
void engine_host_put_batch(struct engine *e, const struct data_batch *b);
/* The same way in two, for one that was read ahead on a device apart: beside the operations to
 * where it arrives, and from there into the inputs of e->micro. */
void engine_host_put_ahead(struct engine *e, const struct data_batch *b);
void engine_host_take_ahead(struct engine *e);

/* engine_init.c: the masters into what that step's operations read, here and on the ranks that take
 * the weights from here. */
void engine_round_weights(struct engine *e, int64_t step);

/* engine_tensor.c */
int engine_tensor_prepare(struct engine *e, struct err *err) must_check;
struct engine_piece engine_piece_of(const struct plan *p, int param, enum engine_part part);
/* On the device. */
void *engine_piece_data(const struct engine *e, const struct engine_piece *piece);
/* The buffer that holds the exact values of a parameter that is whole. */
int engine_tensor_exact(const struct plan_param *p);
/* The average is the weights: when they are fresh, and before the first step, since they may have
 * come from a file since. */
void engine_average_begin(struct engine *e);

/* engine_step.c. One micro-batch of training: takes it from the loader, forward, backward;
 * gradients add up. The sum of its row losses is among e->numbers when the device has finished. */
void engine_step_micro(struct engine *e, int64_t micro, float row_scale);
/* Waits for the device, and adds up what the parts of the gradient have given. */
void engine_step_settle(struct engine *e);
/* Copies the running statistics out, or back. */
void engine_running_copy(struct engine *e, float *kept, bool back);
/* The sum over the rows of a micro-batch; *ret is there when the device has finished. */
void engine_step_row_sum(const struct engine *e, int buffer, double *ret);

/* Where a micro-batch's own samples begin in the stream, which is its key of dropout too. */
static inline int64_t engine_micro_position(const struct engine *e, int64_t micro)
{
	return e->state.position + engine_micro_index(e, micro) * e->plan->micro_batch;
}
/* Copies a micro-batch from the loader into the inputs of e->micro. */
void engine_step_take(struct engine *e, int64_t position);
/* Called when the device has work: the micro-batch that will be taken next sets off, where the
 * device's memory is apart. */
void engine_step_foresee(struct engine *e, int64_t position);

/* engine_replay.c: runs ops [begin, end), the forward or the backward pass of e->micro. */
void engine_replay(struct engine *e, int begin, int end);

/* engine_pipeline.c. All micro-batches of a step, by the plan's schedule; fills e->numbers with the
 * losses that this rank knows. */
void engine_pipeline_step(struct engine *e, float row_scale);
/* Forward passes of count micro-batches of evaluation. read puts one into the inputs of e->micro,
 * done is called with its losses in place, on the last stage alone. */
struct engine_pass {
	void (*read)(void *ctx, int64_t index);
	void (*done)(void *ctx, int64_t index);
	void *ctx;
};
void engine_pipeline_pass(struct engine *e, int64_t count, const struct engine_pass *pass);
/* Micro-batches of an evaluation between two looks at whether it goes on. */
int64_t engine_pipeline_round(const struct engine *e);
/* What the last stage knows, to all. */
void engine_pipeline_tell(struct engine *e, double *numbers, int64_t count);

/* engine_evaluate.c. Forward passes follow: no dropout, no smoothing, running statistics. */
void engine_evaluate_begin(struct engine *e);

/* Area under the ROC curve, ties half, of keys made by engine_auc_key; sorts them. 1/2 when all
 * labels are the same. */
uint64_t engine_auc_key(float score, bool label);
double engine_auc(uint64_t *keys, int64_t count);
