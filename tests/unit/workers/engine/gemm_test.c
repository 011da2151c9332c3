/* SPDX-License-Identifier: Apache-2.0
 * Products of every instruction set that this CPU has against sums in double: random shapes, types,
 * operands (plain, transposed, grouped, patches) and epilogues; the same bits from any number of
 * threads and any workspace. */
#include "tests/unit/workers/engine/gemm_fixture.h"

#include <omp.h>

enum { ROUNDS = 220 };

/* ------------------------------------------------------------------ operands */

struct operand {
	struct gemm_source s;
	struct gemm_patches patches;
	void *mem;
	int64_t rows, columns; /* as the product sees it */
};

static double patch_value(const struct operand *o, int64_t row, int64_t column)
{
	const struct gemm_patches *p = &o->patches;
	int64_t image = row / (p->out_h * p->out_w), oy = row / p->out_w % p->out_h,
			ox = row % p->out_w;
	int64_t tap = column / p->c, ky = tap / p->kernel_w, kx = tap % p->kernel_w;
	int64_t vy = oy * p->stride + p->origin_y + ky * p->tap_step;
	int64_t vx = ox * p->stride + p->origin_x + kx * p->tap_step;
	if (vy < 0 || vx < 0 || vy % p->hole || vx % p->hole || vy / p->hole >= p->h ||
		vx / p->hole >= p->w)
		return 0;
	int64_t at = ((image * p->h + vy / p->hole) * p->w + vx / p->hole) * p->c + column % p->c;
	return load(o->s.type, o->mem, at);
}

/* The value that is multiplied. */
static double operand_value(const struct operand *o, int64_t row, int64_t column, bool bf16)
{
	int64_t r = o->s.transposed ? column : row, c = o->s.transposed ? row : column;
	int64_t at = o->s.group ? r / o->s.group * o->s.group_stride + r % o->s.group * o->s.row_stride
							: r * o->s.row_stride;
	double x = o->s.patches ? patch_value(o, r, c) : load(o->s.type, o->mem, at + c);
	return bf16 ? (double)from_bf16(to_bf16((float)x)) : x;
}

/* Random geometry; its stored rows and columns are returned. */
static void random_patches(struct operand *o, int64_t *ret_rows, int64_t *ret_columns)
{
	struct gemm_patches *p = &o->patches;
	*p = (struct gemm_patches){ .n = pick(1, 3),
		.h = pick(1, 9),
		.w = pick(1, 9),
		.c = chance(3) ? pick(1, 40) : pick(1, 5),
		.kernel_h = pick(1, 4),
		.kernel_w = pick(1, 4),
		.stride = pick(1, 3),
		.hole = chance(2) ? 1 : pick(1, 3),
		.out_h = pick(1, 9),
		.out_w = pick(1, 9),
		.origin_y = pick(-4, 4),
		.origin_x = pick(-4, 4),
		.tap_step = chance(2) ? 1 : -1 };
	*ret_rows = p->n * p->out_h * p->out_w;
	*ret_columns = p->kernel_h * p->kernel_w * p->c;
	o->mem = random_values(o->s.type, p->n * p->h * p->w * p->c);
	o->s.patches = p;
}

static void random_matrix(struct operand *o, int64_t rows, int64_t columns)
{
	struct gemm_source *s = &o->s;
	s->row_stride = columns + (chance(2) ? 0 : pick(1, 20));
	int64_t count = (rows - 1) * s->row_stride + columns;
	if (chance(4)) {
		s->group = pick(1, rows);
		s->group_stride = s->group * s->row_stride + pick(0, 9);
		count = (rows - 1) / s->group * s->group_stride + ((rows - 1) % s->group) * s->row_stride +
			columns;
	}
	if (chance(6) && !s->group) { /* rows that collide in a cache */
		s->row_stride = (columns + 1023) / 1024 * 1024;
		count = (rows - 1) * s->row_stride + columns;
	}
	o->mem = random_values(s->type, count);
}

/* -1: that dimension is free, and chosen here. */
static void random_operand(struct operand *o, int64_t *rows, int64_t *columns, bool patches)
{
	o->s.type = (enum gemm_type)pick(0, 2);
	o->s.transposed = chance(2);
	int64_t *stored_rows = o->s.transposed ? columns : rows;
	int64_t *stored_columns = o->s.transposed ? rows : columns;
	if (patches)
		random_patches(o, stored_rows, stored_columns);
	else
		random_matrix(o, *stored_rows, *stored_columns);
	o->s.base = o->mem;
	o->rows = *rows;
	o->columns = *columns;
}

/* ------------------------------------------------------------------ a case */

struct problem {
	struct gemm g;
	struct operand a, b;
	void *c, *before, *pre, *residual, *gate;
	float *bias;
	void *workspace;
	int64_t c_count;
};

static int64_t random_size(void)
{
	switch (pick(0, 5)) {
	case 0: return 1;
	case 1: return pick(1, 8);
	case 2: return pick(9, 40);
	case 3: return 32 * pick(1, 4);
	default: return pick(1, 150);
	}
}

