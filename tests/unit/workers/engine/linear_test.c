/* SPDX-License-Identifier: Apache-2.0
 * Dense layers and their backward operations against sums in double: every activation, with and
 * without bias, residual (also in place) and the stored pre-activation, weights in either layout
 * and of any type, rows wider than what is read or written, little scratch. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/engine.h"

static const struct shape {
	int64_t m, k, n;
	int64_t ldx_more, ldy_more; /* columns beside */
	bool little;                /* scratch */
} shapes[] = {
	{ 1, 1, 1, 0, 0, false }, { 3, 5, 7, 2, 3, false }, { 37, 50, 70, 0, 1, false },
	{ 64, 32, 48, 8, 16, false }, { 5, 300, 17, 3, 0, false },
	{ 257, 13, 211, 0, 0, true }, /* more than the scratch holds */
	{ 2, 3, 70001, 0, 0, true },  /* a row of it, too */
};
enum { NONE, OTHER, IN_PLACE, RESIDUALS };

/* Sums of fp32 are within 1e-6 of the largest term's root of the number of terms. */
static const double tolerance = 4e-6;

struct matrix {
	struct ops_vec v;
	int64_t rows, columns, stride;
};

static struct matrix draw(enum plan_type type, int64_t rows, int64_t columns, int64_t more)
{
	return (struct matrix){ ops_random(type, rows * (columns + more), 1), rows, columns,
		columns + more };
}

/* Values that every type has: what a backend rounds is not at issue here. */
static struct matrix draw_weights(enum plan_type type, int64_t k, int64_t n, bool transposed)
{
	struct matrix w = { ops_new(type, k * n), transposed ? n : k, transposed ? k : n,
		transposed ? k : n };
	for (int64_t i = 0; i < k * n; i++)
		ops_set(&w.v, i, (double)ops_pick(-128, 127) / 128);
	return w;
}

static double element(const struct matrix *a, bool transposed, int64_t row, int64_t column)
{
	return a->v.v[transposed ? column * a->stride + row : row * a->stride + column];
}

/* alpha A B at (i, j). */
static double product(const struct matrix *a, bool at, const struct matrix *b, bool bt, int64_t k,
	int64_t i, int64_t j, double alpha)
{
	double sum = 0;
	for (int64_t l = 0; l < k; l++)
		sum += element(a, at, i, l) * element(b, bt, l, j);
	return alpha * sum;
}

static double gelu(double x)
{
	return x / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double c = 2 * sqrt(2 / 3.14159265358979323846);
	double s = 1 / (1 + exp(-c * (x + 0.044715 * x * x * x)));
	return s + x * s * (1 - s) * c * (1 + 3 * 0.044715 * x * x);
}

static struct backend_workspace scratch(const struct shape *s, int64_t m, int64_t n, int64_t k)
{
	int64_t a = gemm_workspace_bytes(m, n, k), b = gemm_workspace_bytes(n, m, k);
	return ops_workspace(s->little ? GEMM_WORKSPACE_MIN : a > b ? a : b);
}

static double terms(int64_t depth)
{
	return sqrt((double)depth) / 3;
}

/* What is beside the columns must stay. */
static double *outside(const struct matrix *y)
{
	return ops_copy(y->v.v, y->rows * y->stride);
}

static void reset(struct matrix *y, const double *values)
{
	for (int64_t i = 0; i < y->rows * y->stride; i++)
		ops_set(&y->v, i, values[i]);
}

/* ------------------------------------------------------------------ forward */

struct forward {
	const struct shape *s;
	struct matrix x, w, b, y, residual, pre;
	bool with_bias;
	int with_residual;
	struct backend_linear d;
};

