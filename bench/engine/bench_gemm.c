/* SPDX-License-Identifier: Apache-2.0
 * Measures the CPU backend's matrix products, beside a library's where one is installed, turn about
 * in one run: one JSON object a line (see ./run bench). The figure is of the median run. usage:
 * bench-gemm [--threads N] [--seconds S] [--form nn|nt|tn] [--type f32|bf16] [MxNxK...] */
#include "bench/engine/gemm_peer.h"
#include "core/base/num.h"
#include "workers/engine/cpu/gemm.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SHAPES_MAX = 32, RUNS_MAX = 2000, RUNS_MIN = 5, SIZE_MAX_ = 1 << 20 };

struct shape {
	int64_t m, n, k;
};

static const struct shape standard[] = { { 1024, 768, 768 }, { 1024, 3072, 768 },
	{ 1024, 768, 3072 }, { 1024, 2304, 768 }, { 1024, 50304, 768 }, { 256, 768, 768 },
	{ 256, 3072, 768 }, { 256, 768, 3072 }, { 256, 2304, 768 }, { 256, 50304, 768 },
	{ 1024, 384, 128 }, { 1024, 512, 128 }, { 1024, 128, 128 }, { 1024, 256, 128 },
	{ 1024, 128, 512 }, { 768, 3072, 1024 }, { 768, 768, 1024 }, { 3072, 768, 1024 },
	{ 128, 384, 1024 } };

struct options {
	int threads;
	double seconds; /* of each case */
	const char *form, *type;
	int shape_count;
	struct shape shapes[SHAPES_MAX];
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *take(int64_t bytes)
{
	void *mem =
		mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED) {
		fprintf(stderr, "bench-gemm: no memory\n");
		exit(1);
	}
	(void)madvise(mem, (size_t)bytes, MADV_HUGEPAGE);
	return mem;
}

