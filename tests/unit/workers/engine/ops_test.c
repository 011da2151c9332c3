/* SPDX-License-Identifier: Apache-2.0
 * Each operation of workers/engine/cpu/ops against a plain double implementation, on every
 * instruction set that this machine has. */
#include "tests/unit/workers/engine/engine_fixture.h"
#include "workers/engine/cpu/cpu_private.h"

static const struct backend *backend; /* the one under test */

static double *doubles(int64_t count)
{
	double *x = calloc((size_t)count, sizeof(double));
	assert_non_null(x);
	return x;
}

struct norm_case {
	int64_t rows, c;
	float *x, *gain, *bias, *dy, *dx, *dgain, *dbias;
	double *ry, *rdx, *rg, *rb; /* what y and the sums with dx, dgain, dbias must become */
};

static void norm_reference(const struct norm_case *t, int64_t r)
{
	int64_t c = t->c;
	const float *x = t->x + r * c, *dy = t->dy + r * c;
	double m = 0, v = 0, s = 0, d = 0;
	for (int64_t i = 0; i < c; i++)
		m += (double)x[i] / (double)c;
	for (int64_t i = 0; i < c; i++)
		v += pow((double)x[i] - m, 2) / (double)c;
	double rs = 1 / sqrt(v + 1e-5);
	for (int64_t i = 0; i < c; i++) {
		double hat = ((double)x[i] - m) * rs, g = (double)dy[i] * (double)t->gain[i];
		t->ry[r * c + i] = hat * (double)t->gain[i] + (double)t->bias[i];
		s += g;
		d += g * hat;
		t->rg[i] += (double)dy[i] * hat;
		t->rb[i] += (double)dy[i];
	}
	for (int64_t i = 0; i < c; i++) {
		double hat = ((double)x[i] - m) * rs, g = (double)dy[i] * (double)t->gain[i];
		t->rdx[r * c + i] = rs * (g - (s + hat * d) / (double)c);
	}
}

static void test_layernorm(void **state)
{
	enum { ROWS = 70, C = 37, N = ROWS * C };
	struct norm_case t = { .rows = ROWS,
		.c = C,
		.x = fixture_floats(N, 1),
		.gain = fixture_floats(C, 2),
		.bias = fixture_floats(C, 3),
		.dy = fixture_floats(N, 7),
		.dx = fixture_floats(N, 8),
		.dgain = fixture_floats(C, 9),
		.dbias = fixture_floats(C, 10),
		.ry = doubles(N),
		.rdx = doubles(N),
		.rg = doubles(C),
		.rb = doubles(C) };
	float *y = fixture_floats(N, 4), *mean = fixture_floats(ROWS, 5),
		  *rstd = fixture_floats(ROWS, 6), *work = fixture_floats(2 * PLAN_ROW_BLOCKS * C, 11);
	for (int64_t i = 0; i < C; i++) {
		t.rg[i] = (double)t.dgain[i];
		t.rb[i] = (double)t.dbias[i];
	}
	for (int64_t r = 0; r < ROWS; r++)
		norm_reference(&t, r);
	struct backend_layernorm d = { .rows = ROWS,
		.c = C,
		.x = t.x,
		.gain = t.gain,
		.bias = t.bias,
		.y = y,
		.mean = mean,
		.rstd = rstd,
		.dy = t.dy,
		.dx = t.dx,
		.dgain = t.dgain,
		.dbias = t.dbias,
		.workspace = work };
	backend->layernorm(&d);
	assert_close(y, t.ry, N, 2e-6);
	/* Without accumulate what lay there does not matter, not even a NaN. */
	for (int64_t i = 0; i < N; i++)
		t.dx[i] = NAN;
	backend->layernorm_backward(&d);
	assert_close(t.dx, t.rdx, N, 2e-6);
	assert_close(t.dgain, t.rg, C, 2e-6);
	assert_close(t.dbias, t.rb, C, 2e-6);
	d.accumulate = true;
	for (int64_t i = 0; i < N; i++)
		t.rdx[i] *= 2;
	backend->layernorm_backward(&d);
	assert_close(t.dx, t.rdx, N, 2e-6);
	float *f[] = { t.x, t.gain, t.bias, t.dy, t.dx, t.dgain, t.dbias, y, mean, rstd, work };
	double *g[] = { t.ry, t.rdx, t.rg, t.rb };
	for (size_t i = 0; i < ARRAY_LEN(f); i++)
		free(f[i]);
	for (size_t i = 0; i < ARRAY_LEN(g); i++)
		free(g[i]);
}

