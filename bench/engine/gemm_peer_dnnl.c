/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's matmul with weights in the layout it asks for; bringing them there is not measured. */
#include "bench/engine/gemm_peer.h"

#include <dnnl.h>
#include <stddef.h>
#include <stdlib.h>

struct gemm_peer {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_t primitive;
	dnnl_memory_t a, b, packed, c;
};

const char *gemm_peer_name(void)
{
	return "oneDNN, packed weights";
}

static dnnl_status_t pack(
	struct gemm_peer *p, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to, void *b)
{
	dnnl_primitive_desc_t pd = NULL;
	dnnl_primitive_t reorder = NULL;
	dnnl_status_t s = dnnl_memory_create(&p->b, from, p->engine, b);
	if (!s)
		s = dnnl_memory_create(&p->packed, to, p->engine, DNNL_MEMORY_ALLOCATE);
	if (!s)
		s = dnnl_reorder_primitive_desc_create(&pd, from, p->engine, to, p->engine, NULL);
	if (!s)
		s = dnnl_primitive_create(&reorder, pd);
	if (!s) {
		dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, p->b }, { DNNL_ARG_TO, p->packed } };
		s = dnnl_primitive_execute(reorder, p->stream, 2, args);
		dnnl_stream_wait(p->stream);
	}
	dnnl_primitive_destroy(reorder);
	dnnl_primitive_desc_destroy(pd);
	return s;
}

static dnnl_status_t prepare(struct gemm_peer *p, int64_t m, int64_t n, int64_t k,
	dnnl_data_type_t type, void *a, void *b, float *c)
{
	const dnnl_dims_t dims_a = { m, k }, dims_b = { k, n }, dims_c = { m, n };
	dnnl_memory_desc_t md_a, md_b, any_b, md_c;
	dnnl_matmul_desc_t d;
	dnnl_primitive_desc_t pd = NULL;
	dnnl_status_t s = dnnl_memory_desc_init_by_tag(&md_a, 2, dims_a, type, dnnl_ab);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&md_b, 2, dims_b, type, dnnl_ba);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&any_b, 2, dims_b, type, dnnl_format_tag_any);
	if (!s)
		s = dnnl_memory_desc_init_by_tag(&md_c, 2, dims_c, dnnl_f32, dnnl_ab);
	if (!s)
		s = dnnl_matmul_desc_init(&d, &md_a, &any_b, NULL, &md_c);
	if (!s)
		s = dnnl_primitive_desc_create(&pd, &d, NULL, p->engine, NULL);
	if (!s)
		s = dnnl_primitive_create(&p->primitive, pd);
	if (!s)
		s = dnnl_memory_create(&p->a, &md_a, p->engine, a);
	if (!s)
		s = dnnl_memory_create(&p->c, &md_c, p->engine, c);
	if (!s)
		s = pack(p, &md_b, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), b);
	dnnl_primitive_desc_destroy(pd);
	return s;
}

struct gemm_peer *gemm_peer_create(
	int64_t m, int64_t n, int64_t k, bool bf16, void *a, void *b, float *c)
{
	struct gemm_peer *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	dnnl_status_t s = dnnl_engine_create(&p->engine, dnnl_cpu, 0);
	if (!s)
		s = dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags);
	if (!s)
		s = prepare(p, m, n, k, bf16 ? dnnl_bf16 : dnnl_f32, a, b, c);
	if (!s)
		return p;
	gemm_peer_destroy(p);
	return NULL;
}

void gemm_peer_run(struct gemm_peer *p)
{
	dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, p->a }, { DNNL_ARG_WEIGHTS, p->packed },
		{ DNNL_ARG_DST, p->c } };
	(void)dnnl_primitive_execute(p->primitive, p->stream, 3, args);
	(void)dnnl_stream_wait(p->stream);
}

void gemm_peer_destroy(struct gemm_peer *p)
{
	if (!p)
		return;
	dnnl_primitive_destroy(p->primitive);
	dnnl_memory_destroy(p->a);
	dnnl_memory_destroy(p->b);
	dnnl_memory_destroy(p->packed);
	dnnl_memory_destroy(p->c);
	dnnl_stream_destroy(p->stream);
	dnnl_engine_destroy(p->engine);
	free(p);
}