static void random_epilogue(struct problem *p)
{
	struct gemm *g = &p->g;
	g->alpha = chance(2) ? 1 : (float)unit_random();
	if (chance(3)) {
		g->c_type = GEMM_F32;
		g->accumulate = true;
		return;
	}
	g->c_type = (enum gemm_type)pick(0, 2);
	if (chance(3))
		return; /* plain */
	if (chance(2))
		g->bias = p->bias = random_values(GEMM_F32, g->n);
	g->act = (enum gemm_act)pick(0, 2);
	if (chance(2))
		g->pre = p->pre = random_values(g->c_type, p->c_count);
	if (chance(2))
		p->residual = random_values(g->c_type, p->c_count);
	if (chance(2)) {
		g->gate_act = (enum gemm_act)pick(1, 2);
		p->gate = random_values(g->c_type, p->c_count);
		g->gate = p->gate;
	}
}

static void problem_create(struct problem *p)
{
	struct gemm *g = &p->g;
	memset(p, 0, sizeof(*p));
	g->m = random_size();
	g->n = random_size();
	g->k = chance(3) ? pick(1500, 4000) : random_size();
	if (g->k > 1000)
		g->m = g->m % 40 + 1;
	int64_t which = pick(0, 3);
	if (which == 0)
		random_operand(&p->a, &g->m, &g->k, true);
	if (which == 1)
		random_operand(&p->b, &g->k, &g->n, true);
	if (which != 0)
		random_operand(&p->a, &g->m, &g->k, false);
	if (which != 1)
		random_operand(&p->b, &g->k, &g->n, false);
	g->bf16 = chance(2);
	g->c_stride = g->n + (chance(2) ? 0 : pick(1, 20));
	p->c_count = (g->m - 1) * g->c_stride + g->n;
	g->c_type = GEMM_F32;
	random_epilogue(p);
	p->c = random_values(g->c_type, p->c_count);
	g->residual = p->residual && chance(2) ? p->c : p->residual;
	p->before = malloc((size_t)((p->c_count + GUARD) * size_of(g->c_type)));
	assert_non_null(p->before);
	memcpy(p->before, p->c, (size_t)((p->c_count + GUARD) * size_of(g->c_type)));
	g->a = p->a.s;
	g->b = p->b.s;
	g->c = p->c;
	g->workspace_bytes = gemm_workspace_bytes(g->m, g->n, g->k);
	g->workspace = p->workspace = malloc((size_t)g->workspace_bytes);
	assert_non_null(p->workspace);
}

static void problem_destroy(struct problem *p)
{
	free(p->a.mem);
	free(p->b.mem);
	free(p->c);
	free(p->before);
	free(p->pre);
	free(p->residual);
	free(p->gate);
	free(p->bias);
	free(p->workspace);
}

static void run(const struct problem *p, const struct gemm_kernels *k)
{
	memcpy(p->c, p->before, (size_t)((p->c_count + GUARD) * size_of(p->g.c_type)));
	gemm_run_with(&p->g, k);
}

/* ------------------------------------------------------------------ what it must be */

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
	double du = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

static double stored(const struct problem *p, const void *base, int64_t at)
{
	return load(p->g.c_type, base, at);
}

/* Half a unit in the last place of the stored type, and what its smallest numbers are apart. */
static double rounding(enum gemm_type type, double x)
{
	if (type == GEMM_F32)
		return 1e-7 * fabs(x);
	return type == GEMM_BF16 ? 0x1.01p-8 * fabs(x) : 0x1.01p-11 * fabs(x) + 0x1p-25;
}

static void check_value(const struct problem *p, const char *name, const char *what, int64_t i,
	int64_t j, double got, double want, double slack)
{
	const struct gemm *g = &p->g;
	if (!(fabs(got - want) <= slack + rounding(g->c_type, want)))
		fail_msg("%s: %s[%lld,%lld] of %lld x %lld x %lld is %.9g, not %.9g (slack %.2g)", name,
			what, (long long)i, (long long)j, (long long)g->m, (long long)g->n, (long long)g->k,
			got, want, slack);
}

static void check_element(const struct problem *p, const char *name, int64_t i, int64_t j)
{
	const struct gemm *g = &p->g;
	const int64_t at = i * g->c_stride + j;
	double sum = 0, weight = 0;
	for (int64_t k = 0; k < g->k; k++) {
		double x = operand_value(&p->a, i, k, g->bf16) * operand_value(&p->b, k, j, g->bf16);
		sum += x;
		weight += fabs(x);
	}
	double t = g->alpha * sum + (g->bias ? (double)g->bias[j] : 0);
	/* Rounding errors of k sums are independent: they grow with the root of k. */
	double slack =
		6e-8 * (4 + sqrt((double)g->k)) * weight * fabs((double)g->alpha) + 4e-7 * fabs(t);
	if (g->pre) {
		check_value(p, name, "pre", i, j, stored(p, g->pre, at), t, slack);
		t = stored(p, g->pre, at);
		slack = 0;
	} else if (g->act == GEMM_GELU) {
		slack += rounding(g->c_type, t); /* GELU is of the value as it would be stored */
	}
	if (g->act == GEMM_RELU)
		t = t > 0 ? t : 0;
	else if (g->act == GEMM_GELU)
		t = gelu(t);
	slack += 1e-6;
	if (g->residual)
		t += stored(p, g->residual == g->c ? p->before : g->residual, at);
	if (g->gate_act == GEMM_RELU)
		t = stored(p, g->gate, at) > 0 ? t : 0;
	else if (g->gate_act == GEMM_GELU)
		t *= gelu_slope(stored(p, g->gate, at));
	if (g->accumulate)
		t += stored(p, p->before, at);
	check_value(p, name, "C", i, j, stored(p, p->c, at), t, 1.2 * slack);
}

