/* SPDX-License-Identifier: Apache-2.0
 * AdamW, SGD, averages and reductions against plain double implementations; the weights that the
 * operations read are the masters rounded. */
#include "tests/unit/workers/engine/ops_fixture.h"

enum { FLAT = 40000, SEGMENTS = 5 };

/* Segments as a plan has them: some with decay, some with low-precision weights (which lie in an
 * order of their own), one short, one gap, one long enough to be shared by threads. */
static const struct backend_segment segments[SEGMENTS] = { { 0, 1008, 30000, 0.1f },
	{ 1008, 1021, -1, 0 }, { 1024, 30000, 0, 0.1f }, { 30000, 30016, 29000, 0 },
	{ 30016, FLAT - 16, -1, 0.05f } };

struct moments {
	struct ops_vec w, g, m, v, weights;
	double *rw, *rm, *rv;
	struct backend_update d;
};

static struct moments moments_new(void)
{
	struct moments x = { .w = ops_random(PLAN_F32, FLAT, 1),
		.g = ops_random(PLAN_F32, FLAT, 1),
		.m = ops_random(PLAN_F32, FLAT, 1),
		.v = ops_random(PLAN_F32, FLAT, 1),
		.weights = ops_random(ops_type, FLAT, 1) };
	for (int i = 0; i < FLAT; i++)
		ops_set(&x.v, i, fabs(x.v.v[i]));
	x.rw = ops_copy(x.w.v, FLAT);
	x.rm = ops_copy(x.m.v, FLAT);
	x.rv = ops_copy(x.v.v, FLAT);
	x.d = (struct backend_update){ .segments = segments,
		.segment_count = SEGMENTS,
		.w = x.w.p,
		.m = x.m.p,
		.v = x.v.p,
		.g = x.g.p,
		.weights = x.weights.p,
		.grad_scale = 0.5f,
		.learning_rate = 0.01f,
		.beta1 = 0.9f,
		.beta2 = 0.95f,
		.eps = 1e-8f,
		.correct1 = 2,
		.correct2 = 3,
		.momentum = 0.9f };
	return x;
}

/* The weights are exactly the masters rounded; between the segments nothing was touched. */
static void check_weights(const struct moments *x, const double *weights_before)
{
	double *want = ops_copy(weights_before, FLAT);
	for (int s = 0; s < SEGMENTS; s++)
		for (int64_t i = segments[s].begin; segments[s].weights >= 0 && i < segments[s].end; i++)
			want[segments[s].weights + i - segments[s].begin] = ops_round(ops_type, x->w.v[i]);
	assert_memory_equal(x->weights.v, want, FLAT * sizeof(double));
	for (int i = 1021; i < 1024; i++)
		assert_true(x->w.v[i] == x->rw[i]);
	assert_true(x->w.v[FLAT - 1] == x->rw[FLAT - 1] && x->m.v[FLAT - 16] == x->rm[FLAT - 16]);
}

static void run_adamw(void *arg)
{
	ops->adamw(arg);
}

static void run_sgd(void *arg)
{
	ops->sgd(arg);
}

static void test_adamw(void **state)
{
	struct moments x = moments_new();
	double *weights = ops_copy(x.weights.v, FLAT);
	for (int s = 0; s < SEGMENTS; s++)
		for (int64_t i = segments[s].begin; i < segments[s].end; i++) {
			double g = x.g.v[i] * 0.5;
			x.rm[i] = 0.9 * x.rm[i] + 0.1 * g;
			x.rv[i] = 0.95 * x.rv[i] + 0.05 * g * g;
			x.rw[i] -= 0.01 *
				(x.rm[i] * 2 / (sqrt(x.rv[i] * 3) + 1e-8) + (double)segments[s].decay * x.rw[i]);
		}
	OPS_RUN(run_adamw, &x.d, &x.w, &x.m, &x.v, &x.weights);
	/* Seen: 1.3e-7; without the decay 7.7e-4. */
	OPS_NEAR(x.w, x.rw, 3e-7);
	OPS_NEAR(x.m, x.rm, 3e-7);
	OPS_NEAR(x.v, x.rv, 3e-7);
	check_weights(&x, weights);
}

