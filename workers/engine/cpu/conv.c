/* SPDX-License-Identifier: Apache-2.0
 * 3x3 convolutions on oneDNN, channels last. The weights are repacked for the library in the plan's
 * workspace at each run (they change each step; it is a thousandth of the arithmetic), which also
 * holds its scratch. Called through the backend's table. */
#include "workers/engine/cpu/cpu_private.h"

#include <omp.h>
#include <stdlib.h>

enum { CONV_ARGS_MAX = 6, CONV_ALIGN = 64 };

struct backend_conv {
	struct backend_conv_desc d;
	dnnl_stream_t stream;
	dnnl_primitive_t primitive, reorder;
	dnnl_memory_t packed, plain; /* the two forms of the weights or their gradient */
	dnnl_memory_t memory[CONV_ARGS_MAX];
	dnnl_exec_arg_t arg[CONV_ARGS_MAX];
	int arg_count;
	float *bias; /* backward: where the library leaves the bias gradient */
};

static const dnnl_dims_t ones = { 1, 1 };

struct conv_shapes {
	dnnl_memory_desc_t x, w, w_plain, b, y;
};

static dnnl_status_t shapes(const struct backend_conv_desc *d, struct conv_shapes *ret)
{
	const dnnl_dims_t dx = { d->n, d->in, d->h, d->w }, dw = { d->out, d->in, 3, 3 },
					  db = { d->out }, dy = { d->n, d->out, d->h, d->w };
	dnnl_status_t s = dnnl_memory_desc_init_by_tag(&ret->x, 4, dx, dnnl_f32, dnnl_nhwc);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&ret->w, 4, dw, dnnl_f32, dnnl_format_tag_any);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&ret->w_plain, 4, dw, dnnl_f32, dnnl_oihw);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&ret->b, 1, db, dnnl_f32, dnnl_a);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&ret->y, 4, dy, dnnl_f32, dnnl_nhwc);
	return s;
}

static dnnl_status_t attributes(bool relu, dnnl_primitive_attr_t *ret)
{
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t ops = NULL;
	dnnl_status_t s = dnnl_primitive_attr_create(&attr);
	if (!s)
		s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
	if (!s)
		s = dnnl_post_ops_create(&ops);
	if (!s && relu)
		s = dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
	if (!s)
		s = dnnl_primitive_attr_set_post_ops(attr, ops);
	if (ops)
		dnnl_post_ops_destroy(ops);
	if (s && attr)
		dnnl_primitive_attr_destroy(attr);
	else
		*ret = attr;
	return s;
}

static dnnl_status_t describe(const struct backend_conv_desc *d, const struct conv_shapes *m,
	dnnl_engine_t engine, dnnl_primitive_desc_t *ret)
{
	dnnl_primitive_attr_t attr = NULL;
	dnnl_primitive_desc_t forward = NULL;
	dnnl_convolution_desc_t op;
	dnnl_status_t s = attributes(d->kind == BACKEND_CONV, &attr);
	if (s)
		return s;
	s = dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct,
		&m->x, &m->w, &m->b, &m->y, ones, ones, ones);
	if (!s)
		s = dnnl_primitive_desc_create(&forward, &op, attr, engine, NULL);
	if (!s && d->kind == BACKEND_CONV)
		*ret = take_ptr(forward);
	if (!s && d->kind == BACKEND_CONV_BACKWARD_DATA)
		s = dnnl_convolution_backward_data_desc_init(
			&op, dnnl_convolution_direct, &m->x, &m->w, &m->y, ones, ones, ones);
	if (!s && d->kind == BACKEND_CONV_BACKWARD_WEIGHT)
		s = dnnl_convolution_backward_weights_desc_init(
			&op, dnnl_convolution_direct, &m->x, &m->w, &m->b, &m->y, ones, ones, ones);
	if (!s && d->kind != BACKEND_CONV)
		s = dnnl_primitive_desc_create(ret, &op, attr, engine, forward);
	if (forward)
		dnnl_primitive_desc_destroy(forward);
	dnnl_primitive_attr_destroy(attr);
	return s;
}

