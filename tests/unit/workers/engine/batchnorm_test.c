/* SPDX-License-Identifier: Apache-2.0
 * Batch norm against a plain double implementation whose gradients are checked by finite
 * differences: residual sums, ReLU, running statistics, large means, in place. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/plan/plan_vision.h"

struct shape {
	int64_t rows, c;
	bool relu, residual;
};

static const struct shape shapes[] = {
	{ 1, 5, false, false },
	{ 2, 3, true, false },
	{ 63, 16, false, true },
	{ 64, 17, true, true },
	{ 65, 33, true, true },
	{ 200, 1, false, false },
	{ 1030, 31, true, true },
	{ 4099, 64, true, false },
	{ 2176, 20, false, true },
};
static const double eps = 1e-5, momentum = 0.1;

/* ------------------------------------------------------------------ reference */

struct reference {
	struct shape s;
	double *x, *gain, *bias, *residual, *y, *mean, *rstd, *var;
	double *dy, *dx, *dgain, *dbias, *dresidual;
	double *open; /* 1 where the ReLU lets the gradient pass; NULL: where y > 0 */
};

static void statistics(struct reference *r)
{
	int64_t rows = r->s.rows, c = r->s.c;
	for (int64_t k = 0; k < c; k++) {
		double mean = 0, var = 0;
		for (int64_t i = 0; i < rows; i++)
			mean += r->x[i * c + k] / (double)rows;
		for (int64_t i = 0; i < rows; i++)
			var += pow(r->x[i * c + k] - mean, 2) / (double)rows;
		r->mean[k] = mean;
		r->var[k] = var;
		r->rstd[k] = 1 / sqrt(var + eps);
	}
}

static void apply(struct reference *r)
{
	for (int64_t i = 0; i < r->s.rows * r->s.c; i++) {
		int64_t k = i % r->s.c;
		double v = (r->x[i] - r->mean[k]) * r->rstd[k] * r->gain[k] + r->bias[k];
		if (r->s.residual)
			v += r->residual[i];
		r->y[i] = r->s.relu ? fmax(v, 0) : v;
	}
}

static void reference_forward(void *arg)
{
	statistics(arg);
	apply(arg);
}

/* Adds to dgain and dbias. */
static void reference_backward(struct reference *r)
{
	int64_t rows = r->s.rows, c = r->s.c;
	for (int64_t k = 0; k < c; k++) {
		double sum = 0, dot = 0;
		for (int64_t i = k; i < rows * c; i += c) {
			bool open = r->open ? r->open[i] > 0 : r->y[i] > 0;
			double g = r->s.relu && !open ? 0 : r->dy[i];
			r->dresidual[i] = g;
			sum += g;
			dot += g * (r->x[i] - r->mean[k]) * r->rstd[k];
		}
		for (int64_t i = k; i < rows * c; i += c)
			r->dx[i] = r->gain[k] * r->rstd[k] *
				(r->dresidual[i] - sum / (double)rows -
					(r->x[i] - r->mean[k]) * r->rstd[k] * dot / (double)rows);
		r->dgain[k] += dot;
		r->dbias[k] += sum;
	}
}

static struct reference reference_of(struct shape s)
{
	int64_t n = s.rows * s.c;
	return (struct reference){ .s = s,
		.y = ops_doubles(n),
		.mean = ops_doubles(s.c),
		.rstd = ops_doubles(s.c),
		.var = ops_doubles(s.c),
		.dx = ops_doubles(n),
		.dgain = ops_doubles(s.c),
		.dbias = ops_doubles(s.c),
		.dresidual = ops_doubles(n) };
}

static void test_reference(void **state)
{
	struct reference r = reference_of((struct shape){ 7, 3, true, true });
	r.x = ops_random(PLAN_F32, 21, 2).v;
	r.gain = ops_random(PLAN_F32, 3, 1).v;
	r.bias = ops_random(PLAN_F32, 3, 1).v;
	r.residual = ops_random(PLAN_F32, 21, 1).v;
	r.dy = ops_random(PLAN_F32, 21, 1).v;
	reference_forward(&r);
	reference_backward(&r);
	ops_differences(reference_forward, &r, r.x, 21, r.y, r.dy, 21, r.dx);
	ops_differences(reference_forward, &r, r.gain, 3, r.y, r.dy, 21, r.dgain);
	ops_differences(reference_forward, &r, r.bias, 3, r.y, r.dy, 21, r.dbias);
	ops_differences(reference_forward, &r, r.residual, 21, r.y, r.dy, 21, r.dresidual);
}

/* ------------------------------------------------------------------ operations */