static struct forward forward_of(size_t shape, int option, enum plan_activation act)
{
	struct forward f = { .s = &shapes[shape], .with_residual = option / 4 % RESIDUALS };
	const struct shape *s = f.s;
	bool transposed = option & 1;
	enum plan_type w_type = (enum plan_type)ops_pick(PLAN_F32, PLAN_F16);
	f.with_bias = option & 2;
	f.x = draw(ops_type, s->m, s->k, s->ldx_more);
	f.w = draw_weights(w_type, s->k, s->n, transposed);
	f.b = draw(PLAN_F32, 1, s->n, 0);
	f.y = draw(ops_type, s->m, s->n, s->ldy_more);
	f.residual = draw(ops_type, s->m, s->n, s->ldy_more);
	f.pre = draw(ops_type, s->m, s->n, s->ldy_more);
	f.d = (struct backend_linear){ .m = s->m,
		.k = s->k,
		.n = s->n,
		.ldx = f.x.stride,
		.ldy = f.y.stride,
		.transposed = transposed,
		.alpha = 0.75f,
		.act = act,
		.w_type = w_type,
		.x = f.x.v.p,
		.w = f.w.v.p,
		.b = f.with_bias ? f.b.v.p : NULL,
		.residual = f.with_residual == OTHER ? f.residual.v.p
			: f.with_residual == IN_PLACE    ? f.y.v.p
											 : NULL,
		.y = f.y.v.p,
		.ws = scratch(s, s->m, s->n, s->k) };
	return f;
}

static double residual_at(const struct forward *f, const double *before, int64_t i)
{
	return f->with_residual == OTHER   ? f->residual.v.v[i]
		: f->with_residual == IN_PLACE ? before[i]
									   : 0;
}

static void each_forward(enum plan_activation act, void (*check)(struct forward *f))
{
	for (int option = 0; option < 4 * RESIDUALS; option++)
		for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
			struct forward f = forward_of(k, option, act);
			check(&f);
		}
}

static double sum_at(const struct forward *f, int64_t i, int64_t j)
{
	return product(&f->x, false, &f->w, f->d.transposed, f->s->k, i, j, 0.75) +
		(f->with_bias ? f->b.v.v[j] : 0);
}

static void check_plain(struct forward *f)
{
	double *want = outside(&f->y), *before = ops_copy(want, f->y.v.count);
	for (int64_t i = 0; i < f->s->m; i++)
		for (int64_t j = 0; j < f->s->n; j++) {
			int64_t at = i * f->y.stride + j;
			double sum = sum_at(f, i, j);
			if (f->d.act == PLAN_ACT_RELU)
				sum = fmax(sum, 0);
			want[at] = sum + residual_at(f, before, at);
		}
	ops->linear(&f->d);
	OPS_NEAR_OF(f->y.v, want, terms(f->s->k), tolerance);
}

static void test_plain(void **state)
{
	each_forward(PLAN_ACT_NONE, check_plain);
}

static void test_relu(void **state)
{
	each_forward(PLAN_ACT_RELU, check_plain);
}

/* GELU of what was stored, and the same bits where nothing is stored. */
static void check_gelu(struct forward *f)
{
	double *want = outside(&f->y), *before = ops_copy(want, f->y.v.count);
	double *pre = outside(&f->pre);
	size_t bytes = (size_t)(f->y.v.count * plan_type_bytes(ops_type));
	for (int64_t i = 0; i < f->s->m; i++)
		for (int64_t j = 0; j < f->s->n; j++)
			pre[i * f->y.stride + j] = sum_at(f, i, j);
	f->d.pre = f->pre.v.p;
	ops->linear(&f->d);
	OPS_NEAR_OF(f->pre.v, pre, terms(f->s->k), tolerance);
	for (int64_t i = 0; i < f->s->m; i++)
		for (int64_t j = 0; j < f->s->n; j++) {
			int64_t at = i * f->y.stride + j;
			want[at] = gelu(f->pre.v.v[at]) + residual_at(f, before, at);
		}
	OPS_NEAR_OF(f->y.v, want, terms(f->s->k), tolerance);
	char *first = ops_alloc(bytes);
	memcpy(first, f->y.v.p, bytes);
	reset(&f->y, before);
	f->d.pre = NULL;
	ops->linear(&f->d);
	ops_settle();
	assert_memory_equal(f->y.v.p, first, bytes);
	/* The CPU's products are of the processor's best instruction set whatever the table's, and only
	 * the best table is used with them. */
	bool of_one_make = ops->apart || ops == engine_backend_cpu(ops_type);
	if (!of_one_make || f->with_residual != NONE || f->s->ldy_more > 0)
		return;
	ops->gelu(f->y.v.count, f->pre.v.p, f->y.v.p);
	ops_settle();
	assert_memory_equal(f->y.v.p, first, bytes);
}

static void test_gelu(void **state)
{
	each_forward(PLAN_ACT_GELU, check_gelu);
}

static void run_forward(void *arg)
{
	ops->linear(arg);
}