struct attention_case {
	int64_t b, t, heads, hs;
};

/* One head in double: probabilities, output, and gradients of q, k, v. */
static void attention_reference(const struct attention_case *a, int64_t b, int64_t h,
	const float *qkv, const float *dy, double *y, double *dqkv)
{
	int64_t t = a->t, c = a->heads * a->hs, hs = a->hs;
	double *p = doubles(t * t), scale = 1 / sqrt((double)hs);
	const float *q = qkv + b * t * 3 * c + h * hs, *k = q + c, *v = q + 2 * c;
	double *dq = dqkv + b * t * 3 * c + h * hs, *dk = dq + c, *dv = dq + 2 * c;
	const float *g = dy + b * t * c + h * hs;
	double *o = y + b * t * c + h * hs;
	for (int64_t i = 0; i < t; i++) {
		double sum = 0, dot = 0;
		for (int64_t j = 0; j <= i; j++) {
			double s = 0;
			for (int64_t e = 0; e < hs; e++)
				s += (double)q[i * 3 * c + e] * (double)k[j * 3 * c + e];
			p[i * t + j] = exp(s * scale);
			sum += p[i * t + j];
		}
		for (int64_t j = 0; j <= i; j++) {
			p[i * t + j] /= sum;
			for (int64_t e = 0; e < hs; e++) {
				o[i * c + e] += p[i * t + j] * (double)v[j * 3 * c + e];
				dv[j * 3 * c + e] += p[i * t + j] * (double)g[i * c + e];
			}
		}
		for (int64_t e = 0; e < hs; e++)
			dot += o[i * c + e] * (double)g[i * c + e];
		for (int64_t j = 0; j <= i; j++) {
			double dp = 0;
			for (int64_t e = 0; e < hs; e++)
				dp += (double)g[i * c + e] * (double)v[j * 3 * c + e];
			double ds = p[i * t + j] * (dp - dot) * scale;
			for (int64_t e = 0; e < hs; e++) {
				dq[i * 3 * c + e] += ds * (double)k[j * 3 * c + e];
				dk[j * 3 * c + e] += ds * (double)q[i * 3 * c + e];
			}
		}
	}
	free(p);
}

static void run_attention(const struct attention_case *a)
{
	int64_t c = a->heads * a->hs, rows = a->b * a->t;
	float *qkv = fixture_floats(rows * 3 * c, 1), *y = fixture_floats(rows * c, 2),
		  *lse = fixture_floats(rows * a->heads, 3), *dy = fixture_floats(rows * c, 4),
		  *dqkv = fixture_floats(rows * 3 * c, 5),
		  *work = fixture_floats(rows * (2 * c + a->heads), 6);
	for (int64_t i = 0; i < rows * 3 * c; i++)
		qkv[i] *= 3; /* sharp enough for the running maximum to matter */
	double *ry = doubles(rows * c), *rd = doubles(rows * 3 * c);
	for (int64_t b = 0; b < a->b; b++)
		for (int64_t h = 0; h < a->heads; h++)
			attention_reference(a, b, h, qkv, dy, ry, rd);
	struct backend_attention d = { .b = a->b,
		.t = a->t,
		.c = c,
		.heads = a->heads,
		.qkv = qkv,
		.y = y,
		.lse = lse,
		.dy = dy,
		.dqkv = dqkv,
		.workspace = work };
	backend->attention(&d);
	assert_close(y, ry, rows * c, 1e-5);
	backend->attention_backward(&d);
	assert_close(dqkv, rd, rows * 3 * c, 1e-5);
	free(qkv);
	free(y);
	free(lse);
	free(dy);
	free(dqkv);
	free(work);
	free(ry);
	free(rd);
}

