/* SPDX-License-Identifier: Apache-2.0
 * What the tests of workers/engine/cpu/ops share: tensors of every type beside the same values in
 * double, comparison, the same run with several numbers of threads, finite differences, and a main
 * that goes through every instruction set that this CPU has and every activation type. */
#pragma once

#include "tests/support/check.h"
#include "workers/engine/cpu/cpu_private.h"

#if defined(OPS_CUDA)
#include "workers/engine/cuda/cuda.h"
#include <cuda_runtime.h>
#endif

#include <math.h>

#define OPS_FN static __attribute__((unused))

/* Under test. */
static const struct backend *ops;
static enum plan_type ops_type;
static struct backend_ctx *ops_ctx; /* of the test that runs */
static struct check_random ops_random_source;

enum { OPS_GUARD_BYTES = 64, OPS_ALLOCATIONS_MAX = 4096 };

/* Everything a test allocates is freed by its teardown, after a look at the bytes behind it. */
static struct ops_allocation {
	char *p;
	size_t bytes;
} ops_allocations[OPS_ALLOCATIONS_MAX];
static int ops_allocation_count;

/* Memory for operations and for the test itself. */
#if defined(OPS_CUDA)
OPS_FN char *ops_memory(size_t bytes)
{
	void *p = NULL;
	assert_int_equal(cudaMallocManaged(&p, bytes, cudaMemAttachGlobal), cudaSuccess);
	return p;
}
OPS_FN void ops_memory_free(char *p)
{
	(void)cudaFree(p);
}
#else
OPS_FN char *ops_memory(size_t bytes)
{
	return aligned_alloc(64, bytes);
}
OPS_FN void ops_memory_free(char *p)
{
	free(p);
}
#endif

OPS_FN void *ops_alloc(size_t bytes)
{
	size_t whole = (bytes + OPS_GUARD_BYTES + 63) / 64 * 64;
	char *p = ops_memory(whole);
	assert_non_null(p);
	assert_true(ops_allocation_count < OPS_ALLOCATIONS_MAX);
	memset(p, 0, bytes);
	memset(p + bytes, 0xa5, whole - bytes);
	ops_allocations[ops_allocation_count++] = (struct ops_allocation){ p, bytes };
	return p;
}

/* Waits for what the device has been given; nothing has failed. */
OPS_FN void ops_settle(void)
{
	struct err err = { 0 };
	if (ops_ctx && ops->finish(ops_ctx, &err) != 0)
		fail_msg("%s", err.message);
}

OPS_FN int ops_setup(void **state)
{
	struct err err = { 0 };
	ops_allocation_count = 0;
	ops_ctx = NULL;
	if (ops && ops->open(1, &ops_ctx, &err) != 0)
		return -1;
	if (ops)
		ops->enter(ops_ctx);
	return 0;
}

OPS_FN int ops_teardown(void **state)
{
	int broken = 0;
	if (ops_ctx)
		ops->close(ops_ctx);
	ops_ctx = NULL;
	for (int i = 0; i < ops_allocation_count; i++) {
		for (size_t k = 0; k < OPS_GUARD_BYTES; k++)
			broken |= (unsigned char)ops_allocations[i].p[ops_allocations[i].bytes + k] != 0xa5;
		ops_memory_free(ops_allocations[i].p);
	}
	if (broken)
		print_error("bytes behind an array were overwritten\n");
	return broken;
}

/* ------------------------------------------------------------------------------ stored types */

/* To nearest even with the type's precision; the smallest exponent is kept for subnormals. */
OPS_FN double ops_round(enum plan_type type, double x)
{
	if (type == PLAN_F32 || !isfinite(x) || x == 0)
		return (double)(float)x;
	int exponent, bits = type == PLAN_BF16 ? 8 : 11, least = type == PLAN_BF16 ? -125 : -13;
	(void)frexp(x, &exponent);
	double unit = ldexp(1, (exponent < least ? least : exponent) - bits);
	double r = nearbyint(x / unit) * unit;
	return fabs(r) > (type == PLAN_F16 ? 65504 : 0x1.fep127) ? copysign(INFINITY, x) : r;
}