/* Without low-precision weights, as an fp32 plan has it; a tiny second moment. */
static void test_adamw_plain(void **state)
{
	enum { N = 37 };
	struct ops_vec w = ops_new(PLAN_F32, N), g = ops_new(PLAN_F32, N), m = ops_new(PLAN_F32, N),
				   v = ops_new(PLAN_F32, N);
	const struct backend_segment all = { 0, N, -1, 0 };
	for (int i = 0; i < N; i++)
		ops_set(&g, i, ldexp(i % 2 ? 1 : -1, -2 * i));
	ops->adamw(&(struct backend_update){ .segments = &all,
		.segment_count = 1,
		.w = w.p,
		.m = m.p,
		.v = v.p,
		.g = g.p,
		.grad_scale = 1,
		.learning_rate = 1e-3f,
		.beta1 = 0.9f,
		.beta2 = 0.999f,
		.eps = 1e-8f,
		.correct1 = 10,
		.correct2 = 1000 });
	ops_sync(&w);
	for (int i = 0; i < N; i++) { /* the first step goes by the learning rate, whatever the size */
		double size = ldexp(1, -2 * i), want = 1e-3 * size / (size + 1e-8);
		assert_true(fabs(fabs(w.v[i]) - want) < 2e-5 * want);
		assert_true(signbit(w.v[i]) == (i % 2 == 1));
	}
}

static void test_sgd(void **state)
{
	for (int momentum = 0; momentum < 2; momentum++) {
		struct moments x = moments_new();
		double *weights = ops_copy(x.weights.v, FLAT);
		for (int s = 0; s < SEGMENTS; s++)
			for (int64_t i = segments[s].begin; i < segments[s].end; i++) {
				double g = x.g.v[i] * 0.5 + (double)segments[s].decay * x.rw[i];
				if (momentum)
					g = x.rm[i] = 0.9 * x.rm[i] + g;
				x.rw[i] -= 0.01 * g;
			}
		if (!momentum)
			x.d.m = NULL;
		OPS_RUN(run_sgd, &x.d, &x.w, &x.m, &x.weights);
		OPS_NEAR(x.w, x.rw, 3e-7);
		OPS_NEAR(x.m, x.rm, 3e-7);
		check_weights(&x, weights);
	}
}

struct averaging {
	int64_t count;
	float decay;
	const float *x;
	float *y;
};

static void run_average(void *arg)
{
	struct averaging *a = arg;
	ops->average(a->count, a->decay, a->x, a->y);
}

static void test_average(void **state)
{
	static const int64_t counts[] = { 1, 17, 40005 };
	for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
		struct ops_vec x = ops_random(PLAN_F32, counts[k], 1),
					   y = ops_random(PLAN_F32, counts[k], 1);
		double *want = ops_copy(y.v, counts[k]);
		for (int64_t i = 0; i < counts[k]; i++)
			want[i] += 0.1 * (x.v[i] - want[i]);
		struct averaging a = { counts[k], 0.9f, x.p, y.p };
		OPS_RUN(run_average, &a, &y);
		OPS_NEAR_OF(y, want, 1, 1e-6); /* a single average may come out near 0 */
	}
}

struct reduction {
	int64_t count;
	const float *x;
	double *sums; /* sum, square sum */
	double *partial;
};

static void run_reduce(void *arg)
{
	struct reduction *r = arg;
	ops->sum(r->count, r->x, &r->sums[0]);
	ops->square_sum(r->count, r->x, r->partial, &r->sums[1]);
}

static void test_reduce(void **state)
{
	static const int64_t counts[] = { 1, 3, 1000, 100003 };
	for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
		struct ops_vec x = ops_random(PLAN_F32, counts[k], 1);
		/* Two doubles, compared between threads by their bits as four floats. */
		struct ops_vec sums = ops_new(PLAN_F32, 4);
		double sum = 0, square = 0, got[2];
		for (int64_t i = 0; i < counts[k]; i++) {
			sum += x.v[i];
			square += x.v[i] * x.v[i];
		}
		struct reduction r = { counts[k], x.p, sums.p, ops_doubles(PLAN_ROW_BLOCKS) };
		OPS_RUN(run_reduce, &r, &sums);
		memcpy(got, sums.p, sizeof(got));
		assert_true(fabs(got[0] - sum) <= 1e-12 * square);
		assert_true(fabs(got[1] / square - 1) < 1e-12); /* in fp32: 1e-7 */
	}
}

static void test_nan(void **state)
{
	struct moments x = moments_new();
	ops_set(&x.g, 2000, NAN);
	ops->adamw(&x.d);
	ops_sync(&x.w);
	ops_sync(&x.weights);
	assert_true(isnan(x.w.v[2000]) && isnan(x.weights.v[2000 - 1024]) && !isnan(x.w.v[2001]));
	double square = 0;
	ops->square_sum(FLAT, x.g.p, ops_doubles(PLAN_ROW_BLOCKS), &square);
	ops_settle();
	assert_true(isnan(square));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_adamw),
		OPS_TEST(test_adamw_plain),
		OPS_TEST(test_sgd),
		OPS_TEST(test_average),
		OPS_TEST(test_reduce),
		OPS_TEST(test_nan),
	};
	return ops_main(NULL, 0, tests, ARRAY_LEN(tests));
}
