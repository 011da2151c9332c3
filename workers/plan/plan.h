/* SPDX-License-Identifier: Apache-2.0
 * The plan: what a job spec will compute, in order, and every byte it needs, without a device.
 * The server's create handler compiles it to refuse a job that does not fit; the trainer's engine
 * executes the same object. Pure: same spec, same plan. A plan is read-only after it is made, so
 * threads may share it. The kinds of operations are in plan_op.h. */
#pragma once

#include "core/base/arena.h"
#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/plan/plan_cut.h"
#include "workers/plan/plan_mesh.h"
#include "workers/plan/plan_op.h"
#include "workers/plan/plan_schedule.h"
#include "workers/plan/plan_tables.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	PLAN_RANK_MAX = 4,
	PLAN_STAGING = 2,      /* micro-batches of input that may be read ahead */
	PLAN_BUCKET_UNIT = 32, /* elements: PLAN_ALIGN_BYTES of the narrowest type */
	PLAN_OPS_MAX = 64 * 1024,
	PLAN_BUFFERS_MAX = 256 * 1024,
};

/* What is known of the files. 0 = not known yet. Memory never depends on the counts (files are
 * mapped, only batches are copied), so the server plans before anybody has read a byte, and
 * plan_set_dataset fills the steps in later. The shape and the classes are used where the spec
 * leaves them 0. */
struct plan_dataset {
	int64_t training_samples; /* language: windows or packed sequences of sequence_length tokens */
	int64_t validation_samples;
	int64_t training_tokens; /* language only: those with a loss */
	int64_t validation_tokens;
	int64_t vocabulary; /* language only: 1 + the largest token */
	int64_t in_channels, in_height, in_width, n_classes;
};

enum plan_buffer_kind {
	PLAN_WEIGHTS, /* what operations read */
	PLAN_GRADIENTS,
	PLAN_OPTIMIZER,   /* moments, fp32 master weights, averages */
	PLAN_ACTIVATIONS, /* values of the forward pass and their gradients */
	PLAN_WORKSPACE,   /* scratch of single operations */
	PLAN_DATA,        /* the micro-batch's inputs and labels, and those read ahead */
	PLAN_KIND_COUNT,
};

/* Gradients are reduced in pieces of about so many bytes: smaller ones waste the network. */
#define PLAN_BUCKET_BYTES (INT64_C(64) << 20)

/* One piece of the arena. Two buffers may share bytes only when their lifetimes are disjoint.
 *
 * In a pipeline a rank has several micro-batches under way. What must last from one section to
 * another (struct plan_section) has a place for each of them: that of a micro-batch is micro %
 * slots places from the buffer's start. What lives inside one section shares bytes with the others'
 * of the kind. */
struct plan_buffer {
	const char *name; /* the plan's */
	enum plan_buffer_kind kind;
	enum plan_type type;
	int64_t bytes;              /* of one place */
	int64_t slots, slot_stride; /* places, and bytes from one to the next; 1 without a pipeline */
	int64_t offset;             /* from the start of the arena */
	int first_op, last_op; /* indices into ops, both inclusive: [0, op_count) for what persists */
};

enum plan_init { PLAN_INIT_ZERO, PLAN_INIT_ONE, PLAN_INIT_NORMAL, PLAN_INIT_UNIFORM };

enum plan_role {
	PLAN_TRAINED,
	PLAN_FROZEN, /* a base's weight under LoRA: no gradient, no optimizer state, never written */
	PLAN_STATE,  /* running statistics: saved with the weights, written by the forward pass */
};

/* One tensor of the model, named as in Hugging Face files. Row-major.
 *
 * Types: operations read `weight`. In an fp32 plan it is fp32 and the optimizer updates it in place
 * (master == weight). In a bf16 or fp16 plan tensors of rank >= 2 have `weight` in the plan's type
 * and, when trained, an fp32 `master` that the optimizer updates and rounds into `weight`; tensors
 * of rank 1, running statistics and sparse tables stay fp32 (master == weight). A frozen tensor has
 * no other buffer than its weight (master == weight, of whatever type).
 *
 * The dense trained tensors' masters lie in one flat range of the arena in the order of params
 * (each padded to PLAN_ALIGN_BYTES), and so do their gradients, moments and averages, with the same
 * element offsets; their low-precision weights lie in a flat range of their own. */