OPS_FN double ops_read(enum plan_type type, const void *p, int64_t i)
{
	if (type == PLAN_F32)
		return (double)((const float *)p)[i];
	uint32_t h = ((const uint16_t *)p)[i];
	if (type == PLAN_BF16) {
		uint32_t u = h << 16;
		float f;
		memcpy(&f, &u, sizeof(f));
		return (double)f;
	}
	int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
	double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
	if (exponent == 31)
		v = mantissa ? (double)NAN : (double)INFINITY;
	return h & 0x8000 ? -v : v;
}

/* Stores a value that ops_round gave. */
OPS_FN void ops_write(enum plan_type type, void *p, int64_t i, double x)
{
	float f = (float)x;
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	if (type == PLAN_F32) {
		((float *)p)[i] = f;
		return;
	}
	uint16_t h = (uint16_t)(u >> 16);
	if (type == PLAN_F16) {
		uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
		double a = fabs(x);
		int exponent = 0;
		(void)frexp(a, &exponent);
		if (isnan(x))
			h = sign | 0x7e00u;
		else if (isinf(x))
			h = sign | 0x7c00u;
		else if (a < 0x1p-14)
			h = sign | (uint16_t)(a * 0x1p24);
		else
			h = (uint16_t)(sign + ((exponent + 14) << 10) + (int)(ldexp(a, 11 - exponent)) - 1024);
	}
	((uint16_t *)p)[i] = h;
}

/* ------------------------------------------------------------------------------------ tensors */

/* p is what operations get, v the same values. */
struct ops_vec {
	enum plan_type type;
	int64_t count;
	void *p;
	double *v;
};

OPS_FN struct ops_vec ops_new(enum plan_type type, int64_t count)
{
	struct ops_vec x = { .type = type, .count = count };
	x.p = ops_alloc((size_t)(count * plan_type_bytes(type)));
	x.v = ops_alloc((size_t)count * sizeof(double));
	return x;
}

OPS_FN void ops_set(struct ops_vec *x, int64_t i, double value)
{
	x->v[i] = ops_round(x->type, value);
	ops_write(x->type, x->p, i, x->v[i]);
}

/* Reads what an operation wrote. */
OPS_FN void ops_sync(struct ops_vec *x)
{
	ops_settle();
	for (int64_t i = 0; i < x->count; i++)
		x->v[i] = ops_read(x->type, x->p, i);
}

OPS_FN double ops_uniform(void) /* [-1, 1) */
{
	return (double)(int64_t)check_random_bits(&ops_random_source) * 0x1p-63;
}

OPS_FN struct ops_vec ops_random(enum plan_type type, int64_t count, double scale)
{
	struct ops_vec x = ops_new(type, count);
	for (int64_t i = 0; i < count; i++)
		ops_set(&x, i, scale * ops_uniform());
	return x;
}

OPS_FN int64_t ops_pick(int64_t min, int64_t max)
{
	return check_random_range(&ops_random_source, min, max);
}

OPS_FN double *ops_doubles(int64_t count)
{
	return ops_alloc((size_t)count * sizeof(double));
}

OPS_FN double *ops_copy(const double *x, int64_t count)
{
	double *y = ops_doubles(count);
	memcpy(y, x, (size_t)count * sizeof(double));
	return y;
}

OPS_FN struct backend_workspace ops_workspace(int64_t bytes)
{
	struct backend_workspace ws = { ops_alloc((size_t)bytes), bytes };
	memset(ws.data, 0xff, (size_t)bytes); /* NaN: nobody may count on zeros */
	return ws;
}

/* --------------------------------------------------------------------------------- comparison */

OPS_FN double ops_largest(const double *x, int64_t count)
{
	double largest = 0;
	for (int64_t i = 0; i < count; i++)
		largest = fmax(largest, fabs(x[i]));
	return largest;
}

/* How far x is from the reference beyond what rounding to its type explains, relative to the
 * largest magnitude of the reference, or to `terms` where that is larger: the magnitude of what was
 * added up, when the sum may nearly cancel. So one tolerance, of the arithmetic in fp32, fits all
 * types and all draws. */
