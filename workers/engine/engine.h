/* SPDX-License-Identifier: Apache-2.0
 * The training engine: executes a plan on a backend. The trainer drives it: create, init or
 * restore, attach data, step, evaluate, read the tensors for a checkpoint, destroy. One thread owns
 * an engine; it starts its own compute threads. Same plan, seed, data, backend and threads: same
 * bits. A step allocates nothing: engine_create and engine_attach (the loader) do. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/data.h"
#include "workers/plan/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct backend;
struct mesh;

/* The CPU backend (OpenMP) for activations of the plan's type, for the best instruction set that
 * this processor has. */
const struct backend *engine_backend_cpu(enum plan_type type);
/* The CUDA backend: the first device that CUDA_VISIBLE_DEVICES shows. NULL in a build without the
 * toolkit. */
const struct backend *engine_backend_cuda(enum plan_type type);
/* Whether there is a device for it. UNAVAILABLE says what is missing: the toolkit when this was
 * built, a driver, a device, or one that is new enough. */
int engine_cuda_find(struct err *err) must_check;
/* The backend's memory is not the host's: see struct mesh_options. */
bool engine_is_apart(const struct backend *backend);
const char *engine_backend_name(const struct backend *backend);

/* Takes the plan's memory in one allocation, prepares every operation. spec and plan are borrowed
 * until engine_destroy. threads 1..1024. Weights are zero until engine_init_params or a restore.
 * NO_MEMORY when the device refuses the bytes. */
int engine_create(const struct job_spec *spec, const struct plan *plan,
	const struct backend *backend, int threads, struct engine **ret, struct err *err) must_check;
void engine_destroy(struct engine *e);
void engine_destroyp(struct engine **e);

/* Joins the other ranks of the plan's mesh; borrowed until engine_destroy. A plan of several ranks
 * needs it before anything else. All ranks then make the same calls in the same order: those that
 * say so below wait for each other. Where the backend's memory is apart (engine_is_apart) the mesh
 * must be too, and its groups on the device are opened here, with all ranks, and closed by
 * engine_destroy. CONFLICT when the mesh is not of this kind or the place is not the plan's. A
 * failure between ranks (comm.h) stays: every later call returns it. */
int engine_join(struct engine *e, struct mesh *mesh, struct err *err) must_check;

/* Fresh parameters by the plan's rules from the spec's seed; optimizer state zero, step 0. Each
 * parameter's values depend on the seed and its place in the plan alone. All ranks call it. */
int engine_init_params(struct engine *e, struct err *err) must_check;

/* Attaches data sets (borrowed until engine_destroy or the next attach). validation may be NULL.
 * INVALID_DATA when their shape is not the plan's. Steps are the caller's: plan_set_dataset first.
 */
int engine_attach(struct engine *e, const struct data *training, const struct data *validation,
	struct err *err) must_check;

/* What one optimizer step did. */
struct engine_step {
	int64_t step;         /* 1 for the first: steps done including this one */
	double loss;          /* mean over the valid tokens or samples of the whole batch */
	double grad_norm;     /* before clipping */
	double learning_rate; /* used in this step */
	double epoch;         /* position in the data after the step */
	int64_t samples;      /* in this step */
	int64_t tokens;       /* with a loss, in this step; 0 unless a language model */
	int64_t wait_us;      /* of it, time that the device waited for data */
	double loss_scale;    /* fp16: in force after the step; otherwise 1 */
	int64_t overflows;    /* fp16: tries of this batch that were thrown away, the scale halved */
	bool non_finite;      /* the loss is not finite, or the norm (fp16: with the scale at its
						   * floor): the weights were left untouched, and the step did not
						   * count; the trainer fails the job (nan_loss) */
};

/* One optimizer step over the next batch, on all ranks; what it returns is the same on all but the
 * wait. May be called past the plan's total_steps (the schedule
 * stays at its end). */
int engine_step(struct engine *e, struct engine_step *ret, struct err *err) must_check;

/* The whole validation set with the present weights, on all ranks. Leaves the training state
 * untouched. */
struct engine_evaluation {
	double loss;          /* mean, nats per token or sample; regression: mean squared error */
	double bits_per_byte; /* text; otherwise 0 */
	double order0_bits_per_byte; /* text: entropy of the validation text itself; otherwise 0 */
	double auc;      /* click_through: area under the ROC curve, ties count half; otherwise 0 */
	double accuracy; /* classification: share of right arg max; language model: of tokens */
	int64_t samples, tokens; /* evaluated (tokens: valid ones; 0 unless a language model) */
};
/* Called between micro-batches with done and total; false stops: the evaluation returns CANCELLED.
 */
