/* SPDX-License-Identifier: Apache-2.0
 * Operations on each element alone (GELU, SwiGLU, ReLU, additions, dropout, conversions) against
 * plain double implementations whose gradients are checked by finite differences. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "tests/unit/workers/engine/rounding.h"
#include "workers/engine/cpu/gemm.h"

struct reference {
	int64_t count, inner; /* inner: of SwiGLU */
	double *x, *y;
};

/* x (1 + tanh(u)) / 2, written so that nothing cancels where tanh(u) is about -1. */
static double gelu(double x)
{
	return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double root = sqrt(2 / M_PI), t = tanh(root * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

static void gelu_forward(void *arg)
{
	struct reference *r = arg;
	for (int64_t i = 0; i < r->count; i++)
		r->y[i] = gelu(r->x[i]);
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static void swiglu_forward(void *arg)
{
	struct reference *r = arg;
	for (int64_t i = 0; i < r->count; i++) {
		const double *row = r->x + i / r->inner * 2 * r->inner;
		double gate = row[i % r->inner], up = row[r->inner + i % r->inner];
		r->y[i] = gate * sigmoid(gate) * up;
	}
}

static void swiglu_backward(const struct reference *r, const double *dy, double *dx)
{
	for (int64_t i = 0; i < r->count; i++) {
		int64_t at = i / r->inner * 2 * r->inner + i % r->inner;
		double gate = r->x[at], up = r->x[at + r->inner], s = sigmoid(gate);
		dx[at] = dy[i] * up * (s + gate * s * (1 - s));
		dx[at + r->inner] = dy[i] * gate * s;
	}
}

static void relu_forward(void *arg)
{
	struct reference *r = arg;
	for (int64_t i = 0; i < r->count; i++)
		r->y[i] = fmax(r->x[i], 0);
}

static void test_references(void **state)
{
	enum { N = 40, INNER = 5 };
	struct reference r = { N, INNER, ops_doubles(2 * N), ops_doubles(N) };
	double *dy = ops_doubles(N), *dx = ops_doubles(2 * N);
	for (int i = 0; i < 2 * N; i++)
		r.x[i] = 4 * ops_uniform();
	for (int i = 0; i < N; i++) {
		dy[i] = ops_uniform();
		dx[i] = dy[i] * gelu_slope(r.x[i]);
	}
	ops_differences(gelu_forward, &r, r.x, N, r.y, dy, N, dx);
	swiglu_backward(&r, dy, dx);
	ops_differences(swiglu_forward, &r, r.x, 2 * N, r.y, dy, N, dx);
	relu_forward(&r);
	for (int i = 0; i < N; i++) /* from the output, as the operation does it */
		dx[i] = r.y[i] > 0 ? dy[i] : 0;
	ops_differences(relu_forward, &r, r.x, N, r.y, dy, N, dx);
}

/* Operands of what is run with several numbers of threads. */
struct call {
	int64_t count, inner;
	const void *x, *dy;
	void *y;
	float p;
	uint64_t key;
};

static void run_gelu(void *arg)
{
	struct call *c = arg;
	ops->gelu(c->count, c->x, c->y);
}

/* dx = dy gelu'(x): the gradient of a product by 1, gated. */
static void gelu_gate(int64_t count, const void *x, const void *dy, void *dx)
{
	struct ops_vec one = ops_new(ops_type, 1);
	ops_set(&one, 0, 1);
	ops->linear_backward_data(&(struct backend_linear_backward_data){ .m = count,
		.k = 1,
		.n = 1,
		.lddy = 1,
		.lddx = 1,
		.alpha = 1,
		.act = PLAN_ACT_GELU,
		.w_type = ops_type,
		.dy = dy,
		.w = one.p,
		.gate = x,
		.dx = dx,
		.ws = ops_workspace(gemm_workspace_bytes(count, 1, 1)) });
}

static void run_gelu_gate(void *arg)
{
	struct call *c = arg;
	gelu_gate(c->count, c->x, c->dy, c->y);
}

static void test_gelu(void **state)
{
	static const int64_t counts[] = { 15, 17, 10007, 30000 };
	for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
		int64_t n = counts[k];
		struct ops_vec x = ops_random(ops_type, n, 9), dy = ops_random(ops_type, n, 1),
					   y = ops_new(ops_type, n);
		double *want = ops_doubles(n);
		struct call c = { .count = n, .x = x.p, .dy = dy.p, .y = y.p };
		for (int64_t i = 0; i < n; i++)
			want[i] = gelu(x.v[i]);
		OPS_RUN(run_gelu, &c, &y);
		/* Relative to each value, since GELU's left arm is small: 0.04 x^2 for the exponent's
		 * rounding. */
		for (int64_t i = 0; i < n; i++) {
			double unit = ops_type == PLAN_F32 ? 0 : ops_type == PLAN_BF16 ? 0x1p-8 : 0x1p-11;
			double least = ops_type == PLAN_F16 ? 0x1p-25 : 1e-37;
			if (!(fabs(y.v[i] - want[i]) <= fabs(want[i]) * (unit + 2e-5) + least))
				fail_msg("gelu(%.9g) = %.9g, not %.9g", x.v[i], y.v[i], want[i]);
		}
		OPS_NEAR(y, want, 3e-7);
		for (int64_t i = 0; i < n; i++)
			want[i] = dy.v[i] * gelu_slope(x.v[i]);
		OPS_RUN(run_gelu_gate, &c, &y);
		/* Seen: 1.8e-7; one factor 3e-5 too small 1.3e-6, 1 - s as a difference 1.7e-6. */
		OPS_NEAR(y, want, 5e-7);
	}
}

static void run_swiglu(void *arg)
{
	struct call *c = arg;
	ops->swiglu(c->count / c->inner, c->inner, c->x, c->y);
}

static void run_swiglu_backward(void *arg)
{
	struct call *c = arg;
	ops->swiglu_backward(c->count / c->inner, c->inner, c->x, c->dy, c->y);
}

static void test_swiglu(void **state)
{
	static const int64_t shapes[][2] = { { 1, 1 }, { 7, 37 }, { 300, 64 }, { 33, 130 } };
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		int64_t n = shapes[k][0] * shapes[k][1];
		struct ops_vec x = ops_random(ops_type, 2 * n, 6), dy = ops_random(ops_type, n, 1),
					   y = ops_new(ops_type, n), dx = ops_new(ops_type, 2 * n);
		struct reference r = { n, shapes[k][1], x.v, ops_doubles(n) };
		double *want = ops_doubles(2 * n);
		struct call c = { .count = n, .inner = shapes[k][1], .x = x.p, .dy = dy.p, .y = y.p };
		swiglu_forward(&r);
		OPS_RUN(run_swiglu, &c, &y);
		OPS_NEAR(y, r.y, 5e-7); /* seen: 1.4e-7; an exponent 1e-4 too large 3e-6 */
		swiglu_backward(&r, dy.v, want);
		c.y = dx.p;
		OPS_RUN(run_swiglu_backward, &c, &dx);
		OPS_NEAR(dx, want, 5e-7);
	}
}

static void run_add(void *arg)
{
	struct call *c = arg;
	ops->add(c->count, c->x, c->y);
}

static void run_relu_backward(void *arg)
{
	struct call *c = arg;
	ops->relu_backward(c->count, c->x, c->dy, c->y);
}

static void test_add_relu_fill(void **state)
{
	enum { N = 20001 };
	struct ops_vec a = ops_random(ops_type, N, 1), dy = ops_random(ops_type, N, 1),
				   y = ops_random(ops_type, N, 1), f = ops_random(PLAN_F32, N, 1);
	double *want = ops_doubles(N);
	struct call c = { .count = N, .x = a.p, .dy = dy.p, .y = y.p };
	for (int i = 0; i < N; i++)
		want[i] = ops_round(ops_type, y.v[i] + a.v[i]);
	OPS_RUN(run_add, &c, &y);
	assert_memory_equal(y.v, want, N * sizeof(double));
	ops_set(&a, 5, 0);
	for (int i = 0; i < N; i++)
		want[i] = a.v[i] > 0 ? dy.v[i] : 0;
	OPS_RUN(run_relu_backward, &c, &y);
	assert_memory_equal(y.v, want, N * sizeof(double));
	c.y = dy.p; /* in place */
	ops->relu_backward(N, a.p, dy.p, dy.p);
	ops_sync(&dy);
	assert_memory_equal(dy.v, want, N * sizeof(double));
	ops->fill(N - 1, 2.5f, f.p);
	double last = f.v[N - 1];
	ops_sync(&f);
	assert_true(f.v[0] == 2.5 && f.v[N - 2] == 2.5 && f.v[N - 1] == last);
}

/* Of a whole. */
static void drop(int64_t count, float p, uint64_t key, const void *x, void *y)
{
	ops->dropout(&(struct backend_dropout){ count, p, key, plan_cut_none(count), x, y });
}

static void run_dropout(void *arg)
{
	struct call *c = arg;
	drop(c->count, c->p, c->key, c->x, c->y);
}

static int count_kept(struct ops_vec *y, uint64_t key, uint8_t *kept)
{
	struct ops_vec one = ops_new(y->type, y->count);
	int sum = 0;
	for (int64_t i = 0; i < one.count; i++)
		ops_set(&one, i, 1);
	drop(y->count, 0.25f, key, one.p, y->p);
	ops_sync(y);
	for (int64_t i = 0; i < y->count; i++)
		sum += kept[i] = y->v[i] != 0;
	return sum;
}

/* The mask is the same for every type and instruction set: its sum over bits is a known number. */
static void test_dropout(void **state)
{
	enum { N = 100000 };
	struct ops_vec x = ops_random(ops_type, N, 1), y = ops_new(ops_type, N);
	double *want = ops_doubles(N);
	uint8_t *kept = ops_alloc(N), *other = ops_alloc(N);
	int sum = count_kept(&y, 99, kept);
	assert_in_range(sum, N * 3 / 4 - 700, N * 3 / 4 + 700); /* five standard deviations */
	uint64_t hash = 0;
	for (int i = 0; i < N; i++)
		hash = hash * 31 + kept[i];
	assert_true(hash == UINT64_C(0xae5532a87f07d206));
	struct call c = { .count = N, .x = x.p, .y = y.p, .p = 0.25f, .key = 99 };
	OPS_RUN(run_dropout, &c, &y);
	for (int i = 0; i < N; i++)
		want[i] = kept[i] ? x.v[i] / 0.75 : 0;
	OPS_NEAR(y, want, 1e-7);
	/* Neighbouring keys, and the same mask some places on, agree no more than chance has it:
	 * 0.75^2 + 0.25^2 = 0.625. */
	for (int shift = 0; shift < 4; shift++) {
		int same = 0;
		(void)count_kept(&y, 99 + (shift == 0), other);
		for (int i = 0; i < N - 3; i++)
			same += kept[i] == other[i + shift];
		assert_in_range(same, 62500 - 800, 62500 + 800);
	}
	/* The part of a rank has the whole's mask: rows of ROW, of which it has COLUMNS from AT on. */
	enum { ROW = 100, AT = 17, COLUMNS = 29, PART = N / ROW * COLUMNS };
	struct ops_vec part = ops_new(ops_type, PART);
	ops->dropout(&(struct backend_dropout){
		PART, 0.25f, 99, { AT, COLUMNS, ROW }, ops_random(ops_type, PART, 1).p, part.p });
	ops_sync(&part);
	(void)count_kept(&y, 99, kept);
	for (int i = 0; i < PART; i++)
		assert_true((part.v[i] != 0) == kept[i / COLUMNS * ROW + AT + i % COLUMNS]);
	drop(N, 0.0f, 99, x.p, y.p);
	ops_sync(&y);
	assert_memory_equal(x.v, y.v, N * sizeof(double));
	drop(N, 0.0f, 99, y.p, y.p);
	ops_sync(&y);
	assert_memory_equal(x.v, y.v, N * sizeof(double));
}

struct rounding {
	struct backend_round d;
};

static void run_round(void *arg)
{
	struct rounding *r = arg;
	ops->round_random(&r->d);
}

static void check_rounded(const struct backend_round *d, struct ops_vec *y, int64_t y_first)
{
	ops_sync(y);
	for (int64_t i = 0; i < d->count; i++) {
		int64_t index = plan_cut_at(&d->cut, d->begin + i);
		uint16_t bits = rounding_bf16(d->x[i], d->key, index);
		double want = ops_type == PLAN_BF16 ? ops_read(PLAN_BF16, &bits, 0)
											: ops_round(ops_type, (double)d->x[i]);
		double got = y->v[y_first + i];
		if (isnan(want) ? !isnan(got) : got != want)
			fail_msg("%.9g became %.9g, not %.9g (element %lld)", (double)d->x[i], got, want,
				(long long)index);
	}
}

/* The bits are those of the whole's elements, for every type, instruction set, part and address. */
static void test_round(void **state)
{
	enum { N = 40007, ROW = 100, AT = 17, COLUMNS = 29, PART = N / ROW * COLUMNS, FROM = 1003 };
	struct ops_vec x = ops_random(PLAN_F32, N, 3), y = ops_new(ops_type, N),
				   part = ops_new(ops_type, N);
	static const double special[] = { 0, -0.0, 1e-40, -1e-40, 0x1p-126, 1.5, -1.0078125, 3.3895e38,
		3.4e38, INFINITY, -INFINITY, NAN };
	for (size_t i = 0; i < ARRAY_LEN(special); i++)
		ops_set(&x, (int64_t)i, special[i]);
	struct rounding r = { { .count = N, .key = 99, .cut = plan_cut_none(N), .x = x.p, .y = y.p } };
	OPS_RUN(run_round, &r, &y);
	check_rounded(&r.d, &y, 0);
	/* A rank's columns, and of those what a bucket's part begins within. */
	struct backend_round d = r.d;
	d.cut = (struct plan_cut){ AT, COLUMNS, ROW };
	d.begin = FROM;
	d.count = PART - FROM;
	d.y = part.p;
	ops->round_random(&d);
	check_rounded(&d, &part, 0);
	/* No vector fits where it begins. */
	const int64_t size = plan_type_bytes(ops_type);
	d = r.d;
	d.count = 1000;
	d.x = r.d.x + 3;
	d.y = (char *)part.p + 5 * size;
	ops->round_random(&d);
	check_rounded(&d, &part, 5);
	/* Indices that need more than 32 bits from some element on. */
	d.y = part.p;
	d.cut = (struct plan_cut){ (INT64_C(1) << 32) - 500, N, N };
	ops->round_random(&d);
	check_rounded(&d, &part, 0);
}

/* The mean over many elements of one step, and over many steps of one element, is the value: both
 * are a function of fixed keys. */
static void test_round_is_unbiased(void **state)
{
	enum { N = 100000 };
	const double unit = 0x1p-7, shares[] = { 0.02, 0.25, 0.5, 0.9 };
	for (size_t k = 0; k < ARRAY_LEN(shares) && ops_type == PLAN_BF16; k++) {
		struct ops_vec x = ops_new(PLAN_F32, N), y = ops_new(ops_type, N);
		double value = (k % 2 ? -1 : 1) * (1 + shares[k] * unit), sum[2] = { 0, 0 };
		double bound = 5 * unit * sqrt(shares[k] * (1 - shares[k]) / N);
		for (int i = 0; i < N; i++)
			ops_set(&x, i, value);
		const uint64_t key = rounding_key(42, 7, 3);
		ops->round_random(&(struct backend_round){
			.count = N, .key = key, .cut = plan_cut_none(N), .x = x.p, .y = y.p });
		ops_sync(&y);
		for (int i = 0; i < N; i++) {
			assert_true(fabs(y.v[i]) == 1 || fabs(y.v[i]) == 1 + unit);
			uint16_t bits = rounding_bf16((float)value, rounding_key(42, i, 3), 5);
			sum[0] += y.v[i];
			sum[1] += ops_read(PLAN_BF16, &bits, 0);
		}
		for (int i = 0; i < 2; i++)
			if (!(fabs(sum[i] / N - x.v[0]) < bound))
				fail_msg("seed 42: the mean of %g is %.3g off, five standard deviations are %.3g",
					x.v[0], sum[i] / N - x.v[0], bound);
	}
}

static void test_cast(void **state)
{
	enum { N = 30007 };
	struct ops_vec x = ops_random(PLAN_F32, N, 100), y = ops_new(ops_type, N),
				   z = ops_new(PLAN_F32, N);
	static const double special[] = { 0, -0.0, 1e-40, 65504, 65519.99, 65520, 1e30, 3.4e38,
		1.00390625, 1.01171875, 0x1p-24, 0x1p-25, 0x1.8p-25, 6e-5, 2.0009765625, 2.0029296875 };
	for (size_t i = 0; i < ARRAY_LEN(special); i++)
		ops_set(&x, (int64_t)i, special[i]);
	ops_set(&x, 100, INFINITY);
	ops_set(&x, 101, NAN);
	ops->from_f32(N, x.p, y.p);
	ops_sync(&y);
	ops->to_f32(N, y.p, z.p);
	ops_sync(&z);
	for (int i = 0; i < N; i++) {
		double want = ops_round(ops_type, x.v[i]);
		if (isnan(want) ? !isnan(y.v[i]) || !isnan(z.v[i]) : y.v[i] != want || z.v[i] != want)
			fail_msg("%.9g became %.9g and %.9g, not %.9g", x.v[i], y.v[i], z.v[i], want);
	}
}

static void test_nan(void **state)
{
	enum { N = 50 };
	struct ops_vec x = ops_random(ops_type, 2 * N, 1), y = ops_new(ops_type, N),
				   dx = ops_new(ops_type, 2 * N);
	ops_set(&x, 37, NAN);
	for (int k = 0; k < 4; k++) {
		if (k == 0)
			ops->gelu(N, x.p, y.p);
		else if (k == 1)
			gelu_gate(N, x.p, x.p, y.p);
		else if (k == 2)
			ops->swiglu(1, N, x.p, y.p);
		else
			drop(N, 0.5f, 11, x.p, y.p);
		ops_sync(&y);
		for (int i = 0; i < N; i++)
			assert_true((isnan(y.v[i]) != 0) == (i == 37) || (k == 3 && y.v[i] == 0));
	}
	ops->swiglu_backward(1, N, x.p, x.p, dx.p);
	ops_sync(&dx);
	assert_true(isnan(dx.v[37]) && isnan(dx.v[N + 37]) && !isnan(dx.v[36]));
}

int main(void)
{
	const struct CMUnitTest reference[] = { OPS_TEST(test_references) };
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_gelu),
		OPS_TEST(test_swiglu),
		OPS_TEST(test_add_relu_fill),
		OPS_TEST(test_dropout),
		OPS_TEST(test_round),
		OPS_TEST(test_round_is_unbiased),
		OPS_TEST(test_cast),
		OPS_TEST(test_nan),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
