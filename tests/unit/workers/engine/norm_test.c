/* SPDX-License-Identifier: Apache-2.0
 * Layer norm and RMS norm against plain double implementations whose gradients are checked by
 * finite differences; large means; frozen gains. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/engine/cpu/workspace.h"

/* Of the double implementation. mean is 0 for RMS norm. */
struct reference {
	int64_t rows, c;
	bool rms;
	double eps;
	double *x, *gain, *bias, *y, *mean, *rstd;
	double *dy, *dx, *dgain, *dbias; /* added to */
};

static void reference_forward(void *arg)
{
	struct reference *r = arg;
	int64_t c = r->c;
	for (int64_t n = 0; n < r->rows; n++) {
		const double *x = r->x + n * c;
		double mean = 0, square = 0;
		for (int64_t i = 0; i < c && !r->rms; i++)
			mean += x[i] / (double)c;
		for (int64_t i = 0; i < c; i++)
			square += (x[i] - mean) * (x[i] - mean) / (double)c;
		r->mean[n] = mean;
		r->rstd[n] = 1 / sqrt(square + r->eps);
		for (int64_t i = 0; i < c; i++)
			r->y[n * c + i] = (x[i] - mean) * r->rstd[n] * r->gain[i] + (r->rms ? 0 : r->bias[i]);
	}
}

static void reference_backward(const struct reference *r)
{
	int64_t c = r->c;
	for (int64_t n = 0; n < r->rows; n++) {
		const double *x = r->x + n * c, *dy = r->dy + n * c;
		double sum = 0, dot = 0, rstd = r->rstd[n], mean = r->mean[n];
		for (int64_t i = 0; i < c; i++) {
			double hat = (x[i] - mean) * rstd;
			sum += r->rms ? 0 : dy[i] * r->gain[i];
			dot += dy[i] * r->gain[i] * hat;
			r->dgain[i] += dy[i] * hat;
			r->dbias[i] += dy[i];
		}
		for (int64_t i = 0; i < c; i++) {
			double hat = (x[i] - mean) * rstd;
			r->dx[n * c + i] += rstd * (dy[i] * r->gain[i] - (sum + hat * dot) / (double)c);
		}
	}
}

static struct reference reference_of(int64_t rows, int64_t c, bool rms)
{
	int64_t n = rows * c;
	return (struct reference){ .rows = rows,
		.c = c,
		.rms = rms,
		.eps = 1e-5,
		.x = ops_doubles(n),
		.gain = ops_doubles(c),
		.bias = ops_doubles(c),
		.y = ops_doubles(n),
		.mean = ops_doubles(rows),
		.rstd = ops_doubles(rows),
		.dy = ops_doubles(n),
		.dx = ops_doubles(n),
		.dgain = ops_doubles(c),
		.dbias = ops_doubles(c) };
}

static void test_reference(void **state)
{
	enum { ROWS = 3, C = 7, N = ROWS * C };
	for (int rms = 0; rms < 2; rms++) {
		struct reference r = reference_of(ROWS, C, rms);
		for (int i = 0; i < N; i++) {
			r.x[i] = ops_uniform();
			r.dy[i] = ops_uniform();
		}
		for (int i = 0; i < C; i++) {
			r.gain[i] = 1 + ops_uniform();
			r.bias[i] = ops_uniform();
		}
		reference_forward(&r);
		reference_backward(&r);
		ops_differences(reference_forward, &r, r.x, N, r.y, r.dy, N, r.dx);
		ops_differences(reference_forward, &r, r.gain, C, r.y, r.dy, N, r.dgain);
		if (!rms)
			ops_differences(reference_forward, &r, r.bias, C, r.y, r.dy, N, r.dbias);
	}
}

static void run_forward(void *arg)
{
	const struct backend_norm *d = arg;
	(d->mean ? ops->layernorm : ops->rmsnorm)(d);
}

static void run_backward(void *arg)
{
	const struct backend_norm *d = arg;
	(d->mean ? ops->layernorm_backward : ops->rmsnorm_backward)(d);
}

struct operands {
	struct ops_vec x, gain, bias, y, mean, rstd, dy, dx, dgain, dbias;
};