OPS_FN double ops_distance(struct ops_vec *x, const double *want, double terms)
{
	double unit = x->type == PLAN_BF16 ? 0x1.01p-8 : x->type == PLAN_F16 ? 0x1.01p-11 : 0;
	double least = x->type == PLAN_F16 ? 0x1p-25 : 0, worst = 0, size = fmax(terms, 1e-30);
	ops_sync(x);
	for (int64_t i = 0; i < x->count; i++) {
		if (!isfinite(x->v[i]) || !isfinite(want[i]))
			return INFINITY;
		worst = fmax(worst, fabs(x->v[i] - want[i]) - fmax(unit * fabs(want[i]), least));
		size = fmax(size, fabs(want[i]));
	}
	return worst / size;
}

/* The same of the mean squares: for operations whose single errors vary, the largest of thousands
 * much between draws, their mean hardly. One wrong value of n still counts by 1 / sqrt(n). */
OPS_FN double ops_distance_rms(struct ops_vec *x, const double *want)
{
	double unit = x->type == PLAN_BF16 ? 0x1.01p-8 : x->type == PLAN_F16 ? 0x1.01p-11 : 0;
	double least = x->type == PLAN_F16 ? 0x1p-25 : 0, off = 0, size = 1e-30;
	ops_sync(x);
	for (int64_t i = 0; i < x->count; i++) {
		if (!isfinite(x->v[i]) || !isfinite(want[i]))
			return INFINITY;
		off += pow(fmax(fabs(x->v[i] - want[i]) - fmax(unit * fabs(want[i]), least), 0), 2);
		size += want[i] * want[i];
	}
	return sqrt(off / size);
}

/* TRAINYARD_TEST_VERBOSE shows every distance, for setting tolerances. */
#define OPS_NEAR(x, want, tolerance) OPS_NEAR_OF(x, want, 0, tolerance)
#define OPS_NEAR_OF(x, want, terms, tolerance) \
	OPS_WITHIN(x, ops_distance(&(x), (want), (terms)), tolerance)
