/* SPDX-License-Identifier: Apache-2.0
 * Measures the training step of one job spec on given data and prints one JSON object. bench.py
 * makes the data and runs it alternately with the same case in PyTorch.
 * usage: bench-engine SPEC.json THREADS STEPS [--ops] FILE... */
#include "core/base/file.h"
#include "core/base/num.h"
#include "core/json/reader.h"
#include "core/spec/spec_json.h"
#include "workers/engine/backend.h"
#include "workers/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_MAX = 1000, WARM_MIN = 2, STATM_MAX = 256 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Milliseconds spent in each kind of operation, over the steps that count. */
struct by_kind {
	bool on;
	double ms[PLAN_OP_COUNT];
};

static void on_op(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct by_kind *k = ctx;
	(void)micro;
	if (k->on)
		k->ms[op->kind] += (double)(end_ns - begin_ns) * 1e-6;
}

static int read_spec(const char *path, struct job_spec *ret, struct err *err)
{
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	size_t bytes = 0;
	int rc = file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
	if (!rc)
		rc = json_doc_parse(text, bytes, JSON_BYTES_MAX, &doc, err);
	if (!rc)
		rc = spec_json_read(json_doc_root(doc), ret, &metadata, err);
	return rc;
}

static int64_t resident_bytes(void)
{
	char text[STATM_MAX] = "";
	long long size = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f)
		return 0;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	return sscanf(text, "%lld %lld", &size, &resident) == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

static int64_t peak_bytes(void)
{
	struct rusage u = { 0 };
	getrusage(RUSAGE_SELF, &u);
	return (int64_t)u.ru_maxrss * 1024;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void print(const struct plan *p, const struct engine_step *r, double step_ms, double plan_ms,
	int64_t beyond, const char *backend, const struct by_kind *k, int steps)
{
	bool language = r->tokens > 0;
	printf(
		"{\"step_ms\":%.4f,\"per_second\":%.6g,\"gflops\":%.6g,\"flops_per_step\":%.6g,"
		"\"plan_ms\":%.4f,\"plan_bytes\":%lld,\"peak_bytes\":%lld,\"backend\":\"%s\",\"loss\":%.6g",
		step_ms, (double)(language ? r->tokens : r->samples) / step_ms * 1e3,
		p->flops_per_step / step_ms * 1e-6, p->flops_per_step, plan_ms, (long long)p->total_bytes,
		(long long)beyond, backend, r->loss);
	printf(",\"ops_ms\":{");
	const char *comma = "";
	for (int i = 0; i < PLAN_OP_COUNT; i++)
		if (k->ms[i] > 0) {
			printf("%s\"%s\":%.4f", comma, plan_op_word((enum plan_op_kind)i), k->ms[i] / steps);
			comma = ",";
		}
	printf("}}\n");
}

static int measure(struct engine *e, int steps, struct by_kind *k, struct engine_step *r,
	double *ret_ms, struct err *err)
{
	double step[STEPS_MAX];
	/* The first steps touch fresh memory: they do not count. */
	int warm = steps / 3 > WARM_MIN ? steps / 3 : WARM_MIN;
	for (int i = -warm; i < steps; i++) {
		double begin = now();
		k->on = i >= 0;
		int rc = engine_step(e, r, err);
		if (rc)
			return rc;
		if (i >= 0)
			step[i] = now() - begin;
	}
	qsort(step, (size_t)steps, sizeof(double), compare_doubles);
	*ret_ms = step[steps / 2] * 1e3;
	return 0;
}

struct options {
	const char *spec;
	int64_t threads, steps;
	bool ops;
	struct data_file files[SPEC_FILES_MAX];
	int file_count;
};

static int run(const struct options *o, struct err *err)
{
	struct job_spec s;
	struct by_kind kinds = { 0 };
	struct engine_step r = { 0 };
	cleanup(data_closep) struct data *d = NULL;
	cleanup(plan_destroyp) struct plan *p = NULL;
	cleanup(engine_destroyp) struct engine *e = NULL;
	int rc = read_spec(o->spec, &s, err);
	if (!rc)
		rc = data_open(&s, o->files, o->file_count, "training_file", NULL, &d, err);
	double begin = now();
	if (!rc)
		rc = plan_compile(&s, NULL, &p, err);
	double plan_ms = (now() - begin) * 1e3, step_ms = 0;
	int64_t before = resident_bytes();
	const struct backend *backend = rc ? NULL : engine_backend_cpu(p->type);
	if (!rc)
		rc = engine_create(&s, p, backend, (int)o->threads, &e, err);
	if (!rc)
		rc = engine_attach(e, d, NULL, err);
	if (rc)
		return rc;
	rc = engine_init_params(e, err);
	if (rc)
		return rc;
	if (o->ops)
		engine_trace(e, on_op, &kinds);
	rc = measure(e, (int)o->steps, &kinds, &r, &step_ms, err);
	if (!rc)
		print(p, &r, step_ms, plan_ms, peak_bytes() - before, backend->name, &kinds, (int)o->steps);
	return rc;
}

static bool parse(int argc, char **argv, struct options *o)
{
	if (argc < 5 || num_parse_i64(argv[2], 1, 1024, &o->threads) ||
		num_parse_i64(argv[3], 1, STEPS_MAX, &o->steps))
		return false;
	o->spec = argv[1];
	for (int i = 4; i < argc; i++) {
		if (!strcmp(argv[i], "--ops"))
			o->ops = true;
		else if (o->file_count == SPEC_FILES_MAX)
			return false;
		else
			o->files[o->file_count++] = (struct data_file){ argv[i], argv[i] };
	}
	return o->file_count > 0;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	struct err err = { 0 };
	if (!parse(argc, argv, &o)) {
		fprintf(stderr, "usage: bench-engine SPEC.json THREADS STEPS [--ops] FILE...\n");
		return 2;
	}
	if (run(&o, &err)) {
		fprintf(stderr, "bench-engine: %s: %s%s%s\n", o.spec, err.param, err.param[0] ? ": " : "",
			err.message);
		return 1;
	}
	return 0;
}
