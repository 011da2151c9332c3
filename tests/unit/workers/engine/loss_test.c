/* SPDX-License-Identifier: Apache-2.0
 * Losses (softmax with cross-entropy, mean squared error) and the classifier, which is the head's
 * product and the first of them in chunks, against plain double implementations whose gradients are
 * checked by finite differences. */
#include "tests/unit/workers/engine/ops_fixture.h"
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/cpu/workspace.h"

/* ------------------------------------------------------------------- softmax and cross-entropy */

struct reference {
	int64_t rows, n;
	const int32_t *labels;
	double smoothing;
	double *x, *loss, *hit;
};

static void softmax_forward(void *arg)
{
	struct reference *r = arg;
	for (int64_t i = 0; i < r->rows; i++) {
		const double *x = r->x + i * r->n;
		double sum = 0, all = 0, max = x[0];
		int64_t first = 0, label = r->labels[i];
		r->loss[i] = r->hit[i] = 0;
		if (label < 0)
			continue;
		for (int64_t k = 0; k < r->n; k++) {
			first = x[k] > x[first] ? k : first;
			max = fmax(max, x[k]);
		}
		for (int64_t k = 0; k < r->n; k++) {
			sum += exp(x[k] - max);
			all += x[k];
		}
		r->loss[i] =
			max + log(sum) - (1 - r->smoothing) * x[label] - r->smoothing * all / (double)r->n;
		r->hit[i] = first == label;
	}
}

static void softmax_backward(const struct reference *r, double scale, double *dx)
{
	for (int64_t i = 0; i < r->rows; i++) {
		const double *x = r->x + i * r->n;
		double sum = 0, max = -INFINITY;
		for (int64_t k = 0; k < r->n; k++)
			max = fmax(max, x[k]);
		for (int64_t k = 0; k < r->n; k++)
			sum += exp(x[k] - max);
		for (int64_t k = 0; k < r->n; k++)
			dx[i * r->n + k] = r->labels[i] < 0 ? 0
												: scale *
					(exp(x[k] - max) / sum - r->smoothing / (double)r->n -
						(k == r->labels[i] ? 1 - r->smoothing : 0));
	}
}

static int32_t *labels_of(int64_t rows, int64_t n, int ignored_one_in)
{
	int32_t *x = ops_alloc((size_t)rows * sizeof(*x));
	for (int64_t i = 0; i < rows; i++)
		x[i] =
			ignored_one_in && ops_pick(1, ignored_one_in) == 1 ? -1 : (int32_t)ops_pick(0, n - 1);
	return x;
}

static void test_softmax_reference(void **state)
{
	enum { ROWS = 4, N = 5 };
	for (int k = 0; k < 2; k++) {
		int32_t *labels = labels_of(ROWS, N, 3);
		labels[0] = 1; /* not all rows are ignored */
		struct reference r = { ROWS, N, labels, 0.1 * k, ops_doubles(ROWS * N), ops_doubles(ROWS),
			ops_doubles(ROWS) };
		double ones[ROWS] = { 0.5, 0.5, 0.5, 0.5 }, *dx = ops_doubles(ROWS * N);
		for (int i = 0; i < ROWS * N; i++)
			r.x[i] = 3 * ops_uniform();
		softmax_backward(&r, 0.5, dx);
		ops_differences(softmax_forward, &r, r.x, ROWS * N, r.loss, ones, ROWS, dx);
	}
}

static void run_softmax(void *arg)
{
	ops->softmax_xent(arg);
}