struct operands {
	struct shape s;
	struct ops_vec x, gain, bias, residual, y, mean, rstd, running_mean, running_var;
	struct ops_vec dy, dx, dgain, dbias, dresidual;
	struct backend_batchnorm d;
	struct reference r;
};

static struct operands operands_of(struct shape s)
{
	int64_t n = s.rows * s.c;
	struct operands o = { .s = s, .r = reference_of(s) };
	o.x = ops_random(ops_type, n, 2);
	o.gain = ops_random(PLAN_F32, s.c, 1);
	o.bias = ops_random(PLAN_F32, s.c, 1);
	o.residual = ops_random(ops_type, n, 1);
	o.y = ops_new(ops_type, n);
	o.mean = ops_new(PLAN_F32, s.c);
	o.rstd = ops_new(PLAN_F32, s.c);
	o.running_mean = ops_random(PLAN_F32, s.c, 1);
	o.running_var = ops_random(PLAN_F32, s.c, 1);
	for (int64_t k = 0; k < s.c; k++)
		ops_set(&o.running_var, k, fabs(o.running_var.v[k]) + 0.1);
	o.dy = ops_random(ops_type, n, 1);
	o.dx = ops_new(ops_type, n);
	o.dgain = ops_random(PLAN_F32, s.c, 1);
	o.dbias = ops_random(PLAN_F32, s.c, 1);
	o.dresidual = ops_random(ops_type, n, 1);
	o.d = (struct backend_batchnorm){ .rows = s.rows,
		.c = s.c,
		.eps = (float)eps,
		.keep = 1 - momentum,
		.add = momentum,
		.train = true,
		.update_running = true,
		.act = s.relu ? PLAN_ACT_RELU : PLAN_ACT_NONE,
		.x = o.x.p,
		.gain = o.gain.p,
		.bias = o.bias.p,
		.residual = s.residual ? o.residual.p : NULL,
		.y = o.y.p,
		.mean = o.mean.p,
		.rstd = o.rstd.p,
		.running_mean = o.running_mean.p,
		.running_var = o.running_var.p,
		.dy = o.dy.p,
		.dx = o.dx.p,
		.dgain = o.dgain.p,
		.dbias = o.dbias.p,
		.dresidual = s.residual ? o.dresidual.p : NULL,
		.ws = ops_workspace(plan_workspace_batchnorm(s.c)) };
	o.r.x = o.x.v;
	o.r.gain = o.gain.v;
	o.r.bias = o.bias.v;
	o.r.residual = o.residual.v;
	o.r.dy = o.dy.v;
	return o;
}

static void run_forward(void *arg)
{
	ops->batchnorm(arg);
}

static void run_backward(void *arg)
{
	ops->batchnorm_backward(arg);
}

/* Sums of `rows` terms of either sign are about sqrt(rows), their means 1 / sqrt(rows): where the
 * only channel's nearly cancel, an error is small beside that. */
static const double tolerance = 2e-6;

/* What y is a difference of: x and the mean, times this. Two rows that are nearly the same have a
 * large one. */
static double scale_of(const struct operands *o)
{
	double scale = 0;
	for (int64_t i = 0; i < o->s.c; i++)
		scale = fmax(scale, o->r.rstd[i] * fabs(o->gain.v[i]));
	return 2 * scale;
}

static void test_forward(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		struct operands o = operands_of(shapes[k]);
		int64_t c = o.s.c;
		double *want_mean = ops_copy(o.running_mean.v, c), *want_var = ops_copy(o.running_var.v, c);
		reference_forward(&o.r);
		double unbiased = (double)o.s.rows / fmax(1, (double)o.s.rows - 1);
		for (int64_t i = 0; i < c; i++) {
			want_mean[i] += momentum * (o.r.mean[i] - want_mean[i]);
			want_var[i] += momentum * (o.r.var[i] * unbiased - want_var[i]);
		}
		OPS_RUN(run_forward, &o.d, &o.y, &o.mean, &o.rstd, &o.running_mean, &o.running_var);
		OPS_NEAR_OF(o.mean, o.r.mean, 1 / sqrt((double)o.s.rows), tolerance);
		OPS_NEAR_OF(o.running_mean, want_mean, 1, tolerance);
		OPS_NEAR(o.running_var, want_var, tolerance);
		if (o.s.rows == 1) /* nothing but rounding, times 1 / sqrt(eps) */
			continue;
		OPS_NEAR(o.rstd, o.r.rstd, tolerance);
		OPS_NEAR_OF(o.y, o.r.y, scale_of(&o), tolerance);
	}
}