static void fill(void *mem, int64_t count, bool bf16)
{
	uint32_t x = 1;
	for (int64_t i = 0; i < count; i++) {
		x = x * 1664525 + 1013904223;
		float f = (float)(int32_t)x * 0x1p-31f;
		uint32_t u;
		memcpy(&u, &f, sizeof(u));
		if (bf16)
			((uint16_t *)mem)[i] = (uint16_t)(u >> 16);
		else
			((float *)mem)[i] = f;
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *x, int count)
{
	qsort(x, (size_t)count, sizeof(*x), compare);
	return x[count / 2];
}

/* form: "nn" = A B, "nt" = A B', "tn" = A' B added to C, as layers' three products are. */
static void measure(const struct options *o, const struct shape *s, const char *form, bool bf16)
{
	const int64_t size = bf16 ? 2 : 4, bytes = gemm_workspace_bytes(s->m, s->n, s->k);
	const bool ta = form[0] == 't', tb = form[1] == 't';
	void *a = take(s->m * s->k * size), *b = take(s->n * s->k * size), *ws = take(bytes);
	float *c = take(s->m * s->n * 4);
	static double ours[RUNS_MAX], theirs[RUNS_MAX];
	fill(a, s->m * s->k, bf16);
	fill(b, s->n * s->k, bf16);
	const enum gemm_type type = bf16 ? GEMM_BF16 : GEMM_F32;
	const struct gemm g = { .m = s->m,
		.n = s->n,
		.k = s->k,
		.a = { .type = type, .base = a, .transposed = ta, .row_stride = ta ? s->m : s->k },
		.b = { .type = type, .base = b, .transposed = tb, .row_stride = tb ? s->k : s->n },
		.bf16 = bf16,
		.alpha = 1,
		.c_type = GEMM_F32,
		.c = c,
		.c_stride = s->n,
		.accumulate = ta,
		.workspace = ws,
		.workspace_bytes = bytes };
	struct gemm_peer *peer = gemm_peer_create(s->m, s->n, s->k, bf16, a, b, c);
	const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k * 1e-9;
	int count = -1;
	for (double begin = now(); count < RUNS_MIN || (count < RUNS_MAX && now() - begin < o->seconds);
		 count++) { /* the first warms up */
		double t0 = now();
		gemm_run(&g);
		double t1 = now();
		if (peer)
			gemm_peer_run(peer);
		double t2 = now();
		if (count < 0)
			continue;
		ours[count] = t1 - t0;
		theirs[count] = t2 - t1;
	}
	double mine = flops / median(ours, count), other = flops / median(theirs, count);
	printf("{\"case\":\"gemm %lldx%lldx%lld %s %s\",\"metric\":\"median\",\"value\":%.4g,"
		   "\"unit\":\"GFLOP/s\",",
		(long long)s->m, (long long)s->n, (long long)s->k, form, bf16 ? "bf16" : "f32", mine);
	if (peer)
		printf("\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.4g,", gemm_peer_name(), other,
			mine / other);
	else
		printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,");
	printf("\"conditions\":\"M x N x K, %d threads; nn: A B, nt: A B', tn: C += A' B; ours packs "
		   "within the time, the peer's weights are packed before\"}\n",
		o->threads);
	fflush(stdout);
	gemm_peer_destroy(peer);
	munmap(a, (size_t)(s->m * s->k * size));
	munmap(b, (size_t)(s->n * s->k * size));
	munmap(c, (size_t)(s->m * s->n * 4));
	munmap(ws, (size_t)bytes);
}

static bool parse_shape(const char *text, struct shape *ret)
{
	long long m, n, k;
	int end = 0;
	if (sscanf(text, "%lldx%lldx%lld%n", &m, &n, &k, &end) != 3 || text[end] || m < 1 || n < 1 ||
		k < 1 || m > SIZE_MAX_ || n > SIZE_MAX_ || k > SIZE_MAX_)
		return false;
	*ret = (struct shape){ m, n, k };
	return true;
}

static bool parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		int64_t value = 0;
		const char *next = i + 1 < argc ? argv[i + 1] : "";
		if (!strcmp(argv[i], "--threads") && num_parse_i64(next, 1, 1024, &value) == 0)
			o->threads = (int)value;
		else if (!strcmp(argv[i], "--seconds") && num_parse_i64(next, 1, 3600, &value) == 0)
			o->seconds = (double)value;
		else if (!strcmp(argv[i], "--form") && strlen(next) == 2)
			o->form = next;
		else if (!strcmp(argv[i], "--type") && (!strcmp(next, "f32") || !strcmp(next, "bf16")))
			o->type = next;
		else if (o->shape_count < SHAPES_MAX && parse_shape(argv[i], &o->shapes[o->shape_count])) {
			o->shape_count++;
			continue;
		} else
			return false;
		i++;
	}
	return true;
}

int main(int argc, char **argv)
{
	static const char *const forms[] = { "nn", "nt", "tn" };
	struct options o = { .threads = 2, .seconds = 0.5 };
	if (!parse(argc, argv, &o)) {
		fprintf(stderr,
			"usage: bench-gemm [--threads N] [--seconds N] [--form nn|nt|tn] "
			"[--type f32|bf16] [MxNxK...]\n");
		return 2;
	}
	if (o.shape_count == 0) {
		o.shape_count = (int)(sizeof(standard) / sizeof(*standard));
		memcpy(o.shapes, standard, sizeof(standard));
	}
	omp_set_num_threads(o.threads);
	for (int i = 0; i < o.shape_count; i++)
		for (int bf16 = 0; bf16 < 2; bf16++)
			for (int f = 0; f < 3; f++)
				if ((!o.type || !strcmp(o.type, bf16 ? "bf16" : "f32")) &&
					(!o.form || !strcmp(o.form, forms[f])))
					measure(&o, &o.shapes[i], forms[f], bf16);
	return 0;
}