/* Elements at random, the corners, and all that lies between and behind the rows. */
static void check_problem(const struct problem *p, const char *name)
{
	const struct gemm *g = &p->g;
	for (int i = 0; i < 60; i++)
		check_element(p, name, pick(0, g->m - 1), pick(0, g->n - 1));
	check_element(p, name, 0, 0);
	check_element(p, name, g->m - 1, g->n - 1);
	check_element(p, name, 0, g->n - 1);
	check_element(p, name, g->m - 1, 0);
	const int64_t size = size_of(g->c_type);
	for (int64_t at = 0; at < p->c_count + GUARD; at++)
		if (at % g->c_stride >= g->n || at >= p->c_count)
			assert_memory_equal((char *)p->c + at * size, (char *)p->before + at * size, size);
}

static void random_products(void **state)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct problem p;
		problem_create(&p);
		for (int i = 0; gemm_kernels_at(i); i++) {
			if (gemm_kernels_at(i)->unit == 2 && !p.g.bf16)
				continue;
			run(&p, gemm_kernels_at(i));
			check_problem(&p, gemm_kernels_at(i)->name);
		}
		problem_destroy(&p);
	}
}

static void same_bits_whatever_runs_it(void **state)
{
	static const int threads[] = { 2, 3, 4, 7 };
	for (int round = 0; round < 40; round++) {
		struct problem p;
		problem_create(&p);
		const int64_t bytes = p.c_count * size_of(p.g.c_type);
		void *first = malloc((size_t)bytes);
		assert_non_null(first);
		FOR_KERNELS(&p.g, k)
		{
			omp_set_num_threads(1);
			p.g.workspace_bytes = gemm_workspace_bytes(p.g.m, p.g.n, p.g.k);
			run(&p, k);
			memcpy(first, p.c, (size_t)bytes);
			for (size_t t = 0; t < sizeof(threads) / sizeof(*threads); t++) {
				omp_set_num_threads(threads[t]);
				if (t % 2)
					p.g.workspace_bytes = GEMM_WORKSPACE_MIN;
				run(&p, k);
				assert_memory_equal(p.c, first, bytes);
			}
		}
		free(first);
		problem_destroy(&p);
	}
	omp_set_num_threads(2);
}

/* Enough work that every thread gets a part in pieces, over several blocks of k and of columns. */
static void same_bits_of_a_large_product(void **state)
{
	enum { M = 150, N = 700, K = 1700, BYTES = M * N * 4 };
	float *a = random_values(GEMM_F32, M * K), *b = random_values(GEMM_F32, K * N);
	float *bias = random_values(GEMM_F32, N), *residual = random_values(GEMM_F32, M * N);
	void *c = malloc(BYTES), *first = malloc(BYTES), *ws = malloc(GEMM_WORKSPACE_MAX);
	assert_true(c && first && ws);
	for (int form = 0; form < 16; form++) {
		const bool ta = form & 1, tb = form & 2, sums = form & 8;
		struct gemm g = { .m = M,
			.n = N,
			.k = K,
			.a = { .base = a, .transposed = ta, .row_stride = ta ? M : K },
			.b = { .base = b, .transposed = tb, .row_stride = tb ? K : N },
			.bf16 = form & 4,
			.alpha = sums ? 1.0f : 0.7f,
			.c_type = sums ? GEMM_F32 : GEMM_F16,
			.c = c,
			.c_stride = N,
			.bias = bias,
			.act = sums ? GEMM_NONE : GEMM_GELU,
			.residual = sums ? residual : NULL,
			.workspace = ws };
		FOR_KERNELS(&g, k)
		{
			for (int threads = 1; threads <= 7; threads++) {
				omp_set_num_threads(threads);
				g.workspace_bytes = threads % 2 ? GEMM_WORKSPACE_MAX : GEMM_WORKSPACE_MIN;
				memset(c, 0xff, BYTES);
				gemm_run_with(&g, k);
				if (threads == 1)
					memcpy(first, c, BYTES);
				assert_memory_equal(c, first, BYTES);
			}
		}
	}
	omp_set_num_threads(2);
	free(a);
	free(b);
	free(bias);
	free(residual);
	free(c);
	free(first);
	free(ws);
}

int main(void)
{
	random_source = check_random_start();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_products),
		cmocka_unit_test(same_bits_whatever_runs_it),
		cmocka_unit_test(same_bits_of_a_large_product),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
