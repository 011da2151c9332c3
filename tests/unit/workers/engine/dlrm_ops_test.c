/* SPDX-License-Identifier: Apache-2.0
 * Operations of click-through models against plain double implementations: bags, pairs and their
 * gradient (checked by finite differences), binary cross-entropy, and the sparse tables' sums and
 * updates. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/plan/plan_private.h"

/* ------------------------------------------------------------------ bags */

struct bags {
	int64_t samples, lookups, d, rows, tables;
};

static const struct bags bag_shapes[] = {
	{ 3, 1, 4, 7, 2 },
	{ 9, 4, 17, 50, 3 },
	{ 300, 3, 64, 5000, 1 },
	{ 2, 40, 33, 3, 4 },
};

/* About a quarter of the places are empty. */
static int32_t *draw_ids(int64_t count, int64_t rows)
{
	int32_t *ids = ops_alloc((size_t)count * sizeof(int32_t));
	for (int64_t i = 0; i < count; i++)
		ids[i] = ops_pick(0, 3) ? (int32_t)ops_pick(0, rows - 1) : -1;
	return ids;
}

static void run_bag(void *arg)
{
	ops->embedding_bag(arg);
}

static void test_bag(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(bag_shapes); k++) {
		struct bags s = bag_shapes[k];
		int64_t features = s.tables + 1, table = s.tables - 1;
		struct ops_vec w = ops_random(PLAN_F32, s.rows * s.d, 1);
		struct ops_vec z = ops_random(ops_type, s.samples * features * s.d, 1);
		double *want = ops_copy(z.v, z.count);
		struct backend_bag d = { .samples = s.samples,
			.lookups = s.lookups,
			.d = s.d,
			.table = table,
			.features = features,
			.bags = draw_ids(s.samples * s.lookups, s.rows),
			.weight = w.p,
			.z = z.p };
		for (int64_t i = 0; i < s.samples; i++)
			for (int64_t e = 0; e < s.d; e++) {
				double *at = &want[(i * features + table + 1) * s.d + e];
				*at = 0;
				for (int64_t l = 0; l < s.lookups; l++)
					if (d.bags[i * s.lookups + l] >= 0)
						*at += w.v[d.bags[i * s.lookups + l] * s.d + e];
			}
		OPS_RUN(run_bag, &d, &z);
		OPS_NEAR(z, want, 1e-6);
	}
}

static void run_store(void *arg)
{
	ops->sparse_store(arg);
}

static void test_store(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(bag_shapes); k++) {
		struct bags s = bag_shapes[k];
		int64_t features = s.tables + 1, looks = s.samples * s.lookups;
		struct ops_vec dz = ops_random(ops_type, s.samples * features * s.d, 1);
		struct ops_vec grads = ops_random(PLAN_F32, s.samples * s.d, 1);
		double *want = ops_doubles(grads.count);
		struct backend_bag d = { .samples = s.samples,
			.lookups = s.lookups,
			.d = s.d,
			.table = s.tables - 1,
			.features = features,
			.bags = draw_ids(looks, s.rows),
			.dz = dz.p,
			.ids = ops_alloc((size_t)looks * sizeof(int32_t)),
			.grads = grads.p };
		for (int64_t i = 0; i < grads.count; i++)
			want[i] = dz.v[(i / s.d * features + s.tables) * s.d + i % s.d];
		OPS_RUN(run_store, &d, &grads);
		OPS_NEAR(grads, want, 0);
		assert_memory_equal(d.ids, d.bags, (size_t)looks * sizeof(int32_t));
	}
}

/* ------------------------------------------------------------------ pieces of tables */

/* Pieces without a row too: then nothing is theirs. */
static void test_piece_ids(void **state)
{
	enum { COUNT = 333, ROWS = 50 };
	static const int64_t pieces[][2] = { { 0, ROWS }, { 0, 1 }, { 13, 20 }, { 49, 1 }, { 0, 0 } };
	int32_t *ids = draw_ids(COUNT, ROWS);
	ids[0] = 0;
	ids[1] = ROWS - 1;
	for (size_t k = 0; k < ARRAY_LEN(pieces); k++) {
		int64_t first = pieces[k][0], rows = pieces[k][1];
		int32_t *y = ops_alloc(COUNT * sizeof(int32_t));
		ops->piece_ids(COUNT, first, rows, ids, y);
		ops_settle();
		for (int i = 0; i < COUNT; i++) {
			bool own = ids[i] >= 0 && ids[i] >= first && ids[i] < first + rows;
			assert_int_equal(y[i], own ? ids[i] - first : -1);
		}
	}
}

