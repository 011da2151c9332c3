/* SPDX-License-Identifier: Apache-2.0
 * Products and convolutions of the CPU backend against plain double loops, with the workspace that
 * the plan gives and with none (the other path of the products). */
#include "tests/unit/workers/engine/engine_fixture.h"
#include "workers/engine/backend.h"

static const struct backend *backend;
static struct backend_ctx *ctx;

struct product {
	int64_t m, k, n;
	bool transposed, relu, bias, residual;
};

static double weight(const struct product *p, const float *w, int64_t k, int64_t n)
{
	return (double)(p->transposed ? w[n * p->k + k] : w[k * p->n + n]);
}

static void run_product(const struct product *p, int64_t workspace_bytes)
{
	struct err err = { 0 };
	float *x = fixture_floats(p->m * p->k, 1), *w = fixture_floats(p->k * p->n, 2),
		  *b = fixture_floats(p->n, 3), *r = fixture_floats(p->m * p->n, 4),
		  *y = fixture_floats(p->m * p->n, 5), *work = fixture_floats(workspace_bytes / 4 + 16, 6);
	double *ry = calloc((size_t)(p->m * p->n), sizeof(double));
	for (int64_t i = 0; i < p->m; i++)
		for (int64_t j = 0; j < p->n; j++) {
			double sum = p->bias ? (double)b[j] : 0;
			for (int64_t k = 0; k < p->k; k++)
				sum += (double)x[i * p->k + k] * weight(p, w, k, j);
			sum = p->relu && sum < 0 ? 0 : sum;
			ry[i * p->n + j] = sum + (p->residual ? (double)r[i * p->n + j] : 0);
		}
	struct backend_linear *l = NULL;
	assert_ok(backend->linear_create(ctx,
		&(struct backend_linear_desc){ .m = p->m,
			.k = p->k,
			.n = p->n,
			.transposed = p->transposed,
			.act = p->relu ? PLAN_ACT_RELU : PLAN_ACT_NONE,
			.x = x,
			.w = w,
			.b = p->bias ? b : NULL,
			.residual = p->residual ? r : NULL,
			.y = y,
			.workspace = work,
			.workspace_bytes = workspace_bytes },
		&l, &err));
	assert_ok(backend->linear_run(l, &err));
	assert_close(y, ry, p->m * p->n, 3e-6);
	backend->linear_destroy(l);
	free(x);
	free(w);
	free(b);
	free(r);
	free(y);
	free(work);
	free(ry);
}

static void test_linear(void **state)
{
	const struct product cases[] = { { 1, 1, 1, false, false, false, false },
		{ 13, 37, 10, true, true, true, false }, { 64, 90, 12, true, false, true, false },
		{ 24, 20, 60, false, false, true, false }, { 24, 20, 20, false, false, true, true },
		{ 130, 64, 128, false, false, true, true }, { 33, 20, 256, true, false, false, false } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		run_product(&cases[i], 2 * 1024 * 1024);
		run_product(&cases[i], 0);
	}
}

static void run_product_backward(const struct product *p)
{
	struct err err = { 0 };
	float *x = fixture_floats(p->m * p->k, 1), *w = fixture_floats(p->k * p->n, 2),
		  *dy = fixture_floats(p->m * p->n, 3), *dx = fixture_floats(p->m * p->k, 4),
		  *dw = fixture_floats(p->k * p->n, 5), *db = fixture_floats(p->n, 6);
	double *rx = calloc((size_t)(p->m * p->k), sizeof(double)),
		   *rw = calloc((size_t)(p->k * p->n), sizeof(double)),
		   *rb = calloc((size_t)p->n, sizeof(double));
	for (int64_t i = 0; i < p->k * p->n; i++)
		rw[i] = (double)dw[i];
	for (int64_t j = 0; j < p->n; j++)
		rb[j] = (double)db[j];
	for (int64_t i = 0; i < p->m; i++)
		for (int64_t j = 0; j < p->n; j++) {
			double g = (double)dy[i * p->n + j];
			rb[j] += g;
			for (int64_t k = 0; k < p->k; k++) {
				rx[i * p->k + k] += g * weight(p, w, k, j);
				rw[p->transposed ? j * p->k + k : k * p->n + j] += g * (double)x[i * p->k + k];
			}
		}
	struct backend_linear_backward d = { .m = p->m,
		.k = p->k,
		.n = p->n,
		.transposed = p->transposed,
		.x = x,
		.w = w,
		.dy = dy,
		.dx = dx,
		.dw = dw,
		.db = p->bias ? db : NULL };
	assert_ok(backend->linear_backward_data(&d, &err));
	assert_ok(backend->linear_backward_weight(&d, &err));
	assert_close(dx, rx, p->m * p->k, 3e-6);
	assert_close(dw, rw, p->k * p->n, 3e-6);
	if (p->bias)
		assert_close(db, rb, p->n, 3e-6);
	free(x);
	free(w);
	free(dy);
	free(dx);
	free(dw);
	free(db);
	free(rx);
	free(rw);
	free(rb);
}

