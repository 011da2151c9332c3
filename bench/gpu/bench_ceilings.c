/* SPDX-License-Identifier: Apache-2.0
 * What a device can do at best, through the engine's own backend: products of bf16 and copies
 * within its memory. One JSON object a line: the median of runs that fill the time.
 * usage: bench-ceilings [--device cuda|cpu] [--threads N] [--seconds S] [--bytes N] [MxNxK...] */
#include "core/base/num.h"
#include "workers/engine/backend.h"
#include "workers/engine/cpu/gemm.h"
#include "workers/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	SHAPES_MAX = 32,
	SIDE_MAX = 1 << 17,
	RUNS_MAX = 1000,
	RUNS_MIN = 3,
	CUDA_WORKSPACE_BYTES = 64 << 20,
	SAMPLE = 1 << 16, /* values that are drawn; the rest repeats them */
};
#define RUN_SECONDS 0.02 /* that one run should take at least */

struct shape {
	int64_t m, n, k;
};

struct options {
	const char *device;
	int threads;
	double seconds; /* of each figure */
	int64_t bytes;  /* that are copied */
	int shape_count;
	struct shape shapes[SHAPES_MAX];
};

/* What is measured: `calls` of it are given to the device, then waited for. */
struct work {
	const struct backend *b;
	struct backend_ctx *ctx;
	struct backend_linear linear; /* without rows: a copy */
	void *to, *from;
	int64_t bytes;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop(const char *what, const struct err *err)
{
	fprintf(stderr, "bench-ceilings: %s%s%s\n", what, err ? ": " : "", err ? err->message : "");
	exit(1);
}

static double seconds_of(const struct work *w, int64_t calls)
{
	struct err err = { 0 };
	double begin = now();
	for (int64_t i = 0; i < calls; i++)
		if (w->linear.m > 0)
			w->b->linear(&w->linear);
		else
			w->b->copy(w->ctx, w->to, w->from, w->bytes);
	if (w->b->finish(w->ctx, &err) < 0)
		stop("the device", &err);
	return (now() - begin) / (double)calls;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Seconds of one call: the median of runs of as many calls as make a run long enough. */
static double measure(const struct work *w, double seconds, int64_t *ret_calls, int *ret_runs)
{
	static double run[RUNS_MAX];
	double once = seconds_of(w, 1); /* also warms up: libraries choose their kernels here */
	once = fmin(once, seconds_of(w, 1));
	int64_t calls = (int64_t)ceil(RUN_SECONDS / fmax(once, 1e-7));
	int count = 0;
	for (double begin = now(); count < RUNS_MIN || (count < RUNS_MAX && now() - begin < seconds);)
		run[count++] = seconds_of(w, calls);
	qsort(run, (size_t)count, sizeof(*run), by_size);
	*ret_calls = calls;
	*ret_runs = count;
	return run[count / 2];
}

static void tell(const struct options *o, const struct work *w, const char *name, double value,
	const char *unit, int64_t calls, int runs)
{
	printf("{\"case\":\"%s\",\"metric\":\"median\",\"value\":%.6g,\"unit\":\"%s\",\"peer\":null,"
		   "\"peer_value\":null,\"ratio\":null,\"conditions\":\"%s, %d runs of %lld calls, each "
		   "waited for\"}\n",
		name, value, unit, w->b->name, runs, (long long)calls);
	fflush(stdout);
}

/* Random values between -1 and 1: of zeros a GPU takes less current, and is faster. */
static void fill(const struct work *w, void *device, int64_t count)
{
	static float drawn[SAMPLE];
	static uint16_t values[SAMPLE];
	uint32_t x = 1;
	for (int i = 0; i < SAMPLE; i++) {
		x = x * 1664525 + 1013904223;
		drawn[i] = (float)(int32_t)x * 0x1p-31f;
	}
	w->b->from_f32(SAMPLE, drawn, values);
	for (int64_t i = 0; i < count; i += SAMPLE)
		w->b->put(
			w->ctx, (uint16_t *)device + i, values, 2 * (count - i < SAMPLE ? count - i : SAMPLE));
}

static char *take(struct work *w, int64_t bytes)
{
	struct err err = { 0 };
	void *data = NULL;
	if (w->b->map(w->ctx, BACKEND_DEVICE, bytes, &data, &err) < 0)
		stop("memory", &err);
	return data;
}

static void product(const struct options *o, const struct shape *s, const struct work *opened)
{
	struct work w = *opened;
	bool apart = w.b->apart;
	int64_t ws_bytes = apart ? CUDA_WORKSPACE_BYTES : gemm_workspace_bytes(s->m, s->n, s->k);
	int64_t x = num_round_up(2 * s->m * s->k, PLAN_ALIGN_BYTES);
	int64_t weight = num_round_up(2 * s->k * s->n, PLAN_ALIGN_BYTES);
	int64_t y = num_round_up(2 * s->m * s->n, PLAN_ALIGN_BYTES);
	char *at = take(&w, x + weight + y + ws_bytes), name[64];
	fill(&w, at, s->m * s->k);
	fill(&w, at + x, s->k * s->n);
	w.linear = (struct backend_linear){ .m = s->m,
		.k = s->k,
		.n = s->n,
		.ldx = s->k,
		.ldy = s->n,
		.transposed = true, /* [n, k], as Llama's layers are */
		.alpha = 1,
		.w_type = PLAN_BF16,
		.x = at,
		.w = at + x,
		.y = at + x + weight,
		.ws = { at + x + weight + y, ws_bytes } };
	int64_t calls;
	int runs;
	double seconds = measure(&w, o->seconds, &calls, &runs);
	(void)snprintf(name, sizeof(name), "gemm %lldx%lldx%lld bf16", (long long)s->m, (long long)s->n,
		(long long)s->k);
	tell(o, &w, name, 2e-12 * (double)s->m * (double)s->n * (double)s->k / seconds, "TFLOP/s",
		calls, runs);
}

static void copying(const struct options *o, const struct work *opened)
{
	struct work w = *opened;
	w.bytes = o->bytes;
	w.to = take(&w, 2 * o->bytes);
	w.from = (char *)w.to + o->bytes;
	int64_t calls;
	int runs;
	double seconds = measure(&w, o->seconds, &calls, &runs);
	tell(o, &w, "memory, copied (read and written)", 2e-9 * (double)o->bytes / seconds, "GB/s",
		calls, runs);
}

/* Each figure has a device of its own, so that its memory is given back. */
static void with_device(const struct options *o, const struct shape *s)
{
	struct err err = { 0 };
	struct work w = { .b = strcmp(o->device, "cpu") == 0 ? engine_backend_cpu(PLAN_BF16)
														 : engine_backend_cuda(PLAN_BF16) };
	if (!w.b)
		stop("this build has no CUDA backend: build it where nvcc is, or say --device cpu", NULL);
	if (w.b->open(o->threads, &w.ctx, &err) < 0)
		stop("no device", &err);
	w.b->enter(w.ctx);
	if (s)
		product(o, s, &w);
	else
		copying(o, &w);
	w.b->close(w.ctx);
}

static bool parse_shape(const char *text, struct shape *ret)
{
	long long m, n, k;
	int end = 0;
	if (sscanf(text, "%lldx%lldx%lld%n", &m, &n, &k, &end) != 3 || text[end] || m < 1 || n < 1 ||
		k < 1 || m > SIDE_MAX || n > SIDE_MAX || k > SIDE_MAX)
		return false;
	*ret = (struct shape){ m, n, k };
	return true;
}

static bool parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		bool named = strncmp(argv[i], "--", 2) == 0;
		if (named && !value)
			return false;
		if (strcmp(argv[i], "--device") == 0)
			o->device = value;
		else if (strcmp(argv[i], "--threads") == 0)
			o->threads = (int)strtol(value, NULL, 10);
		else if (strcmp(argv[i], "--seconds") == 0)
			o->seconds = strtod(value, NULL);
		else if (strcmp(argv[i], "--bytes") == 0)
			o->bytes = strtoll(value, NULL, 10);
		else if (named || o->shape_count == SHAPES_MAX ||
			!parse_shape(argv[i], &o->shapes[o->shape_count++]))
			return false;
		i += named;
	}
	bool known = strcmp(o->device, "cpu") == 0 || strcmp(o->device, "cuda") == 0;
	return known && o->threads >= 1 && o->threads <= 1024 && o->seconds > 0 && o->bytes >= 4096;
}

int main(int argc, char **argv)
{
	struct options o = { .device = "cuda", .threads = 1, .seconds = 1, .bytes = INT64_C(1) << 31 };
	if (!parse(argc, argv, &o)) {
		fprintf(stderr,
			"usage: bench-ceilings [--device cuda|cpu] [--threads N] [--seconds S] "
			"[--bytes N] [MxNxK...]\n");
		return 2;
	}
	for (int i = 0; i < o.shape_count; i++)
		with_device(&o, &o.shapes[i]);
	with_device(&o, NULL);
	return 0;
}