static void run_gather(void *arg)
{
	ops->piece_gather(arg);
}

/* Into one column of rows of features; a table of one piece is a copy. */
static void test_piece_gather(void **state)
{
	enum { PIECES_MAX = 5 };
	for (size_t k = 0; k < ARRAY_LEN(bag_shapes); k++) {
		struct bags s = bag_shapes[k];
		int64_t features = s.tables + 1, table = s.tables - 1;
		struct ops_vec z = ops_random(ops_type, s.samples * features * s.d, 1);
		double *want = ops_copy(z.v, z.count);
		const void *piece[PIECES_MAX];
		struct backend_pieces d = { .samples = s.samples,
			.d = s.d,
			.table = table,
			.features = features,
			.piece = piece,
			.count = (int)k % PIECES_MAX + 1,
			.z = z.p };
		for (int64_t i = 0; i < s.samples * s.d; i++)
			want[(i / s.d * features + table + 1) * s.d + i % s.d] = 0;
		for (int n = 0; n < d.count; n++) {
			struct ops_vec x = ops_random(ops_type, s.samples * s.d, 1);
			piece[n] = x.p;
			for (int64_t i = 0; i < x.count; i++)
				want[(i / s.d * features + table + 1) * s.d + i % s.d] += x.v[i];
		}
		OPS_RUN(run_gather, &d, &z);
		OPS_NEAR(z, want, 1e-6);
	}
}

struct spread_run {
	struct bags s;
	const void *z;
	void *y;
};

static void run_spread(void *arg)
{
	struct spread_run *r = arg;
	ops->piece_spread(r->s.samples, r->s.d, r->s.tables - 1, r->s.tables + 1, r->z, r->y);
}

static void test_piece_spread(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(bag_shapes); k++) {
		struct bags s = bag_shapes[k];
		int64_t features = s.tables + 1;
		struct ops_vec z = ops_random(ops_type, s.samples * features * s.d, 1);
		struct ops_vec y = ops_random(ops_type, s.samples * s.d, 1);
		double *want = ops_doubles(y.count);
		struct spread_run r = { s, z.p, y.p };
		for (int64_t i = 0; i < y.count; i++)
			want[i] = z.v[(i / s.d * features + s.tables) * s.d + i % s.d];
		OPS_RUN(run_spread, &r, &y);
		OPS_NEAR(y, want, 0);
	}
}

/* ------------------------------------------------------------------ pairs */

struct pairs {
	int64_t samples, f, d;
	double *z, *y, *dy, *dz;
};

static int64_t width_of(const struct pairs *p)
{
	return p->d + p->f * (p->f - 1) / 2;
}

static void reference_pairs(void *arg)
{
	struct pairs *p = arg;
	for (int64_t s = 0; s < p->samples; s++) {
		const double *z = p->z + s * p->f * p->d;
		double *y = p->y + s * width_of(p), *out = y + p->d;
		for (int64_t i = 0; i < p->d; i++)
			y[i] = z[i];
		for (int64_t i = 1; i < p->f; i++)
			for (int64_t j = 0; j < i; j++, out++) {
				*out = 0;
				for (int64_t k = 0; k < p->d; k++)
					*out += z[i * p->d + k] * z[j * p->d + k];
			}
	}
}

/* Without the gate of the dense feature. */
static void reference_pairs_backward(struct pairs *p)
{
	memset(p->dz, 0, (size_t)(p->samples * p->f * p->d) * sizeof(double));
	for (int64_t s = 0; s < p->samples; s++) {
		const double *z = p->z + s * p->f * p->d;
		const double *dy = p->dy + s * width_of(p), *in = dy + p->d;
		double *dz = p->dz + s * p->f * p->d;
		for (int64_t i = 0; i < p->d; i++)
			dz[i] = dy[i];
		for (int64_t i = 1; i < p->f; i++)
			for (int64_t j = 0; j < i; j++, in++)
				for (int64_t k = 0; k < p->d; k++) {
					dz[i * p->d + k] += *in * z[j * p->d + k];
					dz[j * p->d + k] += *in * z[i * p->d + k];
				}
	}
}

static void test_reference_pairs(void **state)
{
	struct pairs p = { .samples = 2, .f = 5, .d = 3 };
	p.z = ops_random(PLAN_F32, 30, 1).v;
	p.dy = ops_random(PLAN_F32, 2 * width_of(&p), 1).v;
	p.y = ops_doubles(2 * width_of(&p));
	p.dz = ops_doubles(30);
	reference_pairs(&p);
	reference_pairs_backward(&p);
	ops_differences(reference_pairs, &p, p.z, 30, p.y, p.dy, 2 * width_of(&p), p.dz);
}

