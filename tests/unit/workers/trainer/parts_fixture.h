/* SPDX-License-Identifier: Apache-2.0
 * A model of random tensors, and what each rank of a random mesh keeps of it, without a plan: cut
 * by rows, columns and heads (unevenly too), by ZeRO, spread over stages, one tensor in two of
 * them. Every element says which it is. */
#pragma once

#include "tests/support/check.h"
#include "workers/plan/plan_mesh.h"
#include "workers/trainer/half.h"
#include "workers/trainer/hf_weights.h"

enum { PARTS_TENSORS_MAX = 24, PARTS_RANKS_MAX = 8 };

struct parts_tensor {
	struct engine_tensor whole; /* without data */
	int cut_dim, blocks;        /* -1: ranks of the tensor axis have it alike */
	bool zero;                  /* ranks of the data axis have a part each */
	int skew;                   /* of their parts */
};

struct parts_model {
	struct parts_tensor tensors[PARTS_TENSORS_MAX];
	int count;
};

static const char *const parts_dtypes[] = { "F32", "BF16", "F16" };

/* Exact in its type, and another for the neighbours in every direction. */
static inline float parts_value(const struct engine_tensor *t, int64_t element)
{
	return t->type == PLAN_F32 ? (float)((element + t->number * 7919) % (1 << 24))
							   : (float)((element * 31 + t->number * 17) % 251);
}

static inline struct parts_tensor *parts_add(
	struct parts_model *m, enum engine_tensor_kind kind, enum plan_type type)
{
	struct parts_tensor *x = &m->tensors[m->count];
	*x = (struct parts_tensor){ .cut_dim = -1, .blocks = 1 };
	x->whole.number = 3 * m->count; /* ascending, with gaps */
	x->whole.kind = kind;
	x->whole.type = type;
	x->whole.dtype = parts_dtypes[type];
	snprintf(x->whole.name, sizeof(x->whole.name), "%st.%d",
		kind == ENGINE_PARAMETER ? "" : "optimizer.exp_avg.", m->count);
	m->count++;
	return x;
}

/* Ends with t.count and so on, as one rank alone has it. */
static inline void parts_shape(
	struct parts_tensor *x, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
	const int64_t shape[PLAN_RANK_MAX] = { a, b, c, d };
	struct engine_tensor *t = &x->whole;
	t->rank = rank;
	t->count = 1;
	for (int i = 0; i < rank; i++) {
		t->shape[i] = shape[i];
		t->count *= shape[i];
	}
	t->cut = plan_cut_none(t->count);
	t->bytes = t->count * plan_type_bytes(t->type);
	t->copies = 1;
}

/* Parameters first, as engines have it. */
static inline void parts_random(struct check_random *r, struct parts_model *ret)
{
	*ret = (struct parts_model){ 0 };
	int parameters = (int)check_random_range(r, 4, 12), others = (int)check_random_range(r, 0, 8);
	for (int i = 0; i < parameters + others; i++) {
		bool first = i < parameters;
		struct parts_tensor *x = parts_add(ret, first ? ENGINE_PARAMETER : ENGINE_OPTIMIZER,
			first ? (enum plan_type)check_random_range(r, 0, 2) : PLAN_F32);
		int64_t n[PLAN_RANK_MAX];
		bool large = check_random_range(r, 0, 9) == 0;
		for (int d = 0; d < PLAN_RANK_MAX; d++)
			n[d] = check_random_range(r, 1, large ? 40 : 12);
		parts_shape(x, (int)check_random_range(r, 1, 4), n[0], n[1], n[2], n[3]);
		x->cut_dim = (int)check_random_range(r, -1, x->whole.rank - 1);
		x->blocks = (int)check_random_range(r, 1, 3);
		if (x->cut_dim >= 0 && x->whole.shape[x->cut_dim] % x->blocks != 0)
			x->blocks = 1;
		x->zero = check_random_range(r, 0, 2) > 0;
		x->skew = (int)check_random_range(r, 0, 3);
	}
}

static inline struct plan_mesh parts_mesh(struct check_random *r)
{
	static const int ways[] = { 1, 2, 3, 4 };
	struct plan_mesh m = { 0 };
	do {
		m.data = ways[check_random_range(r, 0, 3)];
		m.tensor = ways[check_random_range(r, 0, 3)];
		m.pipeline = ways[check_random_range(r, 0, 2)];
	} while (plan_mesh_size(&m) > PARTS_RANKS_MAX);
	m.zero = m.data > 1 ? (int)check_random_range(r, 0, 3) : 0;
	return m;
}