typedef bool (*engine_progress_fn)(void *ctx, int64_t done, int64_t total);
/* on_progress may be NULL. CONFLICT when no validation set is attached. */
int engine_evaluate(struct engine *e, engine_progress_fn on_progress, void *ctx,
	struct engine_evaluation *ret, struct err *err) must_check;

/* Everything that a checkpoint needs besides the tensors. */
struct engine_state {
	int64_t step;        /* optimizer steps done */
	int64_t position;    /* samples of the training stream consumed */
	int64_t tokens;      /* consumed; 0 unless a language model */
	double loss_scale;   /* fp16; otherwise 1 */
	int64_t scale_steps; /* fp16: steps since the scale changed */
	int64_t seed; /* of parameters, order and dropout: random numbers are a function of (seed,
				   * position), so there is no other generator state */
};
void engine_state_get(const struct engine *e, struct engine_state *ret);
/* INVALID_DATA when the state cannot belong to this plan (negative, or another seed). */
int engine_state_set(struct engine *e, const struct engine_state *s, struct err *err) must_check;

enum engine_tensor_kind {
	ENGINE_PARAMETER, /* of every role: trained, frozen, running statistics */
	ENGINE_OPTIMIZER, /* "optimizer.exp_avg.<name>", "optimizer.exp_avg_sq.<name>",
					   * "optimizer.momentum_buffer.<name>" */
	ENGINE_AVERAGE,   /* "average.<name>", with ema_decay */
};

/* A tensor, row-major; trained ones are the fp32 masters. Parameters come first, in the plan's
 * order, then the others. Names are unique. `data` is the engine's: what the tensor is now, to be
 * read and written until the next step, engine_init_params or engine_tensors_refresh. Whoever
 * writes through it calls engine_parameters_changed before that. */
enum { ENGINE_TENSOR_NAME_MAX = PLAN_NAME_MAX + 32 };
struct engine_tensor {
	char name[ENGINE_TENSOR_NAME_MAX];
	enum engine_tensor_kind kind;
	const char *dtype; /* as safetensors has it: "F32", "BF16", "F16" */
	enum plan_type type;
	enum plan_role role;
	int number; /* among all of the model, whatever of it a rank has; ascending, with gaps */
	int rank;
	int64_t shape[PLAN_RANK_MAX]; /* of the whole */
	/* The elements that this rank keeps: [begin, begin + count) of those that cut takes from the
	 * whole, in their order. All of the whole where the plan cuts nothing. bytes are theirs. */
	struct plan_cut cut;
	int64_t begin, count;
	int64_t bytes;
	/* So many ranks of its stage keep these elements, with the same bits; this is copy `copy` of
	 * them. Beyond them where an earlier stage has the tensor too, maybe cut at other places: that
	 * one's are saved. */
	int copies, copy;
	void *data;
};
int engine_tensor_count(const struct engine *e);
void engine_tensor_at(struct engine *e, int i, struct engine_tensor *ret);
/* Brings what every `data` that was given shows up to date. Where the device's memory is apart, the
 * tensors then hold still while steps go on, until it is called again. */
int engine_tensors_refresh(struct engine *e, struct err *err) must_check;

/* Rounds the masters into what the operations read in the present step: engine_state_set comes
 * before it. All ranks call it. */
int engine_parameters_changed(struct engine *e, struct err *err) must_check;

/* Language models: runs the forward pass over `count` tokens (<= sequence_length) in slot 0 and
 * writes the logits of the last of them, fp32 [vocabulary]. For sampling and for tests. */
int engine_logits(
	struct engine *e, const int32_t *tokens, int64_t count, float *ret, struct err *err) must_check;

/* Called after each operation of a step with its begin and end on the monotonic clock; NULL: none.
 * For profiles. */
typedef void (*engine_trace_fn)(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns);
void engine_trace(struct engine *e, engine_trace_fn fn, void *ctx);

/* Peak bytes of device memory handed out so far, measured by the backend: equals the plan's
 * total_bytes. */
int64_t engine_memory_bytes(const struct engine *e);