static void copy_in(struct reference *r, const struct operands *o)
{
	memcpy(r->x, o->x.v, (size_t)o->x.count * sizeof(double));
	memcpy(r->gain, o->gain.v, (size_t)o->gain.count * sizeof(double));
	memcpy(r->bias, o->bias.v, (size_t)o->bias.count * sizeof(double));
	memcpy(r->dy, o->dy.v, (size_t)o->dy.count * sizeof(double));
	memcpy(r->dgain, o->dgain.v, (size_t)o->dgain.count * sizeof(double));
	memcpy(r->dbias, o->dbias.v, (size_t)o->dbias.count * sizeof(double));
}

/* Without gradients of parameters dx is the same, and the scratch is not touched. */
static void check_frozen(struct backend_norm d, struct operands *o)
{
	size_t bytes = (size_t)(o->dx.count * plan_type_bytes(o->dx.type));
	void *want = ops_alloc(bytes);
	memcpy(want, o->dx.p, bytes);
	memset(o->dx.p, 0xff, bytes);
	d.dgain = d.dbias = NULL;
	d.ws = (struct backend_workspace){ 0 };
	run_backward(&d);
	ops_settle();
	assert_memory_equal(o->dx.p, want, bytes);
}

static void check_backward(struct backend_norm *d, struct operands *o, struct reference *r)
{
	/* The statistics as the forward pass left them. */
	memcpy(r->rstd, o->rstd.v, (size_t)r->rows * sizeof(double));
	if (!r->rms)
		memcpy(r->mean, o->mean.v, (size_t)r->rows * sizeof(double));
	if (d->accumulate)
		memcpy(r->dx, o->dx.v, (size_t)o->dx.count * sizeof(double));
	else /* what lay there does not matter, not even a NaN */
		memset(o->dx.p, 0xff, (size_t)(o->dx.count * plan_type_bytes(o->dx.type)));
	reference_backward(r);
	if (r->rms)
		OPS_RUN(run_backward, d, &o->dx, &o->dgain);
	else
		OPS_RUN(run_backward, d, &o->dx, &o->dgain, &o->dbias);
	/* In narrow rows a gradient and the mean that is taken from it nearly cancel. Seen: 5e-7;
	 * without the mean of the gradients 0.6 to 1.3. */
	double terms = ops_largest(r->dy, r->rows * r->c) * ops_largest(r->gain, r->c) *
		ops_largest(r->rstd, r->rows);
	OPS_NEAR_OF(o->dx, r->dx, terms, 3e-6);
	OPS_NEAR(o->dgain, r->dgain, 3e-6);
	if (!r->rms)
		OPS_NEAR(o->dbias, r->dbias, 3e-6);
	if (!d->accumulate)
		check_frozen(*d, o);
}

static void run_norm(int64_t rows, int64_t c, bool rms, bool accumulate, double mean)
{
	int64_t n = rows * c;
	struct operands o = { .x = ops_random(ops_type, n, 1),
		.gain = ops_random(PLAN_F32, c, 2),
		.bias = ops_random(PLAN_F32, c, 1),
		.y = ops_random(ops_type, n, 1),
		.mean = ops_random(PLAN_F32, rows, 1),
		.rstd = ops_random(PLAN_F32, rows, 1),
		.dy = ops_random(ops_type, n, 1),
		.dx = ops_random(ops_type, n, 1),
		.dgain = ops_random(PLAN_F32, c, 1),
		.dbias = ops_random(PLAN_F32, c, 1) };
	for (int64_t i = 0; i < n && mean != 0; i++)
		ops_set(&o.x, i, o.x.v[i] + mean);
	struct reference r = reference_of(rows, c, rms);
	copy_in(&r, &o);
	struct backend_norm d = { .rows = rows,
		.c = c,
		.eps = 1e-5f,
		.x = o.x.p,
		.gain = o.gain.p,
		.bias = rms ? NULL : o.bias.p,
		.y = o.y.p,
		.mean = rms ? NULL : o.mean.p,
		.rstd = o.rstd.p,
		.dy = o.dy.p,
		.dx = o.dx.p,
		.dgain = o.dgain.p,
		.dbias = rms ? NULL : o.dbias.p,
		.accumulate = accumulate,
		.ws = ops_workspace(workspace_norm_backward(c, !rms)) };
	reference_forward(&r);
	if (rms)
		OPS_RUN(run_forward, &d, &o.y, &o.rstd);
	else
		OPS_RUN(run_forward, &d, &o.y, &o.mean, &o.rstd);
	/* Seen: 1.8e-7; with a mean of 1000, which fp32 itself knows to 3e-5 alone, 2.7e-5, and 6.7e-5
	 * where the first mean is not corrected (1.2e-4 on four lanes). */
	double slack = 1 + fabs(mean) / 50;
	OPS_NEAR(o.y, r.y, 2e-6 * slack);
	OPS_NEAR(o.rstd, r.rstd, 2e-6 * slack);
	if (mean == 0)
		check_backward(&d, &o, &r);
}