static inline struct plan_mesh parts_place(const struct plan_mesh *m, int rank)
{
	struct plan_mesh p = *m;
	p.tensor_rank = rank % m->tensor;
	p.data_rank = rank / m->tensor % m->data;
	p.pipeline_rank = rank / m->tensor / m->data;
	return p;
}

/* Tensor 0 is the embedding, to which the last stage's head is tied. */
static inline bool parts_has(const struct plan_mesh *p, int i)
{
	return i % p->pipeline == p->pipeline_rank || (i == 0 && p->pipeline_rank == p->pipeline - 1);
}

static inline void parts_cut(
	const struct parts_tensor *x, const struct plan_mesh *p, struct engine_tensor *t)
{
	int64_t inner = 1, block = t->shape[x->cut_dim] / x->blocks;
	for (int d = x->cut_dim + 1; d < t->rank; d++)
		inner *= t->shape[d];
	int64_t begin = block * p->tensor_rank / p->tensor;
	int64_t end = block * (p->tensor_rank + 1) / p->tensor;
	t->cut = (struct plan_cut){ begin * inner, (end - begin) * inner, block * inner };
	t->count = t->count / t->cut.period * t->cut.run;
}

/* What the rank keeps of tensor i, without data. */
static inline struct engine_tensor parts_of(
	const struct parts_model *m, const struct plan_mesh *p, int i)
{
	const struct parts_tensor *x = &m->tensors[i];
	struct engine_tensor t = x->whole;
	bool cut = x->cut_dim >= 0 && t.shape[x->cut_dim] / x->blocks >= p->tensor;
	bool zero = p->zero > 0 && x->zero;
	if (cut)
		parts_cut(x, p, &t);
	if (zero) { /* the first and the last may have less, or nothing; another stage cuts elsewhere */
		int64_t skew = x->skew + p->pipeline_rank;
		int64_t row = t.count + 2 * skew, shard = (row + p->data - 1) / p->data;
		int64_t begin = p->data_rank * shard - skew, end = begin + shard;
		begin = begin < 0 ? 0 : begin > t.count ? t.count : begin;
		end = end < begin ? begin : end > t.count ? t.count : end;
		t.begin = begin;
		t.count = end - begin;
	}
	t.bytes = t.count * plan_type_bytes(t.type);
	int tensor = cut ? 1 : p->tensor, data = zero ? 1 : p->data;
	t.copies = tensor * data;
	t.copy = (zero ? 0 : p->data_rank) * tensor + (cut ? 0 : p->tensor_rank) +
		(i == 0 && p->pipeline_rank > 0 ? t.copies : 0);
	return t;
}

/* With data: right ones, or zeros. */
static inline struct hf_weights parts_weights(
	const struct parts_model *m, const struct plan_mesh *p, bool fill)
{
	struct hf_weights w = { .list = calloc(PARTS_TENSORS_MAX, sizeof(*w.list)) };
	for (int i = 0; i < m->count; i++) {
		if (!parts_has(p, i))
			continue;
		struct engine_tensor *t = &w.list[w.count++];
		*t = parts_of(m, p, i);
		t->data = calloc(1, (size_t)t->bytes + 1);
		for (int64_t k = 0; fill && k < t->count; k++) {
			float x = parts_value(t, plan_cut_at(&t->cut, t->begin + k));
			half_convert(1, HALF_F32, &x, (enum half_type)t->type,
				(char *)t->data + k * plan_type_bytes(t->type));
		}
	}
	return w;
}

static inline void parts_free(struct hf_weights *w)
{
	for (int i = 0; i < w->count; i++)
		free(w->list[i].data);
	hf_weights_finish(w);
}

/* The first element that is not what it says, -1: there is none. */
static inline int64_t parts_wrong(const struct engine_tensor *t)
{
	for (int64_t k = 0; k < t->count; k++) {
		int64_t element = plan_cut_at(&t->cut, t->begin + k);
		float x;
		half_convert(1, (enum half_type)t->type, (char *)t->data + k * plan_type_bytes(t->type),
			HALF_F32, &x);
		if (x != parts_value(t, element))
			return element;
	}
	return -1;
}