static void softmax_case(int64_t rows, int64_t n, double smoothing, double sharp)
{
	struct ops_vec x = ops_random(ops_type, rows * n, sharp), loss = ops_random(PLAN_F32, rows, 1),
				   hit = ops_random(PLAN_F32, rows, 1);
	struct reference r = { rows, n, labels_of(rows, n, 4), smoothing, ops_copy(x.v, rows * n),
		ops_doubles(rows), ops_doubles(rows) };
	double *dx = ops_doubles(rows * n), scale = 1.0 / 19;
	for (int64_t i = 0; i < rows; i += 3) /* some hits, some ties */
		if (r.labels[i] >= 0) {
			ops_set(&x, i * n + r.labels[i], 2 * sharp);
			r.x[i * n + r.labels[i]] = x.v[i * n + r.labels[i]];
			if (i % 2) {
				ops_set(&x, i * n, 2 * sharp);
				r.x[i * n] = x.v[i * n];
			}
		}
	struct backend_softmax_xent d = { .rows = rows,
		.classes = n,
		.logits = x.p,
		.labels = r.labels,
		.row_loss = loss.p,
		.row_hit = hit.p,
		.smoothing = (float)smoothing };
	softmax_forward(&r);
	double logits = ops_largest(r.x, rows * n); /* a loss is a difference of two of their size */
	OPS_RUN(run_softmax, &d, &x, &loss, &hit);
	OPS_NEAR_OF(loss, r.loss, logits, 1e-6);
	assert_memory_equal(hit.v, r.hit, (size_t)rows * sizeof(double));
	assert_memory_equal(x.v, r.x, (size_t)(rows * n) * sizeof(double));
	d.scale = (float)scale;
	softmax_backward(&r, scale, dx);
	OPS_RUN(run_softmax, &d, &x, &loss, &hit);
	/* Probability and label may nearly cancel. Seen: 2.3e-7; probabilities 1e-4 too large 8.7e-5.
	 */
	OPS_NEAR_OF(x, dx, scale, 1e-6);
	OPS_NEAR_OF(loss, r.loss, logits, 1e-6);
}

static void test_softmax(void **state)
{
	softmax_case(21, 77, 0, 4);
	softmax_case(21, 77, 0.1, 4);
	softmax_case(5, 1, 0, 4);
	softmax_case(100, 10, 0.1, 1);
	softmax_case(30, 1009, 0, 30);
	softmax_case(9, 5003, 0.1, 5);
	for (int i = 0; i < 4; i++)
		softmax_case(ops_pick(1, 40), ops_pick(2, 300), 0.05 * (double)ops_pick(0, 3), 5);
}

static void test_softmax_nan(void **state)
{
	enum { ROWS = 3, N = 40 };
	struct ops_vec x = ops_random(ops_type, ROWS * N, 1), loss = ops_new(PLAN_F32, ROWS),
				   hit = ops_new(PLAN_F32, ROWS);
	int32_t labels[ROWS] = { 1, 2, 3 };
	ops_set(&x, N + 33, NAN);
	ops->softmax_xent(&(struct backend_softmax_xent){ .rows = ROWS,
		.classes = N,
		.logits = x.p,
		.labels = labels,
		.row_loss = loss.p,
		.row_hit = hit.p,
		.scale = 1 });
	ops_sync(&loss);
	assert_true(!isnan(loss.v[0]) && isnan(loss.v[1]) && !isnan(loss.v[2]));
}

/* ------------------------------------------------------------------ classes that ranks have apart
 */

enum { SHARED_RANKS_MAX = 4 };

/* The columns of each rank, the losses from what all say, and the gradients put together again. */
struct together {
	int64_t rows, n, ranks, begin[SHARED_RANKS_MAX + 1];
	struct ops_vec *x, part[SHARED_RANKS_MAX], loss, hit;
	const int32_t *labels;
	float *statistics, scale, smoothing;
};

static void move_columns(struct together *t, int64_t k, bool back)
{
	int64_t own = t->begin[k + 1] - t->begin[k];
	for (int64_t r = 0; r < t->rows; r++)
		for (int64_t i = 0; i < own; i++) {
			int64_t whole = r * t->n + t->begin[k] + i, part = r * own + i;
			if (back)
				ops_set(t->x, whole, t->part[k].v[part]);
			else
				ops_set(&t->part[k], part, t->x->v[whole]);
		}
}