static void test_linear_backward(void **state)
{
	const struct product cases[] = { { 1, 1, 1, false, false, true, false },
		{ 13, 37, 10, true, false, true, false }, { 130, 64, 33, false, false, true, false },
		{ 70, 20, 48, true, false, false, false } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		run_product_backward(&cases[i]);
}

struct conv {
	int64_t n, h, w, in, out;
};

/* Calls f for each (output, input, tap) triple: indices into y, x and the weights. */
static void taps(
	const struct conv *c, void (*f)(int64_t y, int64_t x, int64_t w, void *ctx), void *arg)
{
	for (int64_t n = 0; n < c->n; n++)
		for (int64_t i = 0; i < c->h; i++)
			for (int64_t j = 0; j < c->w; j++)
				for (int64_t t = 0; t < 9; t++) {
					int64_t r = i + t / 3 - 1, s = j + t % 3 - 1;
					if (r < 0 || s < 0 || r >= c->h || s >= c->w)
						continue;
					for (int64_t o = 0; o < c->out; o++)
						for (int64_t k = 0; k < c->in; k++)
							f(((n * c->h + i) * c->w + j) * c->out + o,
								((n * c->h + r) * c->w + s) * c->in + k, (o * c->in + k) * 9 + t,
								arg);
				}
}

struct conv_data {
	float *x, *w, *b, *y, *dy, *dx, *dw, *db, *work;
	double *ry, *rx, *rw, *rb;
};

static void tap_all(int64_t y, int64_t x, int64_t w, void *arg)
{
	struct conv_data *d = arg;
	d->ry[y] += (double)d->x[x] * (double)d->w[w];
	d->rx[x] += (double)d->dy[y] * (double)d->w[w];
	d->rw[w] += (double)d->dy[y] * (double)d->x[x];
}

static void run_kind(const struct conv *c, enum backend_conv_kind kind, float *x, float *y,
	float *w, float *b, float *work)
{
	struct err err = { 0 };
	struct backend_conv *p = NULL;
	assert_ok(backend->conv_create(ctx,
		&(struct backend_conv_desc){ .kind = kind,
			.n = c->n,
			.h = c->h,
			.w = c->w,
			.in = c->in,
			.out = c->out,
			.x = x,
			.y = y,
			.weight = w,
			.bias = b,
			.workspace = work,
			.workspace_bytes = 4 << 20 },
		&p, &err));
	assert_ok(backend->conv_run(p, &err));
	backend->conv_destroy(p);
}

static void run_conv(const struct conv *c)
{
	int64_t nx = c->n * c->h * c->w * c->in, ny = c->n * c->h * c->w * c->out,
			nw = c->in * c->out * 9;
	struct conv_data d = { .x = fixture_floats(nx, 1),
		.w = fixture_floats(nw, 2),
		.b = fixture_floats(c->out, 3),
		.y = fixture_floats(ny, 4),
		.dy = fixture_floats(ny, 5),
		.dx = fixture_floats(nx, 6),
		.dw = fixture_floats(nw, 7),
		.db = fixture_floats(c->out, 8),
		.work = fixture_floats(1 << 20, 9),
		.ry = calloc((size_t)ny, sizeof(double)),
		.rx = calloc((size_t)nx, sizeof(double)),
		.rw = calloc((size_t)nw, sizeof(double)),
		.rb = calloc((size_t)c->out, sizeof(double)) };
	for (int64_t i = 0; i < nw; i++)
		d.rw[i] = (double)d.dw[i];
	for (int64_t o = 0; o < c->out; o++)
		d.rb[o] = (double)d.db[o];
	taps(c, tap_all, &d);
	for (int64_t i = 0; i < ny; i++) {
		d.ry[i] = fmax(0, d.ry[i] + (double)d.b[i % c->out]);
		d.rb[i % c->out] += (double)d.dy[i];
	}
	run_kind(c, BACKEND_CONV, d.x, d.y, d.w, d.b, d.work);
	assert_close(d.y, d.ry, ny, 3e-6);
	run_kind(c, BACKEND_CONV_BACKWARD_DATA, d.dx, d.dy, d.w, NULL, d.work);
	assert_close(d.dx, d.rx, nx, 3e-6);
	run_kind(c, BACKEND_CONV_BACKWARD_WEIGHT, d.x, d.dy, d.dw, d.db, d.work);
	assert_close(d.dw, d.rw, nw, 3e-6);
	assert_close(d.db, d.rb, c->out, 3e-6);
	float *f[] = { d.x, d.w, d.b, d.y, d.dy, d.dx, d.dw, d.db, d.work };
	double *g[] = { d.ry, d.rx, d.rw, d.rb };
	for (size_t i = 0; i < ARRAY_LEN(f); i++)
		free(f[i]);
	for (size_t i = 0; i < ARRAY_LEN(g); i++)
		free(g[i]);
}

static void test_conv(void **state)
{
	const struct conv cases[] = { { 1, 1, 1, 1, 1 }, { 2, 9, 7, 1, 16 }, { 3, 5, 6, 3, 20 },
		{ 2, 14, 14, 16, 32 }, { 4, 7, 7, 32, 17 } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		run_conv(&cases[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_linear),
		cmocka_unit_test(test_linear_backward),
		cmocka_unit_test(test_conv),
	};
	backend = engine_backend_cpu();
	int failed = 0;
	for (int threads = 1; threads <= 3; threads++) {
		struct err err = { 0 };
		if (backend->open(threads, &ctx, &err))
			return 1;
		backend->enter(ctx);
		failed += cmocka_run_group_tests(tests, NULL, NULL);
		backend->close(ctx);
	}
	return failed;
}