static dnnl_status_t bind(
	struct backend_conv *c, dnnl_engine_t engine, int arg, const dnnl_memory_desc_t *md, void *data)
{
	int i = c->arg_count;
	dnnl_status_t s = dnnl_memory_create(&c->memory[i], md, engine, data);
	if (s)
		return s;
	c->arg[i] = (dnnl_exec_arg_t){ .arg = arg, .memory = c->memory[i] };
	c->arg_count++;
	return s;
}

static dnnl_status_t bind_all(struct backend_conv *c, dnnl_engine_t engine,
	const struct conv_shapes *m, const dnnl_memory_desc_t *packed)
{
	const struct backend_conv_desc *d = &c->d;
	bool to_data = d->kind == BACKEND_CONV_BACKWARD_DATA;
	bool to_weight = d->kind == BACKEND_CONV_BACKWARD_WEIGHT;
	dnnl_status_t s = dnnl_memory_create(&c->packed, packed, engine, d->workspace);
	if (!s)
		s = dnnl_memory_create(&c->plain, &m->w_plain, engine, d->weight);
	if (!s)
		s = bind(c, engine, to_data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, &m->x, d->x);
	if (!s)
		s = bind(c, engine, to_data || to_weight ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, &m->y, d->y);
	if (!s && !to_data)
		s = bind(c, engine, to_weight ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, &m->b,
			to_weight ? c->bias : d->bias);
	if (!s)
		s = bind(
			c, engine, to_weight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, packed, d->workspace);
	return s;
}

/* Weights into the library's layout, or its gradient added to ours. */
static dnnl_status_t make_reorder(struct backend_conv *c, dnnl_engine_t engine,
	const dnnl_memory_desc_t *plain, const dnnl_memory_desc_t *packed)
{
	bool back = c->d.kind == BACKEND_CONV_BACKWARD_WEIGHT;
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t ops = NULL;
	dnnl_primitive_desc_t pd = NULL;
	dnnl_status_t s = dnnl_primitive_attr_create(&attr);
	if (!s)
		s = dnnl_post_ops_create(&ops);
	if (!s && back)
		s = dnnl_post_ops_append_sum(ops, 1.0f);
	if (!s)
		s = dnnl_primitive_attr_set_post_ops(attr, ops);
	if (!s)
		s = dnnl_reorder_primitive_desc_create(
			&pd, back ? packed : plain, engine, back ? plain : packed, engine, attr);
	if (!s)
		s = dnnl_primitive_create(&c->reorder, pd);
	if (pd)
		dnnl_primitive_desc_destroy(pd);
	if (ops)
		dnnl_post_ops_destroy(ops);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	return s;
}

static int64_t aligned(int64_t bytes)
{
	return (bytes + CONV_ALIGN - 1) / CONV_ALIGN * CONV_ALIGN;
}

/* Fits the library's wishes into the workspace: reductions over threads need a copy of the weights
 * for each, so fewer threads need less. */
static int fit(struct backend_ctx *ctx, const struct backend_conv_desc *d,
	const struct conv_shapes *m, dnnl_primitive_desc_t *ret, struct err *err)
{
	int threads = ctx->threads;
	for (;; threads /= 2) {
		omp_set_num_threads(threads);
		dnnl_primitive_desc_t pd = NULL;
		int rc = cpu_status(describe(d, m, ctx->engine, &pd), "a convolution", err);
		omp_set_num_threads(ctx->threads);
		if (rc)
			return rc;
		int64_t packed = (int64_t)dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd,
			d->kind == BACKEND_CONV_BACKWARD_WEIGHT ? dnnl_query_diff_weights_md
													: dnnl_query_weights_md,
			0));
		int64_t scratch = (int64_t)dnnl_memory_desc_get_size(
			dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
		int64_t need = aligned(packed) + aligned(d->out * 4) + scratch;
		if (need <= d->workspace_bytes) {
			*ret = pd;
			return 0;
		}
		dnnl_primitive_desc_destroy(pd);
		if (threads == 1)
			return err_set(err, ERR_INTERNAL, NULL,
				"a convolution wants %lld bytes of workspace, the plan has %lld", (long long)need,
				(long long)d->workspace_bytes);
	}
}