static void run_together(void *arg)
{
	struct together *t = arg;
	struct backend_xent_shared d[SHARED_RANKS_MAX];
	ops_sync(t->x);
	for (int64_t k = 0; k < t->ranks; k++) {
		move_columns(t, k, false);
		d[k] = (struct backend_xent_shared){ .rows = t->rows,
			.own = t->begin[k + 1] - t->begin[k],
			.first = t->begin[k],
			.classes = t->n,
			.ranks = t->ranks,
			.logits = t->part[k].p,
			.labels = t->labels,
			.own_statistics = t->statistics + k * t->rows * PLAN_STATISTICS,
			.statistics = t->statistics,
			.row_loss = t->loss.p,
			.row_hit = t->hit.p,
			.scale = t->scale,
			.smoothing = t->smoothing };
		ops->xent_statistics(&d[k]);
	}
	for (int64_t k = 0; k < t->ranks; k++) {
		ops->xent_shared(&d[k]);
		ops_sync(&t->part[k]);
		move_columns(t, k, true);
	}
}

static void shared_case(int64_t rows, int64_t n, int64_t ranks, double smoothing, double sharp)
{
	struct ops_vec x = ops_random(ops_type, rows * n, sharp);
	struct together t = { .rows = rows,
		.n = n,
		.ranks = ranks,
		.x = &x,
		.loss = ops_random(PLAN_F32, rows, 1),
		.hit = ops_random(PLAN_F32, rows, 1),
		.labels = labels_of(rows, n, 4),
		.statistics = ops_alloc((size_t)(ranks * rows * PLAN_STATISTICS) * sizeof(float)),
		.smoothing = (float)smoothing };
	for (int64_t i = 0; i < rows; i += 2) /* hits, and ties with another rank's */
		if (t.labels[i] >= 0) {
			ops_set(&x, i * n + t.labels[i], 2 * sharp);
			if (i % 4)
				ops_set(&x, i * n + ops_pick(0, n - 1), 2 * sharp);
		}
	for (int64_t k = 0; k <= ranks; k++)
		t.begin[k] = k * (n / ranks) + (k < n % ranks ? k : n % ranks);
	for (int64_t k = 0; k < ranks; k++)
		t.part[k] = ops_new(ops_type, rows * (t.begin[k + 1] - t.begin[k]));
	struct reference r = { rows, n, t.labels, smoothing, ops_copy(x.v, rows * n), ops_doubles(rows),
		ops_doubles(rows) };
	double *dx = ops_doubles(rows * n), scale = 1.0 / 19, logits = ops_largest(r.x, rows * n);
	softmax_forward(&r);
	OPS_RUN(run_together, &t, &x, &t.loss, &t.hit);
	OPS_NEAR_OF(t.loss, r.loss, logits, 1e-6);
	assert_memory_equal(t.hit.v, r.hit, (size_t)rows * sizeof(double));
	assert_memory_equal(x.v, r.x, (size_t)(rows * n) * sizeof(double));
	t.scale = (float)scale;
	softmax_backward(&r, scale, dx);
	OPS_RUN(run_together, &t, &x, &t.loss, &t.hit);
	OPS_NEAR_OF(x, dx, scale, 1e-6);
	OPS_NEAR_OF(t.loss, r.loss, logits, 1e-6);
}

static void test_shared(void **state)
{
	shared_case(21, 77, 2, 0, 4);
	shared_case(21, 7, 4, 0.1, 4);
	shared_case(30, 1009, 3, 0, 30);
	shared_case(9, 7001, 2, 0.1, 5);
	shared_case(9, 4, 4, 0.1, 1);
	for (int i = 0; i < 4; i++)
		shared_case(ops_pick(1, 40), ops_pick(4, 300), ops_pick(1, 4), 0.1, 5);
}

/* ---------------------------------------------------------------------------------- classifier */

struct head {
	int64_t rows, c, v;
	struct reference soft;
	double *x, *w;
};

static void head_forward(void *arg)
{
	struct head *h = arg;
	for (int64_t i = 0; i < h->rows; i++)
		for (int64_t k = 0; k < h->v; k++) {
			double sum = 0;
			for (int64_t e = 0; e < h->c; e++)
				sum += h->x[i * h->c + e] * h->w[k * h->c + e];
			h->soft.x[i * h->v + k] = sum;
		}
	softmax_forward(&h->soft);
}

/* dw is added to. */
static void head_backward(const struct head *h, const double *dlogits, double *dx, double *dw)
{
	memset(dx, 0, (size_t)(h->rows * h->c) * sizeof(double));
	for (int64_t i = 0; i < h->rows; i++)
		for (int64_t k = 0; k < h->v; k++)
			for (int64_t e = 0; e < h->c; e++) {
				dx[i * h->c + e] += dlogits[i * h->v + k] * h->w[k * h->c + e];
				dw[k * h->c + e] += dlogits[i * h->v + k] * h->x[i * h->c + e];
			}
}

