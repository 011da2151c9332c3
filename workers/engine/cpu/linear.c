/* SPDX-License-Identifier: Apache-2.0
 * Dense products on oneDNN. Forward is a prepared matmul with bias, ReLU and residual fused, its
 * scratch in the plan's workspace; where the library would want more than that, and backward, it is
 * the library's sgemm. Called through the backend's table. */
#include "workers/engine/cpu/cpu_private.h"

#include <stdlib.h>
#include <string.h>

enum { LINEAR_ARGS_MAX = 6 };

struct backend_linear {
	struct backend_linear_desc d;
	dnnl_stream_t stream;
	dnnl_primitive_t primitive; /* NULL: sgemm and separate loops */
	dnnl_memory_t memory[LINEAR_ARGS_MAX];
	dnnl_exec_arg_t arg[LINEAR_ARGS_MAX];
	int arg_count;
};

static dnnl_status_t descriptors(const struct backend_linear_desc *d, dnnl_memory_desc_t *x,
	dnnl_memory_desc_t *w, dnnl_memory_desc_t *b, dnnl_memory_desc_t *y)
{
	const dnnl_dims_t dx = { d->m, d->k }, dw = { d->k, d->n }, db = { 1, d->n },
					  dy = { d->m, d->n };
	dnnl_format_tag_t w_tag = d->transposed ? dnnl_ba : dnnl_ab;
	dnnl_status_t s = dnnl_memory_desc_init_by_tag(x, 2, dx, dnnl_f32, dnnl_ab);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(w, 2, dw, dnnl_f32, w_tag);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(b, 2, db, dnnl_f32, dnnl_ab);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(y, 2, dy, dnnl_f32, dnnl_ab);
	return s;
}

static dnnl_status_t attributes(
	const struct backend_linear_desc *d, const dnnl_memory_desc_t *y, dnnl_primitive_attr_t *ret)
{
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t ops = NULL;
	dnnl_status_t s = dnnl_primitive_attr_create(&attr);
	if (!s)
		s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
	if (!s)
		s = dnnl_post_ops_create(&ops);
	if (!s && d->act == PLAN_ACT_RELU)
		s = dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
	if (!s && d->residual)
		s = dnnl_post_ops_append_binary(ops, dnnl_binary_add, y);
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

static dnnl_status_t bind(struct backend_linear *l, dnnl_engine_t engine, int arg,
	const dnnl_memory_desc_t *md, const void *data)
{
	/* The library's interface has no const; inputs are only read. */
	union {
		const void *in;
		void *out;
	} handle = { .in = data };
	int i = l->arg_count;
	dnnl_status_t s = dnnl_memory_create(&l->memory[i], md, engine, handle.out);
	if (s)
		return s;
	l->arg[i] = (dnnl_exec_arg_t){ .arg = arg, .memory = l->memory[i] };
	l->arg_count++;
	return s;
}

/* Leaves l->primitive NULL, without an error, when the library has no fast way that fits. */
static dnnl_status_t prepare(struct backend_linear *l, dnnl_engine_t engine)
{
	const struct backend_linear_desc *d = &l->d;
	dnnl_memory_desc_t x, w, b, y;
	dnnl_primitive_attr_t attr = NULL;
	dnnl_primitive_desc_t pd = NULL;
	dnnl_matmul_desc_t op;
	dnnl_status_t s = descriptors(d, &x, &w, &b, &y);
	if (!s)
		s = attributes(d, &y, &attr);
	if (!s)
		s = dnnl_matmul_desc_init(&op, &x, &w, d->b ? &b : NULL, &y);
	if (!s && dnnl_primitive_desc_create(&pd, &op, attr, engine, NULL)) {
		dnnl_primitive_attr_destroy(attr);
		return dnnl_success;
	}
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	if (s)
		return s;
	const char *implementation = "";
	(void)dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation);
	const dnnl_memory_desc_t *scratch =
		dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
	size_t scratch_bytes = dnnl_memory_desc_get_size(scratch);
	bool usable = scratch_bytes <= (size_t)d->workspace_bytes && !strstr(implementation, "ref");
	if (usable) {
		s = bind(l, engine, DNNL_ARG_SRC, &x, d->x);
		if (!s)
			s = bind(l, engine, DNNL_ARG_WEIGHTS, &w, d->w);
		if (!s)
			s = bind(l, engine, DNNL_ARG_DST, &y, d->y);
		if (!s && d->b)
			s = bind(l, engine, DNNL_ARG_BIAS, &b, d->b);
		if (!s && d->residual)
			s = bind(
				l, engine, DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, &y, d->residual);
		if (!s && scratch_bytes > 0)
			s = bind(l, engine, DNNL_ARG_SCRATCHPAD, scratch, d->workspace);
		if (!s)
			s = dnnl_primitive_create(&l->primitive, pd);
	}
	dnnl_primitive_desc_destroy(pd);
	return s;
}

int cpu_linear_create(struct backend_ctx *ctx, const struct backend_linear_desc *d,
	struct backend_linear **ret, struct err *err)
{
	struct backend_linear *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to prepare a product");
	l->d = *d;
	l->stream = ctx->stream;
	int rc = cpu_status(prepare(l, ctx->engine), "a product", err);
	if (rc) {
		cpu_linear_destroy(l);
		return rc;
	}
	*ret = l;
	return 0;
}

int cpu_linear_run(struct backend_linear *l, struct err *err)
{
	const struct backend_linear_desc *d = &l->d;
	if (l->primitive)
		return cpu_status(dnnl_primitive_execute(l->primitive, l->stream, l->arg_count, l->arg),
			"to run a product", err);
	int rc = cpu_status(dnnl_sgemm('N', d->transposed ? 'T' : 'N', d->m, d->n, d->k, 1.0f, d->x,
							d->k, d->w, d->transposed ? d->k : d->n, 0.0f, d->y, d->n),
		"a product", err);
	if (rc)
		return rc;
	if (d->b || d->act == PLAN_ACT_RELU)
		cpu_helpers()->relu_bias(d->m, d->n, d->b, d->act == PLAN_ACT_RELU, d->y);
	if (d->residual)
		cpu_helpers()->add(d->m * d->n, d->residual, d->y);
	return 0;
}

void cpu_linear_destroy(struct backend_linear *l)
{
	if (!l)
		return;
	if (l->primitive)
		dnnl_primitive_destroy(l->primitive);
	for (int i = 0; i < LINEAR_ARGS_MAX; i++)
		if (l->memory[i])
			dnnl_memory_destroy(l->memory[i]);
	free(l);
}

int cpu_linear_backward_data(const struct backend_linear_backward *d, struct err *err)
{
	return cpu_status(dnnl_sgemm('N', d->transposed ? 'N' : 'T', d->m, d->k, d->n, 1.0f, d->dy,
						  d->n, d->w, d->transposed ? d->k : d->n, 0.0f, d->dx, d->k),
		"a backward product", err);
}

int cpu_linear_backward_weight(const struct backend_linear_backward *d, struct err *err)
{
	dnnl_status_t s;
	if (d->transposed)
		s = dnnl_sgemm(
			'T', 'N', d->n, d->k, d->m, 1.0f, d->dy, d->n, d->x, d->k, 1.0f, d->dw, d->k);
	else
		s = dnnl_sgemm(
			'T', 'N', d->k, d->n, d->m, 1.0f, d->x, d->k, d->dy, d->n, 1.0f, d->dw, d->n);
	if (!s && d->db)
		cpu_helpers()->column_sum(d->m, d->n, d->dy, d->db);
	return cpu_status(s, "a backward product", err);
}