static dnnl_status_t prepare(struct backend_conv *c, dnnl_engine_t engine,
	const struct conv_shapes *m, dnnl_primitive_desc_t pd)
{
	bool to_weight = c->d.kind == BACKEND_CONV_BACKWARD_WEIGHT;
	const dnnl_memory_desc_t *packed = dnnl_primitive_desc_query_md(
		pd, to_weight ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
	const dnnl_memory_desc_t *scratch =
		dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
	char *at = (char *)c->d.workspace + aligned((int64_t)dnnl_memory_desc_get_size(packed));
	c->bias = (float *)(void *)at;
	at += aligned(c->d.out * 4);
	dnnl_status_t s = bind_all(c, engine, m, packed);
	if (!s && dnnl_memory_desc_get_size(scratch) > 0)
		s = bind(c, engine, DNNL_ARG_SCRATCHPAD, scratch, at);
	if (!s)
		s = make_reorder(c, engine, &m->w_plain, packed);
	if (!s)
		s = dnnl_primitive_create(&c->primitive, pd);
	return s;
}

int cpu_conv_create(struct backend_ctx *ctx, const struct backend_conv_desc *d,
	struct backend_conv **ret, struct err *err)
{
	struct conv_shapes m;
	dnnl_primitive_desc_t pd = NULL;
	int rc = cpu_status(shapes(d, &m), "a convolution", err);
	if (!rc)
		rc = fit(ctx, d, &m, &pd, err);
	if (rc)
		return rc;
	struct backend_conv *c = calloc(1, sizeof(*c));
	if (!c) {
		dnnl_primitive_desc_destroy(pd);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to prepare a convolution");
	}
	c->d = *d;
	c->stream = ctx->stream;
	rc = cpu_status(prepare(c, ctx->engine, &m, pd), "a convolution", err);
	dnnl_primitive_desc_destroy(pd);
	if (rc) {
		cpu_conv_destroy(c);
		return rc;
	}
	*ret = c;
	return 0;
}

int cpu_conv_run(struct backend_conv *c, struct err *err)
{
	bool to_weight = c->d.kind == BACKEND_CONV_BACKWARD_WEIGHT;
	const dnnl_exec_arg_t move[] = { { DNNL_ARG_FROM, to_weight ? c->packed : c->plain },
		{ DNNL_ARG_TO, to_weight ? c->plain : c->packed } };
	dnnl_status_t s = dnnl_success;
	if (!to_weight)
		s = dnnl_primitive_execute(c->reorder, c->stream, 2, move);
	if (!s)
		s = dnnl_primitive_execute(c->primitive, c->stream, c->arg_count, c->arg);
	if (!s && to_weight)
		s = dnnl_primitive_execute(c->reorder, c->stream, 2, move);
	if (!s && to_weight)
		cpu_helpers()->add(c->d.out, c->bias, c->d.bias);
	return cpu_status(s, "to run a convolution", err);
}

void cpu_conv_destroy(struct backend_conv *c)
{
	if (!c)
		return;
	if (c->primitive)
		dnnl_primitive_destroy(c->primitive);
	if (c->reorder)
		dnnl_primitive_destroy(c->reorder);
	if (c->packed)
		dnnl_memory_destroy(c->packed);
	if (c->plain)
		dnnl_memory_destroy(c->plain);
	for (int i = 0; i < CONV_ARGS_MAX; i++)
		if (c->memory[i])
			dnnl_memory_destroy(c->memory[i]);
	free(c);
}