struct plan_param {
	char name[PLAN_NAME_MAX];
	int rank;
	int64_t shape[PLAN_RANK_MAX]; /* of the whole tensor */
	int64_t count;                /* elements that this rank of the tensor axis keeps, or of a
								   * shared table this rank */
	int64_t room;                 /* count of the rank of the tensor axis that keeps the most */
	struct plan_cut cut;          /* which they are */
	int number;                   /* its place among all parameters of the model */
	int chunk;                    /* whose layers it belongs to */
	/* The first and the last rank of the pipeline axis keep the same (the embedding that is the
	 * head too), and each makes a part of the sum that is the gradient. */
	bool ends;
	/* The ranks of the tensor axis keep the same, and each makes a part of the sum that is the
	 * gradient. */
	bool summed;
	enum plan_init init;
	double init_scale; /* NORMAL: standard deviation; UNIFORM: half width */
	enum plan_role role;
	bool decay;  /* weight decay applies */
	bool sparse; /* a table of which a step touches few rows: no dense gradient, no decay */
	/* Buffers; -1 where there is none. */
	int weight, master;
	int gradient;         /* fp32; dense trained tensors only */
	int moment1, moment2; /* fp32; SGD: moment1 = momentum, if any */
	int average;          /* fp32; with ema_decay */
	int64_t flat;         /* element offset in the flat ranges; -1 unless dense and trained */
	bool overwritten;     /* a step's first write of the gradient is no sum: it needs no zeros */
	int unit;             /* parameters that are used at one time, a layer's; ascending */
	/* Where ranks of the data axis keep a part of the state each (ZeRO): the bucket that the
	 * parameter is in, and its first element there. Then flat and all buffers but weight are -1,
	 * and weight is only a name, without bytes. -1 otherwise. */
	int bucket;
	int64_t bucket_begin;
};

/* Parameters whose state is cut and moved as one. The bucket is a row of elements, each parameter
 * at a multiple of PLAN_BUCKET_UNIT; data rank r owns elements [r * shard, (r + 1) * shard). What
 * follows "own" are buffers of shard elements, the others of count. -1 = none. */
struct plan_bucket {
	int64_t count, shard;
	enum plan_type type; /* of its weights */
	bool trained;        /* otherwise frozen: weights alone */
	int first, end;      /* in bucket_params: its parameters, in the order of the row */
	int weights;         /* stages 1 and 2, and what stage 3 does not gather; persistent */
	int own_weights;     /* stage 3, gathered for each use */
	int gradient;        /* stage 1: persistent; 2 and 3: alive while a micro-batch makes it */
	int own_gradient;    /* stages 2 and 3 */
	int own_part;        /* stages 2 and 3, several micro-batches: one's sum over the ranks */
	int own_master;      /* where type is not fp32 */
	int own_moment1, own_moment2, own_average;
};

/* Operations that run as one, for one micro-batch; what a section leaves to another is kept for
 * each micro-batch apart. Those of [begin, body) start to receive what the section needs, and may
 * run while another section does; body waits for it. */
struct plan_section {
	int begin, body, end;
};

/* Layers that follow each other; a rank has so many chunks of them (struct plan_schedule). Without
 * a pipeline there is one, and its sections are the two passes. */
struct plan_chunk {
	int first_layer, layer_count; /* language */
	struct plan_section forward, backward;
	int64_t slots; /* micro-batches that may be under way */
};

/* Input buffers of one micro-batch (struct data_batch has their meaning); -1 = the plan has none.
 * The types: tokens, labels of classes, positions, starts and bags are int32; the rest fp32. */
struct plan_inputs {
	int input, labels, positions, starts, bags;
};

/* What is counted, in words, for every place that prints a FLOP figure or an MFU. */
#define PLAN_FLOP_CONVENTION                                                                \
	"2 per multiply-add of matrix products and convolutions, forward and backward; causal " \
	"attention at half of the square; recomputation, elementwise and optimizer work not counted"

struct plan {
	enum spec_task task;
	enum spec_family family;
	enum spec_optimizer optimizer;
	enum plan_type type;   /* of activations and of what products multiply */
	bool tf32;             /* products of fp32 may round what they multiply to TF32 */
	struct plan_mesh mesh; /* whose plan it is */

	/* Forward, then backward (once per micro-batch), then optimizer. With several chunks: forward
	 * of the first to the last, backward of the last to the first. */
	struct plan_op *ops;
	int op_count;
	int backward_begin, optimize_begin; /* index of the first op of each phase */
	struct plan_chunk chunks[PLAN_CHUNKS_MAX];
	int chunk_count;
	struct plan_schedule schedule; /* in what order a step runs the sections */
	struct plan_buffer *buffers;
	int buffer_count;
	struct plan_param *params;
	int param_count;
	struct arena names;          /* of operations and buffers */
	struct plan_bucket *buckets; /* with ZeRO; otherwise none */
	int bucket_count;
	int *bucket_params; /* indices into params */
	int ticket_count;   /* of operations between ranks */