#define OPS_NEAR_RMS(x, want, tolerance) OPS_WITHIN(x, ops_distance_rms(&(x), (want)), tolerance)
#define OPS_WITHIN(x, distance, tolerance)                                                       \
	do {                                                                                         \
		double ops_d = (distance);                                                               \
		if (getenv("TRAINYARD_TEST_VERBOSE"))                                                    \
			print_message(                                                                       \
				"%s:%d %s %.3g (%.3g)\n", __func__, __LINE__, #x, ops_d, (double)(tolerance));   \
		if (!(ops_d <= (tolerance)))                                                             \
			fail_msg("%s: distance %.3g exceeds %.3g (line %d)", #x, ops_d, (double)(tolerance), \
				__LINE__);                                                                       \
	} while (0)

/* ------------------------------------------------------------------------------------ threads */

/* Runs the operation with 1, 2, 3 and 7 threads from the same contents of its outputs: the bits
 * must be the same. outs ends with a NULL. */
OPS_FN void ops_run(void (*run)(void *arg), void *arg, struct ops_vec *const *outs)
{
	static const int threads[] = { 1, 2, 3, 7 };
	char *before[16], *first[16];
	int n = 0;
	ops_settle(); /* each run has a device of its own */
	for (; outs[n]; n++) {
		size_t bytes = (size_t)(outs[n]->count * plan_type_bytes(outs[n]->type));
		assert_true(n < 16);
		before[n] = ops_alloc(bytes);
		first[n] = ops_alloc(bytes);
		memcpy(before[n], outs[n]->p, bytes);
	}
	for (size_t k = 0; k < ARRAY_LEN(threads); k++) {
		struct backend_ctx *ctx = NULL, *own = ops_ctx;
		struct err err = { 0 };
		assert_int_equal(ops->open(threads[k], &ctx, &err), 0);
		ops->enter(ctx);
		for (int i = 0; i < n; i++)
			memcpy(
				outs[i]->p, before[i], (size_t)(outs[i]->count * plan_type_bytes(outs[i]->type)));
		ops_ctx = ctx;
		run(arg);
		ops_settle();
		ops_ctx = own;
		for (int i = 0; i < n; i++) {
			size_t bytes = (size_t)(outs[i]->count * plan_type_bytes(outs[i]->type));
			if (k == 0)
				memcpy(first[i], outs[i]->p, bytes);
			else if (memcmp(first[i], outs[i]->p, bytes) != 0)
				fail_msg("output %d: %d threads give other bits than 1", i, threads[k]);
		}
		ops->close(ctx);
		ops->enter(ops_ctx);
	}
	for (int i = 0; i < n; i++)
		ops_sync(outs[i]);
}

#define OPS_RUN(run, arg, ...) ops_run(run, arg, (struct ops_vec *const[]){ __VA_ARGS__, NULL })

/* ------------------------------------------------------------------------- finite differences */

/* Compares a reference's gradient with central differences of its own forward pass, in double: the
 * derivative of sum(dy * y) by each x[i] is dx[i]. forward reads x and writes y. Rounding leaves
 * about 1e-10 of the largest gradient, a missing factor or term about 1; the bar is 1e-6. */
OPS_FN void ops_differences(void (*forward)(void *arg), void *arg, double *x, int64_t count,
	const double *y, const double *dy, int64_t outputs, const double *dx)
{
	double worst = 0, size = 1e-30;
	for (int64_t i = 0; i < count; i++) {
		double x0 = x[i], h = 1e-5 * fmax(1, fabs(x0)), sum[2];
		for (int side = 0; side < 2; side++) {
			x[i] = side ? x0 + h : x0 - h;
			forward(arg);
			sum[side] = 0;
			for (int64_t k = 0; k < outputs; k++)
				sum[side] += y[k] * dy[k];
		}
		x[i] = x0;
		worst = fmax(worst, fabs((sum[1] - sum[0]) / (2 * h) - dx[i]));
		size = fmax(size, fabs(dx[i]));
	}
	forward(arg);
	if (getenv("TRAINYARD_TEST_VERBOSE"))
		print_message("finite differences: %.3g\n", worst / size);
	if (!(worst <= 1e-6 * size))
		fail_msg("the reference's gradient is %.3g off", worst / size);
}

/* --------------------------------------------------------------------------------------- main */

/* The tables under test: the CPU's of each instruction set, or with OPS_CUDA those of CUDA. */
#if defined(OPS_CUDA)
enum { OPS_TABLES = 1 };
OPS_FN const struct backend *ops_table(int i, enum plan_type type)
{
	return cuda_table(type);
}
#else
enum { OPS_TABLES = CPU_ISA_COUNT };
OPS_FN const struct backend *ops_table(int i, enum plan_type type)
{
	return cpu_table(i, type);
}
#endif

/* Kernels of CUDA under the emulation and sanitizers take long: one type a run there. */
OPS_FN bool ops_is_spared(enum plan_type drawn)
{
#if defined(OPS_CUDA)
	return getenv("TRAINYARD_SANITIZED") != NULL && ops_type != drawn;
#else
	return false;
#endif
}

/* reference: tests of the references alone, run once; tests: once for each table. */
OPS_FN int ops_main(const struct CMUnitTest *reference, size_t reference_count,
	const struct CMUnitTest *tests, size_t count)
{
	static const char *const words[] = { "fp32", "bf16", "fp16" };
	int failed = 0;
	ops_random_source = check_random_start();
	const enum plan_type drawn = (enum plan_type)ops_pick(PLAN_F32, PLAN_F16);
	if (reference_count > 0)
		failed += _cmocka_run_group_tests("reference", reference, reference_count, NULL, NULL);
	for (int i = 0; i < OPS_TABLES; i++)
		for (ops_type = PLAN_F32; ops_type <= PLAN_F16; ops_type++) {
			char name[64];
			ops = ops_is_spared(drawn) ? NULL : ops_table(i, ops_type);
			if (!ops)
				continue;
			(void)snprintf(name, sizeof(name), "%s %s", ops->name, words[ops_type]);
			failed += _cmocka_run_group_tests(name, tests, count, NULL, NULL);
		}
	return failed;
}

#define OPS_TEST(f) cmocka_unit_test_setup_teardown(f, ops_setup, ops_teardown)