static struct head head_of(int64_t rows, int64_t c, int64_t v, const int32_t *labels, double e)
{
	return (struct head){ rows, c, v,
		{ rows, v, labels, e, ops_doubles(rows * v), ops_doubles(rows), ops_doubles(rows) },
		ops_doubles(rows * c), ops_doubles(v * c) };
}

static void test_head_reference(void **state)
{
	enum { ROWS = 3, C = 4, V = 5 };
	struct head h = head_of(ROWS, C, V, labels_of(ROWS, V, 0), 0.1);
	double *dx = ops_doubles(ROWS * C), *dw = ops_doubles(V * C), *dl = ops_doubles(ROWS * V);
	double ones[ROWS] = { 0.5, 0.5, 0.5 };
	for (int i = 0; i < ROWS * C; i++)
		h.x[i] = 2 * ops_uniform();
	for (int i = 0; i < V * C; i++)
		h.w[i] = ops_uniform();
	head_forward(&h);
	softmax_backward(&h.soft, 0.5, dl);
	head_backward(&h, dl, dx, dw);
	ops_differences(head_forward, &h, h.x, ROWS * C, h.soft.loss, ones, ROWS, dx);
	ops_differences(head_forward, &h, h.w, V * C, h.soft.loss, ones, ROWS, dw);
}

static void run_classifier(void *arg)
{
	ops->classifier(arg);
}

static int64_t head_workspace(int64_t chunk, int64_t v, int64_t c)
{
	int64_t a = gemm_workspace_bytes(chunk, v, c), b = gemm_workspace_bytes(chunk, c, v),
			e = gemm_workspace_bytes(v, c, chunk);
	a = a > b ? a : b;
	return workspace_classifier(chunk, v, plan_type_bytes(ops_type), a > e ? a : e);
}

/* ignored_one_in 1: a chunk without labels, and rows that follow. */
static void classifier_case(
	int64_t rows, int64_t c, int64_t v, int64_t chunk, int ignored_one_in, double smoothing)
{
	struct ops_vec x = ops_random(ops_type, rows * c, 1), w = ops_random(ops_type, v * c, 1),
				   loss = ops_random(PLAN_F32, rows, 1), hit = ops_random(PLAN_F32, rows, 1),
				   dx = ops_random(ops_type, rows * c, 1), dw = ops_random(PLAN_F32, v * c, 0.1);
	int32_t *labels = labels_of(rows, v, ignored_one_in);
	for (int64_t i = 0; ignored_one_in == 1 && i < rows; i++)
		labels[i] = i < chunk ? -1 : (int32_t)ops_pick(0, v - 1);
	struct head h = head_of(rows, c, v, labels, smoothing);
	memcpy(h.x, x.v, (size_t)(rows * c) * sizeof(double));
	memcpy(h.w, w.v, (size_t)(v * c) * sizeof(double));
	double *dl = ops_doubles(rows * v), *rdx = ops_doubles(rows * c), *rdw = ops_copy(dw.v, v * c);
	head_forward(&h);
	softmax_backward(&h.soft, 4, dl);
	head_backward(&h, dl, rdx, rdw);
	struct backend_classifier d = { .rows = rows,
		.c = c,
		.v = v,
		.chunk = chunk,
		.w_type = ops_type,
		.x = x.p,
		.w = w.p,
		.labels = labels,
		.row_loss = loss.p,
		.row_hit = hit.p,
		.dx = dx.p,
		.dw = dw.p,
		.smoothing = (float)smoothing,
		.ws = ops_workspace(head_workspace(chunk, v, c)) };
	/* Logits and their gradients are rounded to the type in between. Seen: 9.6e-7, bf16 5.1e-3,
	 * fp16 5.4e-4; dw overwritten instead of added to 0.04 to 0.09, the first chunk's labels for
	 * all chunks 0.9. */
	double slack = ops_type == PLAN_BF16 ? 1e-2 : ops_type == PLAN_F16 ? 1.3e-3 : 3e-6;
	OPS_RUN(run_classifier, &d, &loss, &hit, &dx, &dw);
	double logits = ops_largest(h.soft.x, rows * v);
	OPS_NEAR_OF(loss, h.soft.loss, logits, slack);
	d.scale = 4; /* times probability minus label, times weights or inputs of up to 1 */
	OPS_RUN(run_classifier, &d, &loss, &hit, &dx, &dw);
	OPS_NEAR_OF(loss, h.soft.loss, logits, slack);
	OPS_NEAR_OF(dx, rdx, 4, slack);
	OPS_NEAR_OF(dw, rdw, 4, slack);
	for (int64_t i = 0; i < rows; i++)
		if (ops_type == PLAN_F32 || labels[i] < 0)
			assert_true(hit.v[i] == h.soft.hit[i]);
	d.dw = NULL; /* frozen */
	memset(dx.p, 0xff, (size_t)(rows * c * plan_type_bytes(ops_type)));
	ops->classifier(&d);
	OPS_NEAR_OF(dx, rdx, 4, slack);
}

