/* SPDX-License-Identifier: Apache-2.0
 * What the files of workers/plan share: the builder that families write into. Nobody else includes
 * this. The first failure sticks in the builder; later calls do nothing (they return -1 or a place
 * to write to), so families check b->code once in a while and never each call. */
#pragma once

#include "workers/plan/plan.h"

/* How a family is written (plan_build.c, plan_param.c, plan_dense.c have the functions):
 *
 *	plan_build_input(b, PLAN_INPUT, PLAN_F32, count);        inputs besides the labels
 *	x = plan_build_cast(b, "input", b->p->inputs.input, count);   into the plan's type
 *	w = plan_param_add(b, (struct plan_param_def){ ... }, "layers.%d.weight", i);
 *	y = plan_build_activation(b, rows * n, "layers.%d", i);
 *	plan_dense_forward(b, &dense, x, y, -1);                 operations of the forward pass, loss
 *	plan_build_backward(b);                                  from here on: the backward pass
 *	plan_dense_backward(b, &dense, x, dy, dx, plan_gate_none);
 *
 * A buffer lives from the first to the last operation that names it as an operand; whatever engine
 * or a later micro-batch must find is persistent. Operations of the optimizer follow by themselves
 * from the parameters and tables (plan_optimize.c). */

/* A sparse table: its parameter and the buffers that keep a step's gradient. */
struct plan_table {
	int param;
	int64_t rows, d, lookups;
	int ids;       /* int32 [batch, lookups] */
	int grads;     /* fp32 [batch, d] */
	int ticket[2]; /* several ranks: of what brings the others' ids and grads */
};

struct plan_build {
	struct plan *p;
	const struct job_spec *spec;
	struct err *err;
	int code;
	int op_cap, buffer_cap, param_cap;
	enum plan_phase phase; /* of the next operations */
	bool recompute;        /* the next operations repeat a part of the forward pass */
	int unit;              /* of the next parameters */
	int number;            /* of the next parameter */
	bool units_named;      /* the family begins units itself; otherwise a matrix begins one */
	bool elsewhere;        /* the next parameters are another stage's: they only count */
	bool ends;             /* the next parameters are the first and the last stage's */
	int chunk;             /* of the next parameters */
	struct plan_table table[SPEC_TABLES_MAX];
	int table_count;
	struct plan_op sink_op; /* written to after a failure */
};

/* Records the first failure. */
void plan_build_fail(struct plan_build *b, int code, const char *param, const char *fmt, ...)
	printf_like(4, 5);

/* x * y * z elements; fails the builder when a tensor of them is out of every bound. Use it for
 * each product of dimensions that the spec gives. */
int64_t plan_build_count(struct plan_build *b, int64_t x, int64_t y, int64_t z);

/* A buffer whose lifetime follows from the operations that name it. */
int plan_build_buffer(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, const char *fmt, ...) printf_like(5, 6);
/* A buffer that lives through the whole step. */
int plan_build_persistent(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, const char *fmt, ...) printf_like(5, 6);
/* Makes a buffer persistent, with a place for each of so many micro-batches. */
void plan_build_keep(struct plan_build *b, int buffer, int64_t slots);
/* A persistent buffer with the name of another. */
int plan_build_again(struct plan_build *b, enum plan_buffer_kind kind, enum plan_type type,
	int64_t count, int named);
/* plan_build_buffer of PLAN_ACTIVATIONS: in the plan's type (values and their gradients), and in
 * fp32 (statistics). */
int plan_build_activation(struct plan_build *b, int64_t count, const char *fmt, ...)
	printf_like(3, 4);
int plan_build_statistic(struct plan_build *b, int64_t count, const char *fmt, ...)
	printf_like(3, 4);

/* An input of the micro-batch, with its copies; sets p->inputs, p->arriving and p->staging. The
 * labels and the losses of the rows are there before the family is called. */
enum plan_input { PLAN_INPUT, PLAN_LABELS, PLAN_POSITIONS, PLAN_STARTS, PLAN_BAGS };
void plan_build_input(
	struct plan_build *b, enum plan_input which, enum plan_type type, int64_t count);
