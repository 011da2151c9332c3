/* SPDX-License-Identifier: Apache-2.0
 * Convolutions against a plain double implementation whose gradients are checked by finite
 * differences: every kernel, stride and padding in use, those in tiles and those by patches, with
 * exactly the plan's scratch. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/plan/plan_vision.h"

struct shape {
	int64_t n, h, w, in, out, kernel, stride, pad;
};

/* Those before FIRST_TILED are products over patches. */
enum { FIRST_TILED = 10 };
static const struct shape shapes[] = {
	{ 3, 5, 7, 17, 9, 1, 1, 0 },   /* a plain product */
	{ 2, 7, 6, 5, 18, 1, 2, 0 },   /* a shortcut */
	{ 2, 9, 8, 3, 19, 3, 1, 1 },   /* a stem: few channels */
	{ 2, 9, 8, 18, 21, 3, 2, 1 },  /* strided */
	{ 1, 23, 20, 3, 16, 7, 2, 3 }, /* the wide stem */
	{ 2, 7, 9, 6, 5, 5, 1, 2 },
	{ 2, 8, 7, 4, 6, 2, 2, 0 },
	{ 1, 10, 11, 4, 5, 3, 3, 2 },
	{ 1, 2, 2, 20, 20, 3, 1, 1 }, /* an image too small for tiles */
	{ 1, 1, 1, 7, 5, 3, 2, 1 },
	/* in tiles, whole and hanging over, with no padding, one and two */
	{ 2, 8, 8, 16, 16, 3, 1, 1 },
	{ 1, 13, 11, 37, 19, 3, 1, 1 },
	{ 2, 10, 9, 16, 33, 3, 1, 0 },
	{ 1, 7, 12, 18, 16, 3, 1, 2 },
	{ 1, 8, 8, 20, 70, 3, 1, 1 },   /* two blocks of what comes out, one of what goes in */
	{ 2, 4, 4, 130, 70, 3, 1, 1 },  /* several blocks of channels */
	{ 7, 17, 17, 20, 24, 3, 1, 1 }, /* blocks and parts of tiles, an odd number of them */
	{ 40, 4, 3, 66, 130, 3, 1, 1 },
};

static int64_t out_size(const struct shape *s, int64_t size)
{
	return plan_conv_size(size, s->kernel, s->stride, s->pad);
}

static int64_t x_count(const struct shape *s)
{
	return s->n * s->h * s->w * s->in;
}

static int64_t y_count(const struct shape *s)
{
	return s->n * out_size(s, s->h) * out_size(s, s->w) * s->out;
}

static int64_t w_count(const struct shape *s)
{
	return s->out * s->in * s->kernel * s->kernel;
}

/* ------------------------------------------------------------------ reference */

struct reference {
	struct shape s;
	double *x, *w, *bias, *y, *dy, *dx, *dw, *db;
};

/* Calls f for each product of a convolution: places in x, w and y. */
static void each_product(
	struct reference *r, void (*f)(struct reference *r, int64_t x, int64_t w, int64_t y))
{
	const struct shape *s = &r->s;
	int64_t oh = out_size(s, s->h), ow = out_size(s, s->w), taps = s->kernel * s->kernel;
	for (int64_t p = 0; p < s->n * oh * ow; p++)
		for (int64_t t = 0; t < taps; t++) {
			int64_t y = p / ow % oh * s->stride + t / s->kernel - s->pad;
			int64_t x = p % ow * s->stride + t % s->kernel - s->pad;
			if (y < 0 || x < 0 || y >= s->h || x >= s->w)
				continue;
			int64_t at = ((p / (oh * ow) * s->h + y) * s->w + x) * s->in;
			for (int64_t o = 0; o < s->out; o++)
				for (int64_t i = 0; i < s->in; i++)
					f(r, at + i, (o * s->in + i) * taps + t, p * s->out + o);
		}
}

static void product_forward(struct reference *r, int64_t x, int64_t w, int64_t y)
{
	r->y[y] += r->x[x] * r->w[w];
}

static void product_backward(struct reference *r, int64_t x, int64_t w, int64_t y)
{
	r->dx[x] += r->w[w] * r->dy[y];
	r->dw[w] += r->x[x] * r->dy[y];
}

static void reference_forward(void *arg)
{
	struct reference *r = arg;
	for (int64_t i = 0; i < y_count(&r->s); i++)
		r->y[i] = r->bias ? r->bias[i % r->s.out] : 0;
	each_product(r, product_forward);
}

/* Adds to dx, dw and db. */
static void reference_backward(struct reference *r)
{
	each_product(r, product_backward);
	for (int64_t i = 0; i < y_count(&r->s) && r->db; i++)
		r->db[i % r->s.out] += r->dy[i];
}

static void test_reference(void **state)
{
	static const struct shape small[] = { { 2, 4, 5, 2, 3, 3, 2, 1 }, { 1, 4, 3, 2, 2, 3, 1, 2 } };
	for (size_t k = 0; k < ARRAY_LEN(small); k++) {
		struct reference r = { .s = small[k] };
		r.x = ops_random(PLAN_F32, x_count(&r.s), 1).v;
		r.w = ops_random(PLAN_F32, w_count(&r.s), 1).v;
		r.bias = ops_random(PLAN_F32, r.s.out, 1).v;
		r.dy = ops_random(PLAN_F32, y_count(&r.s), 1).v;
		r.y = ops_doubles(y_count(&r.s));
		r.dx = ops_doubles(x_count(&r.s));
		r.dw = ops_doubles(w_count(&r.s));
		r.db = ops_doubles(r.s.out);
		reference_forward(&r);
		reference_backward(&r);
		const int64_t ys = y_count(&r.s);
		ops_differences(reference_forward, &r, r.x, x_count(&r.s), r.y, r.dy, ys, r.dx);
		ops_differences(reference_forward, &r, r.w, w_count(&r.s), r.y, r.dy, ys, r.dw);
		ops_differences(reference_forward, &r, r.bias, r.s.out, r.y, r.dy, ys, r.db);
	}
}

