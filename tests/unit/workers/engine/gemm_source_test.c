/* SPDX-License-Identifier: Apache-2.0
 * Convolutions by the three recipes of gemm.h against the definition. */
#include "tests/unit/workers/engine/gemm_fixture.h"

struct conv {
	int64_t n, h, w, in, out, kernel, stride, pad, oh, ow;
	float *x, *dy, *weight; /* [out][tap][in] */
};

static double conv_term(const struct conv *c, int64_t image, int64_t oy, int64_t ox, int64_t o,
	int64_t ky, int64_t kx, int64_t i, const float *weight, const float *x)
{
	int64_t y = oy * c->stride + ky - c->pad, z = ox * c->stride + kx - c->pad;
	if (y < 0 || z < 0 || y >= c->h || z >= c->w)
		return 0;
	return (double)weight[((o * c->kernel + ky) * c->kernel + kx) * c->in + i] *
		(double)x[((image * c->h + y) * c->w + z) * c->in + i];
}

/* sum over all outputs of y * dy, by the definition of a convolution. */
static double conv_energy(const struct conv *c, const float *weight, const float *x)
{
	double sum = 0;
	for (int64_t p = 0; p < c->n * c->oh * c->ow; p++)
		for (int64_t o = 0; o < c->out; o++)
			for (int64_t t = 0; t < c->kernel * c->kernel; t++)
				for (int64_t i = 0; i < c->in; i++)
					sum += (double)c->dy[p * c->out + o] *
						conv_term(c, p / c->ow / c->oh, p / c->ow % c->oh, p % c->ow, o,
							t / c->kernel, t % c->kernel, i, weight, x);
	return sum;
}

static double dot(const float *a, const float *b, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

static struct gemm_patches patches_forward(const struct conv *c)
{
	return (struct gemm_patches){ .n = c->n,
		.h = c->h,
		.w = c->w,
		.c = c->in,
		.out_h = c->oh,
		.out_w = c->ow,
		.kernel_h = c->kernel,
		.kernel_w = c->kernel,
		.stride = c->stride,
		.hole = 1,
		.origin_y = -c->pad,
		.origin_x = -c->pad,
		.tap_step = 1 };
}

static struct gemm_patches patches_backward(const struct conv *c)
{
	return (struct gemm_patches){ .n = c->n,
		.h = c->oh,
		.w = c->ow,
		.c = c->out,
		.out_h = c->h,
		.out_w = c->w,
		.kernel_h = c->kernel,
		.kernel_w = c->kernel,
		.stride = 1,
		.hole = c->stride,
		.origin_y = c->pad,
		.origin_x = c->pad,
		.tap_step = -1 };
}

/* The three recipes, as gemm.h has them. */
static void run_recipes(
	const struct conv *c, void *ws, float *turned, float *y, float *dx, float *dw)
{
	const int64_t taps = c->kernel * c->kernel, pixels = c->n * c->oh * c->ow;
	const struct gemm_patches forward = patches_forward(c), backward = patches_backward(c);
	struct gemm g = { .alpha = 1, .workspace = ws, .workspace_bytes = GEMM_WORKSPACE_MIN };
	g.m = pixels, g.n = c->out, g.k = taps * c->in, g.c = y, g.c_stride = c->out;
	g.a = (struct gemm_source){ .base = c->x, .patches = &forward };
	g.b = (struct gemm_source){ .base = c->weight, .transposed = true, .row_stride = g.k };
	gemm_run(&g);
	/* [out][tap][in] -> [tap][out][in] */
	for (int64_t i = 0; i < c->out * taps * c->in; i++) {
		int64_t o = i / c->in / taps, t = i / c->in % taps;
		turned[(t * c->out + o) * c->in + i % c->in] = c->weight[i];
	}
	g.m = c->n * c->h * c->w, g.n = c->in, g.k = taps * c->out, g.c = dx, g.c_stride = c->in;
	g.a = (struct gemm_source){ .base = c->dy, .patches = &backward };
	g.b = (struct gemm_source){ .base = turned, .row_stride = c->in };
	gemm_run(&g);
	g.m = c->out, g.n = taps * c->in, g.k = pixels, g.c = dw, g.c_stride = g.n;
	g.a = (struct gemm_source){ .base = c->dy, .transposed = true, .row_stride = c->out };
	g.b = (struct gemm_source){ .base = c->x, .patches = &forward };
	gemm_run(&g);
}

/* <y, dy> = <x, dx> = <w, dw> = what the definition says. */
static void recipes_of_convolution(void **state)
{
	for (int round = 0; round < 30; round++) {
		struct conv c = { .n = pick(1, 2),
			.h = pick(3, 9),
			.w = pick(3, 9),
			.in = pick(1, 20),
			.out = pick(1, 20),
			.kernel = pick(1, 3),
			.stride = pick(1, 3),
			.pad = pick(0, 1) };
		c.oh = (c.h + 2 * c.pad - c.kernel) / c.stride + 1;
		c.ow = (c.w + 2 * c.pad - c.kernel) / c.stride + 1;
		const int64_t y_count = c.n * c.oh * c.ow * c.out, x_count = c.n * c.h * c.w * c.in;
		const int64_t w_count = c.out * c.kernel * c.kernel * c.in;
		c.x = random_values(GEMM_F32, x_count);
		c.dy = random_values(GEMM_F32, y_count);
		c.weight = random_values(GEMM_F32, w_count);
		float *y = random_values(GEMM_F32, y_count), *dx = random_values(GEMM_F32, x_count);
		float *dw = random_values(GEMM_F32, w_count), *turned = random_values(GEMM_F32, w_count);
		void *ws = malloc(GEMM_WORKSPACE_MIN);
		assert_non_null(ws);
		run_recipes(&c, ws, turned, y, dx, dw);
		const double want = conv_energy(&c, c.weight, c.x), slack = 1e-4;
		assert_true(fabs(dot(y, c.dy, y_count) - want) < slack);
		assert_true(fabs(dot(dx, c.x, x_count) - want) < slack);
		assert_true(fabs(dot(dw, c.weight, w_count) - want) < slack);
		void *owned[] = { c.x, c.dy, c.weight, y, dx, dw, ws, turned };
		for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++)
			free(owned[i]);
	}
}

int main(void)
{
	random_source = check_random_start();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recipes_of_convolution),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