/* An fp32 buffer in the plan's type: itself in fp32, else an activation that an operation fills. */
int plan_build_cast(struct plan_build *b, const char *name, int x, int64_t count);

/* Appends an operation in the builder's phase; the caller fills the rest (act, scalar, shift,
 * flags). operands and dims end at the given counts. workspace_bytes 0 = none. Never NULL; valid
 * until the next call. */
struct plan_op *plan_build_op(struct plan_build *b, enum plan_op_kind kind, const char *name,
	const int *operands, int operand_count, const int64_t *dims, int dim_count,
	int64_t workspace_bytes);

#define PLAN_OPERANDS(...) (const int[]){ __VA_ARGS__ }, (int)ARRAY_LEN(((int[]){ __VA_ARGS__ }))
#define PLAN_DIMS(...) \
	(const int64_t[]){ __VA_ARGS__ }, (int)ARRAY_LEN(((int64_t[]){ __VA_ARGS__ }))

/* A mask: of `count` elements, which the cut takes from a whole (run 0: they are the whole). A site
 * is a number of its own for each mask of the model. */
struct plan_mask {
	int64_t count, site;
	double p;
	struct plan_cut cut;
};
/* y = dropout(x), and the gradient's way back; x and y (dy and dx) may be one buffer. */
void plan_build_dropout(
	struct plan_build *b, const char *name, int x, int y, const struct plan_mask *m);
void plan_build_dropout_backward(
	struct plan_build *b, const char *name, int dy, int dx, const struct plan_mask *m);

/* Between the loss and the first operation of the backward pass. */
void plan_build_backward(struct plan_build *b);

/* The next parameters are used at one time, apart from those before (a layer). */
void plan_build_unit(struct plan_build *b);

/* A parameter with the buffers that its role asks for (plan.h, struct plan_param); returns its
 * index in params. */
struct plan_param_def {
	enum plan_init init;
	double init_scale;
	int rank;
	int64_t shape[PLAN_RANK_MAX];
	enum plan_role role; /* 0 = trained */
	/* Ranks of the tensor axis keep a part each: dimension cut_dim of shape, seen as cut_blocks
	 * (0: one) blocks of the same size, [cut_first, cut_first + cut_count) of each block. 0 = all.
	 */
	int cut_dim;
	int64_t cut_blocks, cut_first, cut_count;
	int64_t cut_most; /* cut_count of the rank that has the most; 0 = all have the same */
	bool summed;      /* as struct plan_param has it */
};
int plan_param_add(struct plan_build *b, struct plan_param_def def, const char *fmt, ...)
	printf_like(3, 4);
/* A sparse table [rows, d], fp32, of which this rank keeps some rows; returns its index in params.
 * All tables of a model are added one after the other, with no other parameter between them. */
struct plan_table_def {
	int64_t rows, d;
	double init_scale;
	struct plan_piece own; /* all of it where tables are not shared */
};
int plan_param_table(struct plan_build *b, struct plan_table_def def, const char *fmt, ...)
	printf_like(3, 4);
/* A step of the table: buffers for its gradient, by row (`rows` of them here); returns its index in
 * b->table, -1 after a failure. */
int plan_param_lookups(struct plan_build *b, int param, int64_t rows, int64_t lookups);
/* Buffers of a parameter; -1 for parameter -1 and where there is none (gradient of a frozen one).
 */
int plan_param_weight(const struct plan_build *b, int param);
int plan_param_gradient(const struct plan_build *b, int param);