/* ------------------------------------------------------------------ operations */

static void run_forward(void *arg)
{
	ops->conv(arg);
}

static void run_data(void *arg)
{
	ops->conv_backward_data(arg);
}

static void run_weight(void *arg)
{
	ops->conv_backward_weight(arg);
}

static struct backend_conv operation(const struct shape *s)
{
	struct plan_conv c = { .n = s->n,
		.h = s->h,
		.w = s->w,
		.in = s->in,
		.out = s->out,
		.kernel = s->kernel,
		.stride = s->stride,
		.pad = s->pad };
	return (struct backend_conv){ .n = s->n,
		.h = s->h,
		.w = s->w,
		.in = s->in,
		.out = s->out,
		.kernel = s->kernel,
		.stride = s->stride,
		.pad = s->pad,
		.w_type = ops_type,
		.ws = ops_workspace(plan_workspace_conv(&c)) };
}

/* Plain sums are within 1e-6 (a wrong tap: above 0.1). Tiles lose about one more digit, the largest
 * of many errors now and then half of another, so what counts is their mean square: 0.5e-6 to
 * 1.5e-6 by shape, and within a tenth of that whatever is drawn. */
static const double tolerance = 4e-6, tolerance_rms = 2e-6;

/* depth: products of two draws in a sum, which is about a third of its root. */
static void near(struct ops_vec y, const double *want, size_t shape, int64_t depth)
{
	if (shape >= FIRST_TILED)
		OPS_NEAR_RMS(y, want, tolerance_rms);
	OPS_NEAR_OF(y, want, sqrt((double)depth) / 3, shape < FIRST_TILED ? tolerance : 5 * tolerance);
}

static void test_forward(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		const struct shape *s = &shapes[k];
		struct ops_vec x = ops_random(ops_type, x_count(s), 1);
		struct ops_vec w = ops_random(ops_type, w_count(s), 1);
		struct ops_vec bias = ops_random(PLAN_F32, s->out, 1), y = ops_new(ops_type, y_count(s));
		struct backend_conv d = operation(s);
		bool relu = k % 2;
		d.x = x.p;
		d.weight = w.p;
		d.bias = k % 3 ? bias.p : NULL;
		d.act = relu ? PLAN_ACT_RELU : PLAN_ACT_NONE;
		d.y = y.p;
		struct reference r = { *s, x.v, w.v, d.bias ? bias.v : NULL, ops_doubles(y_count(s)) };
		reference_forward(&r);
		for (int64_t i = 0; i < y_count(s) && relu; i++)
			r.y[i] = fmax(r.y[i], 0);
		OPS_RUN(run_forward, &d, &y);
		near(y, r.y, k, s->in * s->kernel * s->kernel);
	}
}

static void test_backward_data(void **state)
{
	for (size_t k = 0; k < 2 * ARRAY_LEN(shapes); k++) {
		const struct shape *s = &shapes[k / 2];
		struct ops_vec dy = ops_random(ops_type, y_count(s), 1);
		struct ops_vec w = ops_random(ops_type, w_count(s), 1);
		struct ops_vec x = ops_random(ops_type, x_count(s), 0), dw = ops_new(PLAN_F32, w_count(s));
		struct ops_vec dx = ops_random(ops_type, x_count(s), 3);
		struct backend_conv d = operation(s);
		d.dy = dy.p;
		d.weight = w.p;
		d.dx = dx.p;
		d.accumulate = k % 2;
		struct reference r = { .s = *s, .x = x.v, .w = w.v, .dy = dy.v, .dw = dw.v };
		r.dx = d.accumulate ? ops_copy(dx.v, x_count(s)) : ops_doubles(x_count(s));
		reference_backward(&r);
		OPS_RUN(run_data, &d, &dx);
		near(dx, r.dx, k / 2, s->out * s->kernel * s->kernel);
	}
}

static void test_backward_weight(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		const struct shape *s = &shapes[k];
		struct ops_vec x = ops_random(ops_type, x_count(s), 1);
		struct ops_vec dy = ops_random(ops_type, y_count(s), 1);
		struct ops_vec w = ops_random(ops_type, w_count(s), 0), dx = ops_new(PLAN_F32, x_count(s));
		struct ops_vec dw = ops_random(PLAN_F32, w_count(s), 1);
		struct ops_vec db = ops_random(PLAN_F32, s->out, 1);
		struct backend_conv d = operation(s);
		d.x = x.p;
		d.dy = dy.p;
		d.dw = dw.p;
		d.db = k % 3 ? db.p : NULL;
		struct reference r = { .s = *s, .x = x.v, .w = w.v, .dy = dy.v, .dx = dx.v };
		r.dw = ops_copy(dw.v, w_count(s));
		r.db = d.db ? ops_copy(db.v, s->out) : NULL;
		reference_backward(&r);
		OPS_RUN(run_weight, &d, &dw, &db);
		near(dw, r.dw, k, y_count(s) / s->out);
		if (d.db)
			OPS_NEAR_OF(db, r.db, sqrt((double)y_count(s) / (double)s->out), tolerance);
	}
}

int main(void)
{
	const struct CMUnitTest reference[] = { OPS_TEST(test_reference) };
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_forward),
		OPS_TEST(test_backward_data),
		OPS_TEST(test_backward_weight),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