/* Recomputation leaves the running statistics; evaluation reads them and nothing else. */
static void test_modes(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		struct operands o = operands_of(shapes[k]);
		int64_t c = o.s.c;
		double *mean = ops_copy(o.running_mean.v, c), *var = ops_copy(o.running_var.v, c);
		o.d.update_running = false;
		OPS_RUN(run_forward, &o.d, &o.y, &o.running_mean, &o.running_var);
		OPS_NEAR(o.running_mean, mean, 0);
		OPS_NEAR(o.running_var, var, 0);
		o.d.train = false;
		OPS_RUN(run_forward, &o.d, &o.y, &o.running_mean, &o.running_var);
		OPS_NEAR(o.running_mean, mean, 0);
		OPS_NEAR(o.running_var, var, 0);
		for (int64_t i = 0; i < c; i++) {
			o.r.mean[i] = mean[i];
			o.r.rstd[i] = 1 / sqrt(var[i] + eps);
		}
		apply(&o.r);
		OPS_NEAR_OF(o.y, o.r.y, scale_of(&o), tolerance);
	}
}

/* A mean 1,000 times the deviation: sums of squares would lose all digits. */
static void test_large_mean(void **state)
{
	if (ops_type != PLAN_F32)
		skip(); /* such values have no digits left in 16 bits */
	struct operands o = operands_of((struct shape){ 5003, 19, false, false });
	for (int64_t i = 0; i < o.x.count; i++)
		ops_set(&o.x, i, 1000 + o.x.v[i] / 2);
	reference_forward(&o.r);
	OPS_RUN(run_forward, &o.d, &o.y, &o.mean, &o.rstd);
	OPS_NEAR(o.mean, o.r.mean, 1e-7);
	OPS_NEAR(o.rstd, o.r.rstd, 1e-5);
	OPS_NEAR(o.y, o.r.y, 4e-4); /* of which the rounding of the mean itself is 1e-4 */
}

/* In 16 bits y may be rounded to 0 where the reference's is not, so the gate is the stored y. */
static void test_backward(void **state)
{
	for (size_t k = 0; k < 2 * ARRAY_LEN(shapes); k++) {
		struct operands o = operands_of(shapes[k / 2]);
		int64_t n = o.x.count;
		ops->batchnorm(&o.d);
		ops_sync(&o.y);
		ops_sync(&o.mean);
		ops_sync(&o.rstd);
		memcpy(o.r.mean, o.mean.v, (size_t)o.s.c * sizeof(double));
		memcpy(o.r.rstd, o.rstd.v, (size_t)o.s.c * sizeof(double));
		o.r.open = o.y.v;
		memcpy(o.r.dgain, o.dgain.v, (size_t)o.s.c * sizeof(double));
		memcpy(o.r.dbias, o.dbias.v, (size_t)o.s.c * sizeof(double));
		reference_backward(&o.r);
		o.d.accumulate = k % 2;
		for (int64_t i = 0; i < n && o.d.accumulate; i++)
			o.r.dresidual[i] += o.dresidual.v[i];
		OPS_RUN(run_backward, &o.d, &o.dx, &o.dgain, &o.dbias, &o.dresidual);
		if (o.s.rows > 2) /* of one or two rows it is 0, but for rounding */
			OPS_NEAR(o.dx, o.r.dx, 4 * tolerance);
		OPS_NEAR_OF(o.dgain, o.r.dgain, sqrt((double)o.s.rows), 4 * tolerance);
		OPS_NEAR_OF(o.dbias, o.r.dbias, sqrt((double)o.s.rows), 4 * tolerance);
		if (o.s.residual)
			OPS_NEAR(o.dresidual, o.r.dresidual, tolerance);
	}
}

/* dx, or the residual's gradient, may take the place of dy. */
static void test_in_place(void **state)
{
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		struct operands o = operands_of(shapes[k]);
		ops->batchnorm(&o.d);
		ops->batchnorm_backward(&o.d);
		ops_sync(&o.dx);
		ops_sync(&o.dresidual);
		double *dx = ops_copy(o.dx.v, o.dx.count);
		double *dresidual = ops_copy(o.dresidual.v, o.dx.count);
		if (o.s.residual)
			o.d.dresidual = o.dy.p;
		else
			o.d.dx = o.dy.p;
		ops->batchnorm_backward(&o.d);
		OPS_NEAR(o.dy, o.s.residual ? dresidual : dx, 0);
		OPS_NEAR(o.dx, dx, 0);
	}
}

int main(void)
{
	const struct CMUnitTest reference[] = { OPS_TEST(test_reference) };
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_forward),
		OPS_TEST(test_modes),
		OPS_TEST(test_large_mean),
		OPS_TEST(test_backward),
		OPS_TEST(test_in_place),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