struct pairs_run {
	const struct pairs *p;
	const void *z, *dy;
	void *y, *dz;
};

static void run_pairs(void *arg)
{
	struct pairs_run *r = arg;
	ops->interaction(r->p->samples, r->p->f, r->p->d, r->z, r->y);
}

static void run_pairs_backward(void *arg)
{
	struct pairs_run *r = arg;
	ops->interaction_backward(r->p->samples, r->p->f, r->p->d, r->z, r->dy, r->dz);
}

static void test_pairs(void **state)
{
	static const int64_t sizes[][3] = {
		{ 3, 2, 4 }, { 5, 27, 64 }, { 2, 9, 130 }, /* more than a block of units */
		{ 40, 17, 33 }, { 1, 65, 7 },              /* the most features */
	};
	for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
		struct pairs p = { .samples = sizes[k][0], .f = sizes[k][1], .d = sizes[k][2] };
		int64_t ys = p.samples * width_of(&p);
		struct ops_vec z = ops_random(ops_type, p.samples * p.f * p.d, 1);
		struct ops_vec y = ops_new(ops_type, ys), dy = ops_random(ops_type, ys, 1);
		struct ops_vec dz = ops_new(ops_type, z.count);
		for (int64_t i = 0; i < z.count; i++)
			if (i % (p.f * p.d) < p.d)
				ops_set(&z, i, fmax(z.v[i], 0)); /* a ReLU's output */
		p.z = z.v;
		p.dy = dy.v;
		p.y = ops_doubles(ys);
		p.dz = ops_doubles(z.count);
		reference_pairs(&p);
		reference_pairs_backward(&p);
		for (int64_t i = 0; i < z.count; i++)
			if (i % (p.f * p.d) < p.d && z.v[i] <= 0)
				p.dz[i] = 0;
		struct pairs_run r = { &p, z.p, dy.p, y.p, dz.p };
		OPS_RUN(run_pairs, &r, &y);
		OPS_NEAR(y, p.y, 1e-6);
		OPS_RUN(run_pairs_backward, &r, &dz);
		OPS_NEAR(dz, p.dz, 1e-6);
	}
}

/* ------------------------------------------------------------------ loss */

static double loss_of(double y, double target)
{
	return (y > 0 ? y : 0) + log1p(exp(-fabs(y))) - target * y;
}

static void run_bce(void *arg)
{
	ops->bce(arg);
}

static void test_bce(void **state)
{
	enum { ROWS = 37 };
	struct ops_vec y = ops_random(ops_type, ROWS, 8), loss = ops_new(PLAN_F32, ROWS);
	struct ops_vec hit = ops_new(PLAN_F32, ROWS), target = ops_new(PLAN_F32, ROWS);
	ops_set(&y, 2, 0);
	double *want = ops_doubles(ROWS), *want_loss = ops_doubles(ROWS), *want_hit = ops_doubles(ROWS);
	const double scale = 0.25;
	for (int i = 0; i < ROWS; i++) {
		double t = i % 3 == 0 ? 0.0 : i % 3 == 1 ? 1.0 : 0.3, v = y.v[i], h = 1e-6;
		ops_set(&target, i, t);
		if (i == 11) { /* ignored */
			((float *)target.p)[i] = NAN;
			continue;
		}
		t = target.v[i];
		want_loss[i] = loss_of(v, t);
		want_hit[i] = (v > 0) == (t > 0.5);
		want[i] = scale * (loss_of(v + h, t) - loss_of(v - h, t)) / (2 * h);
	}
	struct backend_regress d = { .rows = ROWS,
		.outputs = 1,
		.y = y.p,
		.targets = target.p,
		.row_loss = loss.p,
		.row_hit = hit.p };
	double *logits = ops_copy(y.v, ROWS);
	OPS_RUN(run_bce, &d, &y, &loss, &hit);
	OPS_NEAR(loss, want_loss, 1e-6);
	OPS_NEAR(hit, want_hit, 0);
	OPS_NEAR(y, logits, 0); /* scale 0: evaluation */
	d.scale = (float)scale;
	OPS_RUN(run_bce, &d, &y, &loss, &hit);
	OPS_NEAR(loss, want_loss, 1e-6);
	OPS_NEAR(y, want, 1e-6);
}