/* A dense layer: y[M,N] = act(alpha x[M,K] w + bias) + residual. */
struct plan_dense {
	const char *name; /* of the operations; outlives the calls only */
	int weight, bias; /* parameters; bias -1 = none */
	int64_t m, k, n;
	int64_t ldy;     /* elements between rows of y; 0 = n */
	int64_t y_shift; /* first element: y is a part of wider rows */
	int64_t x_shift; /* first element of x, and of its gradient: a part of the rows */
	bool bias_apart; /* another rank adds the bias, to its part of the sum that y is */
	bool transposed; /* the weight is [N,K] */
	enum plan_activation act;
	int pre;      /* GELU: buffer of the value before; -1 = not kept. Not read otherwise */
	double alpha; /* 0 = 1 */
};
/* What a gradient of the layer's input passes on its way out: act'(buffer). */
struct plan_gate {
	enum plan_activation act;
	int buffer;
};
static const struct plan_gate plan_gate_none = { PLAN_ACT_NONE, -1 };

/* residual -1 = none, or y itself. */
void plan_dense_forward(
	struct plan_build *b, const struct plan_dense *d, int x, int y, int residual);
/* Gradients of weight and bias; nothing when both are frozen. */
void plan_dense_backward_weight(struct plan_build *b, const struct plan_dense *d, int x, int dy);
/* dx = (alpha dy w' + residual) * gate; residual may be dx itself, -1 = none. dy lies as y does, dx
 * (and residual, gate) as x does. */
void plan_dense_backward_data(struct plan_build *b, const struct plan_dense *d, int dy, int dx,
	int residual, struct plan_gate gate);
/* Both; dx -1: only the weights'. */
void plan_dense_backward(
	struct plan_build *b, const struct plan_dense *d, int x, int dy, int dx, struct plan_gate gate);

/* Bytes of scratch. The plan may not include the backend: each repeats the formula of the header
 * named, and a unit test of the engine holds them together. */
/* A product of these sizes, in any order (cpu/gemm.h). */
int64_t plan_workspace_product(int64_t m, int64_t n, int64_t k);
/* cpu/workspace.h */
int64_t plan_workspace_norm_backward(int64_t c, bool with_bias);
int64_t plan_workspace_attention(int64_t b, int64_t t, int64_t kv_heads, int64_t head_size);
int64_t plan_workspace_attention_backward(int64_t b, int64_t t, int64_t heads, int64_t head_size);
int64_t plan_workspace_classifier(int64_t chunk, int64_t v, int64_t c, enum plan_type type);
/* cpu/ops/sparse.c: look-ups of a whole batch in one table. */
int64_t plan_workspace_sparse(int64_t lookups);

/* Families: forward pass and loss, plan_build_backward, backward pass. */
void plan_family_mlp(struct plan_build *b);
void plan_family_cnn(struct plan_build *b);
void plan_family_gpt2(struct plan_build *b);
void plan_family_llama(struct plan_build *b);
void plan_family_dlrm(struct plan_build *b);

/* Hidden layers with ReLU and dropout, then the output layer and the loss; forward only.
 * plan_head_backward emits the rest and returns the buffer of dx (-1 unless want_dx). */
enum { PLAN_HEAD_LAYERS_MAX = SPEC_LAYERS_MAX + 1 };
struct plan_head {
	int layers;
	struct plan_dense dense[PLAN_HEAD_LAYERS_MAX];
	char name[PLAN_HEAD_LAYERS_MAX][PLAN_NAME_MAX];
	int x[PLAN_HEAD_LAYERS_MAX + 1]; /* input of each layer; the last is the output */
};
void plan_head_forward(
	struct plan_build *b, struct plan_head *h, const char *prefix, int x, int64_t features);
int plan_head_backward(struct plan_build *b, struct plan_head *h, bool want_dx);

/* What every spec must keep whatever the family: tasks, formats, numbers in range. */
int plan_check(const struct job_spec *s, struct err *err) must_check;

/* Puts an operation that was made before behind the others, with its operands as they are now. */
void plan_build_repeat(struct plan_build *b, const struct plan_op *op);

/* Whether the ranks of the data axis keep a part of the parameter's state each. */
bool plan_bucket_wants(const struct plan *p, const struct plan_param *pr);
/* Whether so many gradients are a piece by themselves. */
static inline bool plan_bucket_is_full(const struct plan_build *b, int64_t count)
{
	int64_t limit = b->spec->parallel.bucket_bytes;
	return count * plan_type_bytes(PLAN_F32) >= (limit > 0 ? limit : PLAN_BUCKET_BYTES);
}
/* plan_bucket.c: cuts the parameters into buckets and makes their buffers. With ZeRO, after the
 * family's operations. */