static void test_bits(void **state)
{
	for (int option = 0; option < 4 * RESIDUALS; option++) {
		struct forward f = forward_of(2, option, PLAN_ACT_GELU);
		f.d.pre = f.pre.v.p;
		OPS_RUN(run_forward, &f.d, &f.y.v, &f.pre.v);
	}
}

/* A value that is none shows in its row, whatever follows. */
static void test_nan(void **state)
{
	static const enum plan_activation acts[] = { PLAN_ACT_NONE, PLAN_ACT_RELU, PLAN_ACT_GELU };
	for (size_t a = 0; a < ARRAY_LEN(acts); a++) {
		struct forward f = forward_of(2, (int)ops_pick(0, 3), acts[a]);
		ops_set(&f.x.v, 3 * f.x.stride + 1, (double)NAN);
		f.d.act = acts[a];
		ops->linear(&f.d);
		ops_sync(&f.y.v);
		for (int64_t i = 0; i < f.s->m; i++)
			for (int64_t j = 0; j < f.s->n; j++)
				assert_int_equal(!isfinite(f.y.v.v[i * f.y.stride + j]), i == 3);
	}
}

/* ------------------------------------------------------------------ backward */

static void backward_data_case(const struct shape *s, int option, enum plan_activation act)
{
	bool transposed = option & 1;
	int with_residual = option / 2;
	enum plan_type w_type = (enum plan_type)ops_pick(PLAN_F32, PLAN_F16);
	struct matrix dy = draw(ops_type, s->m, s->k, s->ldx_more);
	struct matrix w = draw_weights(w_type, s->n, s->k, transposed);
	struct matrix dx = draw(ops_type, s->m, s->n, s->ldy_more);
	struct matrix other = draw(ops_type, s->m, s->n, s->ldy_more);
	struct matrix gate = draw(ops_type, s->m, s->n, s->ldy_more);
	double *want = outside(&dx);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n; j++) {
			int64_t at = i * dx.stride + j;
			double v = product(&dy, false, &w, !transposed, s->k, i, j, 0.75);
			v += with_residual == OTHER ? other.v.v[at] : 0;
			v += with_residual == IN_PLACE ? want[at] : 0;
			if (act == PLAN_ACT_RELU)
				v = gate.v.v[at] > 0 ? v : 0;
			else if (act == PLAN_ACT_GELU)
				v *= gelu_slope(gate.v.v[at]);
			want[at] = v;
		}
	ops->linear_backward_data(&(struct backend_linear_backward_data){ .m = s->m,
		.k = s->n,
		.n = s->k,
		.lddy = dy.stride,
		.lddx = dx.stride,
		.transposed = transposed,
		.alpha = 0.75f,
		.act = act,
		.w_type = w_type,
		.dy = dy.v.p,
		.w = w.v.p,
		.residual = with_residual == OTHER ? other.v.p
			: with_residual == IN_PLACE    ? dx.v.p
										   : NULL,
		.gate = act == PLAN_ACT_NONE ? NULL : gate.v.p,
		.dx = dx.v.p,
		.ws = scratch(s, s->m, s->n, s->k) });
	OPS_NEAR_OF(dx.v, want, terms(s->k), tolerance);
}

static void test_backward_data(void **state)
{
	static const enum plan_activation acts[] = { PLAN_ACT_NONE, PLAN_ACT_RELU, PLAN_ACT_GELU };
	for (size_t k = 0; k < ARRAY_LEN(shapes) * ARRAY_LEN(acts); k++)
		for (int option = 0; option < 2 * RESIDUALS; option++)
			backward_data_case(&shapes[k / ARRAY_LEN(acts)], option, acts[k % ARRAY_LEN(acts)]);
}