/* Where e^y is out of range, of doubles too: the loss is |y| or 0, the slope 1 or 0. */
static void test_bce_far(void **state)
{
	enum { ROWS = 4 };
	struct ops_vec y = ops_new(ops_type, ROWS), target = ops_new(PLAN_F32, ROWS);
	struct ops_vec loss = ops_new(PLAN_F32, ROWS), hit = ops_new(PLAN_F32, ROWS);
	const double logits[ROWS] = { 1024, -1024, 1024, -1024 },
				 want_loss[ROWS] = { 1024, 0, 0, 1024 };
	const double want_hit[ROWS] = { 0, 1, 1, 0 }, slope[ROWS] = { 1, 0, 0, -1 };
	for (int i = 0; i < ROWS; i++) {
		ops_set(&y, i, logits[i]);
		ops_set(&target, i, i / 2);
	}
	struct backend_regress d = { .rows = ROWS,
		.outputs = 1,
		.y = y.p,
		.targets = target.p,
		.row_loss = loss.p,
		.row_hit = hit.p,
		.scale = 1 };
	OPS_RUN(run_bce, &d, &y, &loss, &hit);
	OPS_NEAR(loss, want_loss, 0);
	OPS_NEAR(hit, want_hit, 0);
	OPS_NEAR(y, slope, 0);
}

/* ------------------------------------------------------------------ sparse tables */

struct table {
	int64_t samples, lookups, d, rows;
	int32_t *ids, *listed, *count;
	struct ops_vec grads, sums;
	double *want; /* [rows, d]: the dense gradient */
	struct backend_sparse d_reduce;
};

static const struct table table_shapes[] = {
	{ 1, 1, 3, 1 }, { 5, 3, 4, 6 },
	{ 300, 4, 19, PLAN_ROW_BLOCKS }, /* many look-ups of a row, a row in every block */
	{ 2300, 1, 2, 2 },               /* all of them in two rows */
	{ 1500, 3, 3, 70000 },           /* several blocks' worth, and as many digits as rows have */
	{ 70, 2, 33, 5000 },             /* two digits */
	{ 64, 5, 8, INT64_C(1) << 30 },  /* three */
};

static struct table table_of(struct table t)
{
	int64_t looks = t.samples * t.lookups;
	t.ids = draw_ids(looks, t.rows);
	t.listed = ops_alloc((size_t)looks * sizeof(int32_t));
	t.count = ops_alloc(sizeof(int32_t));
	t.grads = ops_random(PLAN_F32, t.samples * t.d, 1);
	t.sums = ops_random(PLAN_F32, looks * t.d, 1);
	t.d_reduce = (struct backend_sparse){ .samples = t.samples,
		.lookups = t.lookups,
		.d = t.d,
		.table_rows = t.rows,
		.ids = t.ids,
		.grads = t.grads.p,
		.rows = t.listed,
		.count = t.count,
		.sums = t.sums.p,
		.ws = ops_workspace(plan_workspace_sparse(looks)) };
	return t;
}

static double reduced; /* what the last run returned */

static void run_reduce(void *arg)
{
	struct backend_sparse d = *(const struct backend_sparse *)arg;
	double squares = 0;
	d.ret_square = &squares;
	ops->sparse_reduce(&d);
	ops_settle();
	if (reduced >= 0)
		assert_true(squares == reduced);
	reduced = squares;
}

static int compare_ids(const void *a, const void *b)
{
	const int32_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

static void test_reduce(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(table_shapes); k++) {
		struct table t = table_of(table_shapes[k]);
		int64_t looks = t.samples * t.lookups, rows = 0;
		int32_t *sorted = ops_alloc((size_t)looks * sizeof(int32_t));
		memcpy(sorted, t.ids, (size_t)looks * sizeof(int32_t));
		qsort(sorted, (size_t)looks, sizeof(int32_t), compare_ids);
		for (int64_t i = 0; i < looks; i++)
			if (sorted[i] >= 0 && (rows == 0 || sorted[rows - 1] != sorted[i]))
				sorted[rows++] = sorted[i];
		double *want = ops_copy(t.sums.v, t.sums.count), squares = 0;
		memset(want, 0, (size_t)(rows * t.d) * sizeof(double));
		for (int64_t r = 0; r < rows; r++)
			for (int64_t i = 0; i < looks; i++)
				for (int64_t e = 0; e < t.d && t.ids[i] == sorted[r]; e++)
					want[r * t.d + e] += t.grads.v[i / t.lookups * t.d + e];
		/* Relative to what was added up, where that nearly cancels. */
		double *size = ops_doubles(t.sums.count), terms = 0;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t i = 0; i < looks; i++)
				for (int64_t e = 0; e < t.d && t.ids[i] == sorted[r]; e++)
					size[r * t.d + e] += fabs(t.grads.v[i / t.lookups * t.d + e]);
		for (int64_t i = 0; i < rows * t.d; i++) {
			squares += want[i] * want[i];
			terms += fabs(want[i]) * size[i];
		}
		reduced = -1;
		OPS_RUN(run_reduce, &t.d_reduce, &t.sums);
		assert_int_equal(*t.count, rows);
		assert_memory_equal(t.listed, sorted, (size_t)rows * sizeof(int32_t));
		OPS_NEAR_OF(t.sums, want, ops_largest(size, rows * t.d), 1e-6);
		assert_true(fabs(reduced - squares) <= 1e-6 * terms);
	}
}