void plan_bucket_build(struct plan_build *b);
/* Gathered for each use (stage 3). */
static inline bool plan_bucket_gathered(const struct plan_bucket *k)
{
	return k->own_weights >= 0;
}
/* plan_parallel.c: weaves what happens between ranks into the operations of a micro-batch. */
void plan_parallel(struct plan_build *b);
/* Ranks along an axis. */
static inline int plan_parallel_ways(const struct plan_mesh *m, enum plan_axis axis)
{
	switch (axis) {
	case PLAN_AXIS_DATA: return m->data;
	case PLAN_AXIS_TENSOR: return m->tensor;
	case PLAN_AXIS_PIPELINE: return m->pipeline;
	case PLAN_AXIS_ENDS: return 2;
	case PLAN_AXIS_ALL: return plan_mesh_size(m);
	case PLAN_AXIS_NONE: break;
	}
	return 1;
}
/* An operation between ranks of an axis; a ticket of its own. */
int plan_parallel_ticket(struct plan_build *b);
struct plan_op *plan_parallel_call(struct plan_build *b, enum plan_axis axis,
	enum plan_op_kind kind, const char *name, int x, int y, int64_t count, int ticket);
struct plan_op *plan_parallel_wait(
	struct plan_build *b, enum plan_axis axis, const char *name, int x, int y, int ticket);

/* plan_pipeline.c: sections, and what goes from stage to stage. */
/* The stage of the model that a chunk is; whether it is the first, or the last. */
int plan_pipeline_stage(const struct plan *p, int chunk);
bool plan_pipeline_is_first(const struct plan *p, int chunk);
bool plan_pipeline_is_last(const struct plan *p, int chunk);
/* The last stage's backward pass follows its forward pass at once, as without a pipeline: buffers
 * may live through both without slots. */
bool plan_pipeline_is_joint(const struct plan *p, int chunk);
/* Operations of one number run as one section (or two that are joint); -1: the optimizer's. */
int plan_pipeline_section(const struct plan *p, int op);
static inline int plan_pipeline_section_chunk(int section)
{
	return section / 2;
}
/* Around the operations of a chunk's pass. */
void plan_pipeline_begin(struct plan_build *b, int chunk, enum plan_phase phase);
void plan_pipeline_end(struct plan_build *b, int chunk, enum plan_phase phase);
/* What goes from stage to stage: the residual stream, and back its gradient. ticket: of its send.
 */
struct plan_stream {
	int buffer, ticket, turns;
};
/* What the stage before sends; first in its section. Returns the buffer. */
int plan_pipeline_stream(struct plan_build *b, int chunk, int64_t count, const char *name);
/* The gradient, which the chunk's backward pass changes in place; first in its section. The stage
 * after, if any, has sent what it begins with. */
struct plan_stream plan_pipeline_gradient(
	struct plan_build *b, int chunk, int64_t count, const char *name);
/* Before the operations that write what plan_pipeline_send sends. */
struct plan_stream plan_pipeline_before(struct plan_build *b, const char *name);
void plan_pipeline_send(
	struct plan_build *b, struct plan_stream s, int64_t count, const char *name);
/* Adds up the gradients of what both ends keep, once they are those of all data ranks. */
void plan_pipeline_ends(struct plan_build *b);
/* A family that knows nothing of chunks is one. */
void plan_pipeline_whole(struct plan_build *b);

/* The optimizer's operations and the sizes that follow from the parameters. */
void plan_optimize(struct plan_build *b);

/* Assigns offsets: persistent buffers first, then the others by lifetime. */
int plan_layout(struct plan *p, struct err *err) must_check;

/* Sets flops and bytes of one operation. */
void plan_cost(const struct plan *p, struct plan_op *op);