/* s: of dw as stored; k is the number of rows. */
static void backward_weight_case(const struct shape *s, int option)
{
	bool transposed = option & 1, overwrite = option & 2, with_db = option & 4;
	struct matrix a = draw(ops_type, s->k, s->m, s->ldx_more);
	struct matrix b = draw(ops_type, s->k, s->n, s->ldy_more);
	struct matrix dw = draw(PLAN_F32, s->m, s->n, 0);
	struct matrix *x = transposed ? &b : &a, *dy = transposed ? &a : &b;
	struct matrix db = draw(PLAN_F32, 1, dy->columns, 0);
	double *want = outside(&dw), *want_db = outside(&db);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n; j++)
			want[i * s->n + j] = (overwrite ? 0 : want[i * s->n + j]) +
				product(&a, true, &b, false, s->k, i, j, 0.75);
	for (int64_t j = 0; j < dy->columns && with_db; j++)
		for (int64_t i = 0; i < s->k; i++)
			want_db[j] += element(dy, false, i, j);
	ops->linear_backward_weight(&(struct backend_linear_backward_weight){ .m = s->k,
		.k = x->columns,
		.n = dy->columns,
		.ldx = x->stride,
		.lddy = dy->stride,
		.transposed = transposed,
		.alpha = 0.75f,
		.x = x->v.p,
		.dy = dy->v.p,
		.dw = dw.v.p,
		.db = with_db ? db.v.p : NULL,
		.overwrite = overwrite,
		.ws = scratch(s, s->m, s->n, s->k) });
	OPS_NEAR_OF(dw.v, want, terms(s->k), tolerance);
	OPS_NEAR_OF(db.v, want_db, terms(s->k), tolerance);
}

static void test_backward_weight(void **state)
{
	static const struct shape more[] = {
		{ 9, 1000, 33, 0, 0, false },
		{ 33, 777, 8, 5, 0, true },
	};
	for (int option = 0; option < 8; option++) {
		for (size_t k = 0; k < ARRAY_LEN(shapes); k++)
			backward_weight_case(&shapes[k], option);
		for (size_t k = 0; k < ARRAY_LEN(more); k++)
			backward_weight_case(&more[k], option);
	}
}

#if defined(OPS_CUDA)
/* Ten bits of mantissa: an error far beyond fp32's, and within a fifth of what 16 terms' would be
 * if they all were off to one side. How a device rounds is its own affair. */
static void check_tf32(struct ops_vec *y, const double *want, bool exact)
{
	double off = ops_distance(y, want, terms(300));
	if (exact ? off > tolerance : off < 1e-5 || off > 1e-3)
		fail_msg("%.3g off", off);
}

static void test_tf32(void **state)
{
	enum { M = 64, K = 300, N = 17 };
	struct err err = { 0 };
	struct matrix x = draw(ops_type, M, K, 0), w = draw(ops_type, K, N, 0),
				  y = draw(ops_type, M, N, 0), dw = draw(PLAN_F32, K, N, 0);
	struct backend_linear d = { .m = M,
		.k = K,
		.n = N,
		.ldx = K,
		.ldy = N,
		.alpha = 1,
		.w_type = ops_type,
		.x = x.v.p,
		.w = w.v.p,
		.y = y.v.p,
		.ws = ops_workspace(1 << 16) };
	struct backend_linear_backward_weight back = { .m = M,
		.k = K,
		.n = N,
		.ldx = K,
		.lddy = N,
		.alpha = 1,
		.x = x.v.p,
		.dy = y.v.p,
		.dw = dw.v.p,
		.overwrite = true,
		.ws = d.ws };
	double *want = ops_doubles(M * N), *want_dw = ops_doubles(K * N);
	for (int64_t i = 0; i < M * N; i++)
		want[i] = product(&x, false, &w, false, K, i / N, i % N, 1);
	for (int allowed = 0; allowed < 2; allowed++) {
		if (allowed)
			assert_int_equal(ops->allow_tf32(ops_ctx, &err), 0);
		bool exact = !allowed || ops_type != PLAN_F32;
		ops->linear(&d);
		check_tf32(&y.v, want, exact);
		for (int64_t i = 0; i < K * N; i++)
			want_dw[i] = product(&x, true, &y, false, M, i / N, i % N, 1);
		ops->linear_backward_weight(&back);
		check_tf32(&dw.v, want_dw, exact);
	}
}
#else
static void test_tf32(void **state)
{
	struct err err = { 0 };
	assert_int_equal(ops->allow_tf32(ops_ctx, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.precision");
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_tf32),
		OPS_TEST(test_plain),
		OPS_TEST(test_relu),
		OPS_TEST(test_gelu),
		OPS_TEST(test_bits),
		OPS_TEST(test_nan),
		OPS_TEST(test_backward_data),
		OPS_TEST(test_backward_weight),
	};
	return ops_main(NULL, 0, tests, ARRAY_LEN(tests));
}