static void run_sgd(void *arg)
{
	ops->sparse_sgd(arg);
}

static void run_adamw(void *arg)
{
	ops->sparse_adamw(arg);
}

/* Rows that were looked up move as a dense update would move them; others not at all. */
static void test_updates(void **state)
{
	for (size_t k = 0; k + 1 < ARRAY_LEN(table_shapes); k++) {
		struct table t = table_of(table_shapes[k]);
		int64_t n = t.rows * t.d;
		t.d_reduce.ret_square = &reduced;
		ops->sparse_reduce(&t.d_reduce);
		ops_settle();
		struct ops_vec w = ops_random(PLAN_F32, n, 1), m = ops_random(PLAN_F32, n, 1);
		struct ops_vec v = ops_random(PLAN_F32, n, 1), plain = ops_new(PLAN_F32, n);
		for (int64_t i = 0; i < n; i++) {
			ops_set(&v, i, fabs(v.v[i]));
			ops_set(&plain, i, w.v[i]);
		}
		struct backend_update d = { .g = t.sums.p,
			.grad_scale = 0.5f,
			.learning_rate = 0.0625f,
			.beta1 = 0.875f,
			.beta2 = 0.96875f,
			.eps = 0x1p-20f,
			.correct1 = 1.5f,
			.correct2 = 2.0f,
			.momentum = 0.75f,
			.rows = t.listed,
			.count = t.count,
			.d = t.d };
		double *want_plain = ops_copy(plain.v, n), *want_w = ops_copy(w.v, n);
		double *want_m = ops_copy(m.v, n), *want_v = ops_copy(v.v, n);
		double *sgd_w = ops_copy(w.v, n), *sgd_m = ops_copy(m.v, n);
		for (int64_t r = 0; r < *t.count; r++)
			for (int64_t e = 0; e < t.d; e++) {
				int64_t i = (int64_t)t.listed[r] * t.d + e;
				double g = 0.5 * (double)((float *)t.sums.p)[r * t.d + e];
				want_plain[i] -= 0.0625 * g;
				sgd_m[i] = 0.75 * sgd_m[i] + g;
				sgd_w[i] -= 0.0625 * sgd_m[i];
				want_m[i] = 0.875 * want_m[i] + 0.125 * g;
				want_v[i] = 0.96875 * want_v[i] + 0.03125 * g * g;
				want_w[i] -= 0.0625 * (want_m[i] * 1.5) / (sqrt(want_v[i] * 2) + 0x1p-20);
			}
		d.w = plain.p;
		OPS_RUN(run_sgd, &d, &plain);
		OPS_NEAR(plain, want_plain, 1e-6);
		d.w = w.p;
		d.m = m.p;
		d.v = v.p;
		struct ops_vec old_w = ops_new(PLAN_F32, n), old_m = ops_new(PLAN_F32, n);
		memcpy(old_w.p, w.p, (size_t)n * sizeof(float));
		memcpy(old_m.p, m.p, (size_t)n * sizeof(float));
		OPS_RUN(run_adamw, &d, &w, &m, &v);
		OPS_NEAR(w, want_w, 1e-6);
		OPS_NEAR(m, want_m, 1e-6);
		OPS_NEAR(v, want_v, 1e-6);
		d.w = old_w.p;
		d.m = old_m.p;
		d.v = NULL;
		OPS_RUN(run_sgd, &d, &old_w, &old_m);
		OPS_NEAR(old_w, sgd_w, 1e-6);
		OPS_NEAR(old_m, sgd_m, 1e-6);
	}
}

int main(void)
{
	const struct CMUnitTest reference[] = { OPS_TEST(test_reference_pairs) };
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_bag),
		OPS_TEST(test_store),
		OPS_TEST(test_piece_ids),
		OPS_TEST(test_piece_gather),
		OPS_TEST(test_piece_spread),
		OPS_TEST(test_pairs),
		OPS_TEST(test_bce),
		OPS_TEST(test_bce_far),
		OPS_TEST(test_reduce),
		OPS_TEST(test_updates),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