static void test_attention(void **state)
{
	const struct attention_case cases[] = { { 1, 1, 1, 1 }, { 2, 7, 2, 5 }, { 1, 33, 3, 16 },
		{ 2, 64, 2, 32 }, { 1, 150, 1, 40 }, { 1, 65, 2, 3 }, { 1, 97, 1, 256 } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		run_attention(&cases[i]);
}

static void test_embedding(void **state)
{
	enum { ROWS = 12, T = 4, C = 70, V = 9 };
	int32_t tokens[ROWS] = { 0, 8, 3, 3, 3, 1, 8, 0, 2, 3, 3, 4 };
	float *wte = fixture_floats(V * C, 1), *wpe = fixture_floats(T * C, 2),
		  *y = fixture_floats(ROWS * C, 3), *dy = fixture_floats(ROWS * C, 4),
		  *dwte = fixture_floats(V * C, 5), *dwpe = fixture_floats(T * C, 6);
	double *ry = doubles(ROWS * C), *rte = doubles(V * C), *rpe = doubles(T * C);
	for (int i = 0; i < V * C; i++)
		rte[i] = (double)dwte[i];
	for (int i = 0; i < T * C; i++)
		rpe[i] = (double)dwpe[i];
	for (int r = 0; r < ROWS; r++)
		for (int i = 0; i < C; i++) {
			ry[r * C + i] = (double)wte[tokens[r] * C + i] + (double)wpe[r % T * C + i];
			rte[tokens[r] * C + i] += (double)dy[r * C + i];
			rpe[r % T * C + i] += (double)dy[r * C + i];
		}
	struct backend_embedding d = { .rows = ROWS,
		.t = T,
		.c = C,
		.tokens = tokens,
		.wte = wte,
		.wpe = wpe,
		.y = y,
		.dy = dy,
		.dwte = dwte,
		.dwpe = dwpe };
	backend->embedding(&d);
	backend->embedding_backward(&d);
	assert_close(y, ry, ROWS * C, 1e-6);
	assert_close(dwte, rte, V * C, 1e-6);
	assert_close(dwpe, rpe, T * C, 1e-6);
	free(wte);
	free(wpe);
	free(y);
	free(dy);
	free(dwte);
	free(dwpe);
	free(ry);
	free(rte);
	free(rpe);
}

static void test_gelu(void **state)
{
	enum { N = 10007 };
	float *x = fixture_floats(N, 1), *y = fixture_floats(N, 2), *dy = fixture_floats(N, 3),
		  *dx = fixture_floats(N, 4);
	double *ry = doubles(N), *rd = doubles(N), root = sqrt(2 / M_PI);
	for (int i = 0; i < N; i++) {
		x[i] *= 9;
		double v = (double)x[i], u = root * (v + 0.044715 * v * v * v), t = tanh(u);
		ry[i] = 0.5 * v * (1 + t);
		rd[i] = (double)dy[i] *
			(0.5 * (1 + t) + 0.5 * v * (1 - t * t) * root * (1 + 3 * 0.044715 * v * v));
	}
	backend->gelu(N, x, y);
	backend->gelu_backward(N, x, dy, dx);
	assert_close(y, ry, N, 1e-6);
	assert_close(dx, rd, N, 2e-6);
	free(x);
	free(y);
	free(dy);
	free(dx);
	free(ry);
	free(rd);
}

static void test_relu_add_fill(void **state)
{
	enum { N = 9001 };
	float *y = fixture_floats(N, 1), *dy = fixture_floats(N, 2), *dx = fixture_floats(N, 3),
		  *a = fixture_floats(N, 4);
	backend->relu_backward(N, y, dy, dx);
	for (int i = 0; i < N; i++)
		assert_true(dx[i] == (y[i] > 0 ? dy[i] : 0));
	backend->add(N, a, dx);
	for (int i = 0; i < N; i++)
		assert_true(dx[i] == (y[i] > 0 ? dy[i] : 0) + a[i]);
	backend->fill(N - 1, 2.5f, dx);
	assert_true(dx[0] == 2.5f && dx[N - 2] == 2.5f && dx[N - 1] != 2.5f);
	free(y);
	free(dy);
	free(dx);
	free(a);
}

static void test_maxpool(void **state)
{
	enum { N = 3, H = 7, W = 5, C = 19, OH = 3, OW = 2 };
	float *x = fixture_floats(N * H * W * C, 1), *y = fixture_floats(N * OH * OW * C, 2),
		  *dy = fixture_floats(N * OH * OW * C, 3), *dx = fixture_floats(N * H * W * C, 4);
	uint8_t which[N * OH * OW * C];
	double *ry = doubles(N * OH * OW * C), *rd = doubles(N * H * W * C);
	for (int i = 0; i < C; i++) /* a tie: the first wins */
		x[i] = x[C + i] = x[W * C + i] = 5;
	for (int n = 0; n < N; n++)
		for (int r = 0; r < OH; r++)
			for (int s = 0; s < OW; s++)
				for (int c = 0; c < C; c++) {
					int best = -1;
					for (int k = 0; k < 4; k++) {
						int at = ((n * H + 2 * r + k / 2) * W + 2 * s + k % 2) * C + c;
						best = best < 0 || x[at] > x[best] ? at : best;
					}
					int out = ((n * OH + r) * OW + s) * C + c;
					ry[out] = (double)x[best];
					rd[best] = (double)dy[out];
				}
	backend->maxpool(N, H, W, C, x, y, which);
	backend->maxpool_backward(N, H, W, C, dy, which, dx);
	assert_close(y, ry, N * OH * OW * C, 0);
	assert_close(dx, rd, N * H * W * C, 0);
	free(x);
	free(y);
	free(dy);
	free(dx);
	free(ry);
	free(rd);
}

static void test_dropout(void **state)
{
	enum { N = 100000 };
	float *x = fixture_floats(N, 1), *y = fixture_floats(N, 2), *z = fixture_floats(N, 3);
	backend->dropout(N, 0.25f, 99, x, y);
	backend->dropout(N, 0.25f, 99, x, z);
	assert_memory_equal(y, z, N * sizeof(float));
	int dropped = 0;
	for (int i = 0; i < N; i++) {
		dropped += y[i] == 0;
		assert_true(y[i] == 0 || fabsf(y[i] - x[i] / 0.75f) < 1e-6f);
	}
	assert_in_range(dropped, N / 4 - 700, N / 4 + 700); /* five standard deviations */
	backend->dropout(N, 0.25f, 100, x, z);
	assert_memory_not_equal(y, z, N * sizeof(float));
	backend->dropout(N, 0.0f, 99, x, z);
	assert_memory_equal(x, z, N * sizeof(float));
	free(x);
	free(y);
	free(z);
}

static void run_softmax(double smoothing)
{
	enum { ROWS = 21, V = 77 };
	float *x = fixture_floats(ROWS * V, 1), loss[ROWS], hit[ROWS];
	double *rd = doubles(ROWS * V), rloss[ROWS], scale = 1.0 / 19;
	int32_t labels[ROWS];
	for (int r = 0; r < ROWS; r++) {
		double sum = 0, all = 0;
		labels[r] = r == 4 ? -1 : r * 5 % V;
		if (r == 6)
			x[r * V + labels[r]] = 9;
		for (int i = 0; i < V; i++) {
			x[r * V + i] *= 4;
			sum += exp((double)x[r * V + i]);
			all += (double)x[r * V + i];
		}
		rloss[r] = 0;
		if (labels[r] < 0)
			continue;
		rloss[r] = log(sum) - (1 - smoothing) * (double)x[r * V + labels[r]] - smoothing * all / V;
		for (int i = 0; i < V; i++)
			rd[r * V + i] = scale *
				(exp((double)x[r * V + i]) / sum - smoothing / V -
					(i == labels[r] ? 1 - smoothing : 0));
	}
	struct backend_softmax_xent d = { .rows = ROWS,
		.classes = V,
		.logits = x,
		.labels = labels,
		.row_loss = loss,
		.row_hit = hit,
		.smoothing = (float)smoothing };
	float *before = fixture_floats(ROWS * V, 1);
	memcpy(before, x, ROWS * V * sizeof(float));
	backend->softmax_xent(&d);
	assert_close(loss, rloss, ROWS, 1e-6);
	assert_memory_equal(x, before, ROWS * V * sizeof(float));
	assert_true(hit[6] == 1 && hit[4] == 0);
	d.scale = (float)scale;
	backend->softmax_xent(&d);
	assert_close(x, rd, ROWS * V, 2e-6);
	free(x);
	free(before);
	free(rd);
}

static void test_softmax_xent(void **state)
{
	run_softmax(0);
	run_softmax(0.1);
}

/* Equal logits are right only for label 0. */
static void test_softmax_tie(void **state)
{
	float x[6] = { 1, 1, 1, 1, 1, 1 }, loss[2], hit[2];
	int32_t labels[2] = { 0, 1 };
	backend->softmax_xent(&(struct backend_softmax_xent){
		.rows = 2, .classes = 3, .logits = x, .labels = labels, .row_loss = loss, .row_hit = hit });
	assert_true(hit[0] == 1 && hit[1] == 0);
}

static void test_mse(void **state)
{
	float y[6] = { 1, 2, 3, 4, 5, 6 }, t[6] = { 0, 4, NAN, 0, 5, 5 }, loss[3];
	backend->mse(&(struct backend_mse){
		.rows = 3, .outputs = 2, .y = y, .targets = t, .row_loss = loss, .scale = 0.5f });
	const double rloss[3] = { 2.5, 0, 0.5 }, rd[6] = { 0.5, -1, 0, 0, 0, 0.5 };
	assert_close(loss, rloss, 3, 1e-7);
	assert_close(y, rd, 6, 1e-7);
}

static void test_reduce(void **state)
{
	enum { N = 100003 };
	float *x = fixture_floats(N, 1);
	double partial[PLAN_ROW_BLOCKS], sum = 0, square = 0;
	for (int i = 0; i < N; i++) {
		sum += (double)x[i];
		square += (double)x[i] * (double)x[i];
	}
	assert_true(fabs(backend->sum(N, x, partial) - sum) < 1e-9 * N);
	assert_true(fabs(backend->square_sum(N, x, partial) / square - 1) < 1e-12);
	assert_true(backend->sum(3, x, partial) == (double)x[0] + (double)x[1] + (double)x[2]);
	free(x);
}

static void test_adamw(void **state)
{
	enum { N = 300 };
	float *w = fixture_floats(N, 1), *g = fixture_floats(N, 2), *m = fixture_floats(N, 3),
		  *v = fixture_floats(N, 4);
	double *rw = doubles(N), *rm = doubles(N), *rv = doubles(N);
	for (int i = 0; i < N; i++) {
		v[i] = fabsf(v[i]);
		double gi = (double)g[i] * 0.5, decay = i < 100 ? 0.1 : 0;
		rm[i] = 0.9 * (double)m[i] + 0.1 * gi;
		rv[i] = 0.95 * (double)v[i] + 0.05 * gi * gi;
		rw[i] = (double)w[i] - 0.01 * (rm[i] * 2 / (sqrt(rv[i] * 3) + 1e-8) + decay * (double)w[i]);
		if (i == N - 1)
			rw[i] = (double)w[i]; /* outside the segments */
	}
	const struct backend_segment segments[] = { { 0, 100, 0.1f }, { 100, N - 1, 0 } };
	backend->adamw(&(struct backend_update){ .segments = segments,
		.segment_count = 2,
		.w = w,
		.m = m,
		.v = v,
		.g = g,
		.grad_scale = 0.5f,
		.learning_rate = 0.01f,
		.beta1 = 0.9f,
		.beta2 = 0.95f,
		.eps = 1e-8f,
		.correct1 = 2,
		.correct2 = 3 });
	assert_close(w, rw, N, 1e-6);
	assert_close(m, rm, N - 1, 1e-6);
	assert_close(v, rv, N - 1, 1e-6);
	free(w);
	free(g);
	free(m);
	free(v);
	free(rw);
	free(rm);
	free(rv);
}

static void test_sgd(void **state)
{
	enum { N = 50 };
	for (int momentum = 0; momentum < 2; momentum++) {
		float *w = fixture_floats(N, 1), *g = fixture_floats(N, 2), *m = fixture_floats(N, 3);
		double *rw = doubles(N);
		for (int i = 0; i < N; i++) {
			double gi = (double)g[i] * 0.5 + 0.1 * (double)w[i];
			rw[i] = (double)w[i] - 0.01 * (gi + (momentum ? 0.9 * (double)m[i] : 0));
		}
		const struct backend_segment all = { 0, N, 0.1f };
		backend->sgd(&(struct backend_update){ .segments = &all,
			.segment_count = 1,
			.w = w,
			.m = momentum ? m : NULL,
			.g = g,
			.grad_scale = 0.5f,
			.learning_rate = 0.01f,
			.momentum = 0.9f });
		assert_close(w, rw, N, 1e-6);
		free(w);
		free(g);
		free(m);
		free(rw);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layernorm),
		cmocka_unit_test(test_attention),
		cmocka_unit_test(test_embedding),
		cmocka_unit_test(test_gelu),
		cmocka_unit_test(test_relu_add_fill),
		cmocka_unit_test(test_maxpool),
		cmocka_unit_test(test_dropout),
		cmocka_unit_test(test_softmax_xent),
		cmocka_unit_test(test_softmax_tie),
		cmocka_unit_test(test_mse),
		cmocka_unit_test(test_reduce),
		cmocka_unit_test(test_adamw),
		cmocka_unit_test(test_sgd),
	};
	int failed = 0;
	backend = &cpu_table_baseline.backend;
	failed += cmocka_run_group_tests_name("baseline", tests, NULL, NULL);
#if defined(__x86_64__)
	backend = &cpu_table_avx2.backend;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		failed += cmocka_run_group_tests_name("avx2", tests, NULL, NULL);
	backend = &cpu_table_avx512.backend;
	if (engine_backend_cpu() == backend)
		failed += cmocka_run_group_tests_name("avx512", tests, NULL, NULL);
#endif
	return failed;
}