static void test_shapes(void **state)
{
	for (int rms = 0; rms < 2; rms++) {
		run_norm(1, 3, rms, false, 0);
		run_norm(3, 768, rms, false, 0);
		run_norm(70, 37, rms, true, 0);
		run_norm(300, 100, rms, false, 0);
		run_norm(1025, 64, rms, true, 0);
		run_norm(5, 1201, rms, true, 0); /* wide rows: more than a warp's on a device */
		run_norm(5, 3000, rms, false, 0);
		for (int i = 0; i < 4; i++)
			run_norm(ops_pick(1, 200), ops_pick(3, 150), rms, ops_pick(0, 1), 0);
	}
}

/* The mean square minus the squared mean would leave nothing of the variance in fp32. */
static void test_large_mean(void **state)
{
	if (ops_type == PLAN_F32)
		run_norm(9, 200, false, false, 1000);
	run_norm(9, 200, false, false, 20);
}

static void test_frozen(void **state)
{
	enum { ROWS = 20, C = 24, N = ROWS * C };
	struct ops_vec x = ops_random(ops_type, N, 1), gain = ops_random(PLAN_F32, C, 1),
				   dy = ops_random(ops_type, N, 1), dx = ops_new(ops_type, N),
				   mean = ops_random(PLAN_F32, ROWS, 1), rstd = ops_random(PLAN_F32, ROWS, 1);
	struct backend_norm d = { .rows = ROWS,
		.c = C,
		.x = x.p,
		.gain = gain.p,
		.mean = mean.p,
		.rstd = rstd.p,
		.dy = dy.p,
		.dx = dx.p,
		.ws = ops_workspace(workspace_norm_backward(C, true)) };
	ops->layernorm_backward(&d);
	ops->rmsnorm_backward(&d);
	ops_sync(&dx);
	assert_true(isfinite(dx.v[N - 1]) && dx.v[N - 1] != 0);
}

static void test_nan(void **state)
{
	enum { ROWS = 6, C = 40, N = ROWS * C };
	struct ops_vec x = ops_random(ops_type, N, 1), gain = ops_random(PLAN_F32, C, 1),
				   y = ops_new(ops_type, N), mean = ops_new(PLAN_F32, ROWS),
				   rstd = ops_new(PLAN_F32, ROWS);
	ops_set(&x, 2 * C + 39, NAN);
	struct backend_norm d = { .rows = ROWS,
		.c = C,
		.x = x.p,
		.gain = gain.p,
		.bias = gain.p,
		.y = y.p,
		.mean = mean.p,
		.rstd = rstd.p };
	for (int rms = 0; rms < 2; rms++) {
		(rms ? ops->rmsnorm : ops->layernorm)(&d);
		ops_sync(&y);
		for (int i = 0; i < N; i++)
			assert_int_equal(isnan(y.v[i]) != 0, i / C == 2);
	}
}

int main(void)
{
	const struct CMUnitTest reference[] = { OPS_TEST(test_reference) };
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_shapes),
		OPS_TEST(test_large_mean),
		OPS_TEST(test_frozen),
		OPS_TEST(test_nan),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
