/* SPDX-License-Identifier: Apache-2.0
 * Max and global average pooling against plain double implementations. */
#include "tests/unit/workers/engine/ops_fixture.h"

struct shape {
	int64_t n, h, w, c, kernel, stride, pad;
};

static const struct shape shapes[] = {
	{ 2, 6, 8, 16, 2, 2, 0 },
	{ 2, 7, 5, 19, 2, 2, 0 }, /* odd: the last row and column are in no window */
	{ 1, 9, 12, 33, 3, 2, 1 }, { 3, 1, 1, 5, 3, 2, 1 }, { 1, 8, 8, 4, 3, 1, 1 },
	{ 1, 10, 11, 7, 3, 3, 0 }, { 1, 17, 18, 3, 16, 1, 5 }, /* places in the window go up to 255 */
};

struct operands {
	struct shape s;
	int64_t oh, ow;
	struct ops_vec x, y, dy, dx;
	double *want_y, *want_dx;
	uint8_t *which, *want_which;
	struct backend_pool d;
};

static struct operands operands_of(struct shape s)
{
	struct operands o = { .s = s,
		.oh = (s.h + 2 * s.pad - s.kernel) / s.stride + 1,
		.ow = (s.w + 2 * s.pad - s.kernel) / s.stride + 1 };
	int64_t in = s.n * s.h * s.w * s.c, out = s.n * o.oh * o.ow * s.c;
	o.x = ops_random(ops_type, in, 1);
	/* Ties, and windows of nothing but negative values: padding must not win. */
	for (int64_t i = 0; i < in; i++)
		ops_set(&o.x, i, -1 + floor(4 * o.x.v[i]) / 8);
	o.y = ops_new(ops_type, out);
	o.dy = ops_random(ops_type, out, 1);
	o.dx = ops_random(ops_type, in, 1);
	o.want_y = ops_doubles(out);
	o.want_dx = ops_doubles(in);
	o.which = ops_alloc((size_t)out);
	o.want_which = ops_alloc((size_t)out);
	o.d = (struct backend_pool){ .n = s.n,
		.h = s.h,
		.w = s.w,
		.c = s.c,
		.kernel = s.kernel,
		.stride = s.stride,
		.pad = s.pad,
		.x = o.x.p,
		.y = o.y.p,
		.which = o.which,
		.dy = o.dy.p,
		.dx = o.dx.p };
	return o;
}

static void reference(struct operands *o)
{
	const struct shape *s = &o->s;
	for (int64_t i = 0; i < o->y.count; i++) {
		int64_t c = i % s->c, pixel = i / s->c, best = -1;
		int64_t top = pixel / o->ow % o->oh * s->stride - s->pad;
		int64_t left = pixel % o->ow * s->stride - s->pad, image = pixel / (o->oh * o->ow);
		for (int64_t t = 0; t < s->kernel * s->kernel; t++) {
			int64_t y = top + t / s->kernel, x = left + t % s->kernel;
			if (y < 0 || x < 0 || y >= s->h || x >= s->w)
				continue;
			int64_t at = ((image * s->h + y) * s->w + x) * s->c + c;
			if (best >= 0 && !(o->x.v[at] > o->x.v[best]))
				continue;
			best = at;
			o->want_which[i] = (uint8_t)t;
		}
		o->want_y[i] = o->x.v[best];
		o->want_dx[best] += o->dy.v[i];
	}
}

static void run_forward(void *arg)
{
	ops->maxpool(arg);
}

static void run_backward(void *arg)
{
	ops->maxpool_backward(arg);
}

static void test_maxpool(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		struct operands o = operands_of(shapes[k]);
		reference(&o);
		OPS_RUN(run_forward, &o.d, &o.y);
		OPS_NEAR(o.y, o.want_y, 0);
		assert_memory_equal(o.which, o.want_which, (size_t)o.y.count);
		OPS_RUN(run_backward, &o.d, &o.dx);
		OPS_NEAR(o.dx, o.want_dx, 1e-6);
	}
}

/* A NaN anywhere in a window comes out, and the first of them is the place. */
static void test_nan(void **state)
{
	struct operands o = operands_of(shapes[2]);
	for (int64_t i = 0; i < o.x.count; i++)
		if (ops_pick(0, 9) == 0) {
			o.x.v[i] = (double)NAN;
			ops_write(ops_type, o.x.p, i, (double)NAN);
		}
	ops->maxpool(&o.d);
	ops_sync(&o.y);
	const struct shape *s = &o.s;
	for (int64_t i = 0; i < o.y.count; i++) {
		int64_t c = i % s->c, pixel = i / s->c, first = -1;
		for (int64_t t = 0; t < s->kernel * s->kernel && first < 0; t++) {
			int64_t y = pixel / o.ow % o.oh * s->stride - s->pad + t / s->kernel;
			int64_t x = pixel % o.ow * s->stride - s->pad + t % s->kernel;
			if (y >= 0 && x >= 0 && y < s->h && x < s->w && isnan(o.x.v[(y * s->w + x) * s->c + c]))
				first = t;
		}
		assert_int_equal(isnan(o.y.v[i]) != 0, first >= 0);
		if (first >= 0)
			assert_int_equal(o.which[i], first);
	}
}

struct average {
	int64_t n, hw, c;
	struct ops_vec *from, *to;
};

static void run_average(void *arg)
{
	struct average *a = arg;
	ops->avgpool(a->n, a->hw, a->c, a->from->p, a->to->p);
}

static void run_average_backward(void *arg)
{
	struct average *a = arg;
	ops->avgpool_backward(a->n, a->hw, a->c, a->from->p, a->to->p);
}

static void test_avgpool(void **state)
{
	static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 49, 33 }, { 2, 16, 512 }, { 5, 7, 18 } };
	for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
		int64_t n = sizes[k][0], hw = sizes[k][1], c = sizes[k][2];
		struct ops_vec x = ops_random(ops_type, n * hw * c, 1), y = ops_new(ops_type, n * c);
		struct ops_vec dy = ops_random(ops_type, n * c, 1), dx = ops_new(ops_type, n * hw * c);
		double *want = ops_doubles(n * c), *want_dx = ops_doubles(n * hw * c);
		for (int64_t i = 0; i < n * hw * c; i++) {
			int64_t at = i / (hw * c) * c + i % c;
			want[at] += x.v[i] / (double)hw;
			want_dx[i] = dy.v[at] / (double)hw;
		}
		OPS_RUN(run_average, (&(struct average){ n, hw, c, &x, &y }), &y);
		OPS_NEAR(y, want, 1e-6);
		OPS_RUN(run_average_backward, (&(struct average){ n, hw, c, &dy, &dx }), &dx);
		OPS_NEAR(dx, want_dx, 1e-6);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_maxpool),
		OPS_TEST(test_nan),
		OPS_TEST(test_avgpool),
	};
	return ops_main(NULL, 0, tests, ARRAY_LEN(tests));
}