static void test_classifier(void **state)
{
	classifier_case(1, 1, 2, 1, 0, 0);
	classifier_case(50, 24, 101, 16, 4, 0);
	classifier_case(33, 40, 257, 33, 0, 0.1);
	classifier_case(70, 17, 53, 32, 1, 0);
}

/* -------------------------------------------------------------------------- mean squared error */

static void run_mse(void *arg)
{
	ops->mse(arg);
}

static void test_mse_known(void **state)
{
	struct ops_vec y = ops_new(ops_type, 6), t = ops_new(PLAN_F32, 6), loss = ops_new(PLAN_F32, 3);
	const double target[6] = { 0, 4, NAN, 0, 5, 5 };
	for (int i = 0; i < 6; i++) {
		ops_set(&y, i, i + 1);
		ops_set(&t, i, target[i]);
	}
	ops->mse(&(struct backend_regress){
		.rows = 3, .outputs = 2, .y = y.p, .targets = t.p, .row_loss = loss.p, .scale = 0.5f });
	const double rloss[3] = { 2.5, 0, 0.5 }, rd[6] = { 0.5, -1, 0, 0, 0, 0.5 };
	OPS_NEAR(loss, rloss, 1e-7);
	OPS_NEAR(y, rd, 1e-7);
}

static void test_mse(void **state)
{
	static const int64_t shapes[][2] = { { 5, 1 }, { 900, 37 }, { 3, 100 } };
	for (size_t k = 0; k < ARRAY_LEN(shapes); k++) {
		int64_t rows = shapes[k][0], n = shapes[k][1];
		struct ops_vec y = ops_random(ops_type, rows * n, 1), t = ops_random(PLAN_F32, rows * n, 1),
					   loss = ops_new(PLAN_F32, rows);
		double *want = ops_doubles(rows), *grad = ops_doubles(rows * n);
		for (int64_t i = 0; i < rows * n; i++) {
			double diff = y.v[i] - t.v[i];
			want[i / n] += diff * diff / (double)n;
			grad[i] = 2 * diff / (double)n * 0.25;
		}
		struct backend_regress d = {
			.rows = rows, .outputs = n, .y = y.p, .targets = t.p, .row_loss = loss.p
		};
		OPS_RUN(run_mse, &d, &loss, &y);
		OPS_NEAR(loss, want, 1e-6);
		d.scale = 0.25f;
		OPS_RUN(run_mse, &d, &loss, &y);
		OPS_NEAR(loss, want, 1e-6);
		OPS_NEAR(y, grad, 3e-7);
	}
}

int main(void)
{
	const struct CMUnitTest reference[] = {
		OPS_TEST(test_softmax_reference),
		OPS_TEST(test_head_reference),
	};
	const struct CMUnitTest tests[] = {
		OPS_TEST(test_softmax),
		OPS_TEST(test_softmax_nan),
		OPS_TEST(test_shared),
		OPS_TEST(test_classifier),
		OPS_TEST(test_mse_known),
		OPS_TEST(test_mse),
	};
	return ops_main(reference, ARRAY_LEN(reference), tests, ARRAY_LEN(tests));
}