	/* Well-known buffers; -1 when the family has none. */
	struct plan_inputs inputs;
	struct plan_inputs staging[PLAN_STAGING];
	/* Of the device: where a device whose memory is apart gets the next micro-batch while it works
	 * on the present one. Others have it for nothing. */
	struct plan_inputs arriving;
	int hidden;   /* language: [rows, n_embd], what the head reads */
	int output;   /* others: logits or predictions, overwritten by their gradient in training */
	int row_loss; /* fp32 [rows] */
	int row_hit;  /* fp32 [rows], 1 where the arg max is the label */
	int head;     /* language: index in params of the head's [vocabulary, n_embd]; -1 elsewhere */
	int rope;     /* llama: fp32 [sequence_length, head_size]: cosines, then sines of half a head;
				   * filled once by the engine */
	int sparse_first, sparse_count; /* params that are sparse tables: a contiguous range */
	/* Tables that the ranks of the data axis share: [data][piece_slots]; NULL = they do not. */
	struct plan_piece *pieces;
	int piece_slots;

	int64_t micro_batch; /* samples per micro-batch */
	int64_t micro_steps; /* micro-batches per optimizer step, of one data rank */
	/* Of all: micro_batch * micro_steps * data. Data rank r takes the micro-batches r, r + data,
	 * ... of those that one rank alone would take in turn. */
	int64_t batch;
	int64_t rows; /* loss rows per micro-batch: tokens or samples */
	int64_t sequence_length;
	int64_t in_channels, in_height, in_width;
	int64_t n_classes; /* classes, vocabulary or regression outputs */
	int64_t head_size; /* language */
	double rope_theta; /* llama */

	int64_t parameter_count; /* of the model: elements of all roles but STATE, without alignment */
	int64_t trained_count;   /* of those, trained */
	int64_t flat_count;      /* elements of the flat ranges, with alignment */
	/* sum of the buffers of each kind (they may share bytes) */
	int64_t kind_bytes[PLAN_KIND_COUNT];
	int64_t total_bytes; /* of the arena: exact */
	/* Of them, [0, device_bytes) are the device's. Behind them lies what the host writes and the
	 * device only copies from: what is read ahead. */
	int64_t device_bytes;
	double flops_per_step;           /* one optimizer step of this rank, PLAN_FLOP_CONVENTION */
	double recompute_flops_per_step; /* what activation checkpointing adds to it */
	double bytes_per_step;
	double flops_per_sample; /* language: per sequence */
	double flops_per_token;  /* language; otherwise = flops_per_sample */

	struct plan_dataset dataset;
	/* 0 while the dataset is unknown (total_steps is known at once when the spec has max_steps). */
	int64_t total_steps;
	double steps_per_epoch; /* training_samples / batch; epochs follow each other without a gap */
};

/* Compiles. dims may be NULL (nothing known). Errors name the spec's JSON path: INVALID_VALUE for
 * what the family cannot be, MISSING_FIELD for a shape that neither spec nor dims know.
 * Free with plan_destroy. */
int plan_compile(const struct job_spec *spec, const struct plan_dataset *dims, struct plan **ret,
	struct err *err) must_check;
/* The plan of one rank of the spec's mesh; plan_compile's is that of a rank that none needs more
 * memory than: the first rank of a stage of the pipeline. */
int plan_compile_rank(const struct job_spec *spec, const struct plan_dataset *dims, int rank,
	struct plan **ret, struct err *err) must_check;
/* Replaces the counts and recomputes the steps. Memory and operations stay. INVALID_DATA when a
 * shape, vocabulary or class count given differs from the plan's. */
int plan_set_dataset(struct plan *p, const struct job_spec *spec, const struct plan_dataset *dims,
	struct err *err) must_check;
void plan_destroy(struct plan *p);
void plan_destroyp(struct plan **p);

/* Words for people and JSON: "weights", "forward", "trained". */
const char *plan_kind_word(enum plan_buffer_kind kind);
const char *plan_phase_word(enum plan_phase phase);
const char *plan_role_word(enum plan_role role);

/* Bytes of one parameter by role and kind, as the field counts them, for tables: the sums over
 * params of each kind are in kind_bytes. */
int64_t plan_param_bytes(const struct plan *p, const struct plan_param *param);

/* The type in which a parameter's exact values are kept, in memory and in files. */
enum plan_type plan_param_kept(const struct plan *p, const struct plan_param *param);

/* Learning rate at a step (0-based): a pure function of the spec and total_steps. Warm-up rises
 * linearly to the peak at step warmup_steps; linear and cosine then fall to min_lr_ratio * peak at
 * the last step. */
double plan_learning_rate(const struct job_spec *spec, int64_t total_steps, int64_t step);
