/* SPDX-License-Identifier: Apache-2.0
 * Measures the engine's training step on data it makes up: one JSON object a line (see ./run
 * bench). Equal runs vary with the host, so the figure is that of the median step. usage:
 * bench-engine [CASE...] [--threads N] [--steps N] [--ops] */
#include "core/base/num.h"
#include "workers/engine/engine.h"
#include "workers/engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_MAX = 1000, TEXT_BYTES = 1 << 20, IMAGES = 2048 };

struct bench_case {
	const char *name;
	enum spec_family family;
	int threads, steps;
	int64_t layers, heads, width, length, vocab, batch;
	const char *peer;  /* what it is compared with, on the reference machine */
	double peer_value; /* tokens or samples per second */
};

static const struct bench_case cases[] = {
	{ "gpt2-tiny", SPEC_GPT2, 2, 60, 4, 4, 128, 128, 256, 8, "PyTorch 1.13 fp32, 2 threads",
		18200 },
	{ "gpt2-tiny-1", SPEC_GPT2, 1, 40, 4, 4, 128, 128, 256, 8, "PyTorch 1.13 fp32, 1 thread",
		17300 },
	{ "gpt2-124m", SPEC_GPT2, 2, 6, 12, 12, 768, 64, 50257, 4, "PyTorch 1.13 fp32, 2 threads",
		255 },
	{ "cnn-mnist", SPEC_CNN, 2, 100, 0, 0, 0, 0, 0, 64, NULL, 0 },
	{ "cnn-mnist-1", SPEC_CNN, 1, 60, 0, 0, 0, 0, 0, 64, NULL, 0 },
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct job_spec make_spec(const struct bench_case *c, int steps)
{
	struct job_spec s = { .seed = 42, .device_count = 1 };
	s.data.shuffle = true;
	s.model.family = c->family;
	s.hyper = (struct spec_hyper){ .max_steps = steps,
		.batch_size = c->batch,
		.micro_batch_size = c->batch,
		.optimizer = SPEC_ADAMW,
		.learning_rate = 1e-4,
		.weight_decay = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
		.grad_clip = 1 };
	if (c->family == SPEC_GPT2) {
		s.task = SPEC_LANGUAGE_MODEL;
		s.data.format = SPEC_FORMAT_TEXT;
		s.data.sequence_length = s.model.n_positions = c->length;
		s.model.n_layer = c->layers;
		s.model.n_head = c->heads;
		s.model.n_embd = c->width;
		s.model.vocab_size = c->vocab;
		return s;
	}
	s.task = SPEC_IMAGE_CLASSIFICATION;
	s.data.format = SPEC_FORMAT_IDX;
	s.model.channels[0] = 16;
	s.model.channels[1] = 32;
	s.model.channel_count = s.model.blocks_per_stage = 2;
	s.model.hidden[0] = 128;
	s.model.hidden_count = 1;
	s.model.in_channels = 1;
	s.model.in_height = s.model.in_width = 28;
	s.model.n_classes = 10;
	return s;
}

/* Writes a file of letters or an IDX file into a new temporary path. */
static bool write_file(char path[static 32], const unsigned char *header, size_t header_bytes,
	size_t bytes, int modulo, int base)
{
	snprintf(path, 32, "/tmp/bench_engine_XXXXXX");
	int fd = mkstemp(path);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
	if (!f)
		return false;
	bool ok = fwrite(header, 1, header_bytes, f) == header_bytes;
	uint32_t x = 1;
	for (size_t i = 0; i < bytes && ok; i++) {
		x = x * 1664525 + 1013904223;
		ok = fputc(base + (int)((x >> 16) % (uint32_t)modulo), f) != EOF;
	}
	return fclose(f) == 0 && ok;
}

static int open_data(const struct job_spec *s, struct data **ret, struct err *err)
{
	char path[2][32] = { "", "" };
	bool text = s->data.format == SPEC_FORMAT_TEXT;
	const unsigned char images[16] = { 0, 0, 8, 3, 0, 0, IMAGES >> 8, 0, 0, 0, 0, 28, 0, 0, 0, 28 };
	const unsigned char labels[8] = { 0, 0, 8, 1, 0, 0, IMAGES >> 8, 0 };
	bool ok = text ? write_file(path[0], NULL, 0, TEXT_BYTES, 26, 'a')
				   : write_file(path[0], images, 16, IMAGES * 28 * 28, 256, 0) &&
			write_file(path[1], labels, 8, IMAGES, 10, 0);
	struct data_file files[2] = { { path[0], "made up" }, { path[1], "made up" } };
	int rc = ok ? data_open(s, files, text ? 1 : 2, "training_file", ret, err)
				: err_set(err, ERR_IO, NULL, "the made-up data cannot be written");
	for (int i = 0; i < 2; i++)
		if (path[i][0])
			unlink(path[i]);
	return rc;
}

static void print(const struct bench_case *c, int threads, const char *metric, double value,
	const char *unit, bool compare)
{
	printf("{\"case\":\"%s\",\"metric\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", c->name, metric,
		value, unit);
	if (compare && c->peer)
		printf(",\"peer\":\"%s\",\"peer_value\":%.6g,\"ratio\":%.4g", c->peer, c->peer_value,
			value / c->peer_value);
	else
		printf(",\"peer\":null,\"peer_value\":null,\"ratio\":null");
	printf(",\"conditions\":\"%s: %d threads, batch %lld, backend %s; median step; peers were "
		   "measured once on 2 vCPU of an AMD EPYC with AVX-512\"}\n",
		c->name, threads, (long long)c->batch, engine_backend_cpu()->name);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Milliseconds by kind of operation: one operation at a time. */
static int print_ops(const struct bench_case *c, struct engine *e, int threads, struct err *err)
{
	enum { ROUNDS = 10 };
	double ms[PLAN_OP_COUNT] = { 0 };
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < e->plan->op_count; i++) {
			double begin = now();
			int rc = engine_exec(e, i, i + 1, err);
			if (rc)
				return rc;
			ms[e->plan->ops[i].kind] += (now() - begin) * 1e3 / ROUNDS;
		}
	for (int k = 0; k < PLAN_OP_COUNT; k++)
		if (ms[k] > 0)
			print(c, threads, plan_op_word((enum plan_op_kind)k), ms[k], "ms", false);
	return 0;
}

static int measure(const struct bench_case *c, const struct job_spec *s, const struct plan *p,
	struct engine *e, int threads, bool ops, struct err *err)
{
	double step[STEPS_MAX];
	int steps = (int)s->hyper.max_steps;
	struct engine_step r = { 0 };
	for (int i = -2; i < steps; i++) { /* two to warm up */
		double begin = now();
		int rc = engine_step(e, &r, err);
		if (rc)
			return rc;
		if (i >= 0)
			step[i] = now() - begin;
	}
	qsort(step, (size_t)steps, sizeof(double), compare_doubles);
	double median = step[steps / 2];
	bool lm = c->family == SPEC_GPT2;
	print(c, threads, lm ? "tokens per second" : "samples per second",
		(double)(lm ? r.tokens : r.samples) / median, "1/s", true);
	print(c, threads, "step", median * 1e3, "ms", false);
	print(c, threads, "model FLOPs", p->flops_per_step / median * 1e-9, "GFLOP/s", false);
	print(c, threads, "memory", (double)engine_memory_bytes(e) / 1048576, "MiB", false);
	return ops ? print_ops(c, e, threads, err) : 0;
}

static int run_case(const struct bench_case *c, int threads, int steps, bool ops, struct err *err)
{
	struct job_spec s = make_spec(c, steps);
	cleanup(data_closep) struct data *d = NULL;
	cleanup(plan_destroyp) struct plan *p = NULL;
	cleanup(engine_destroyp) struct engine *e = NULL;
	int rc = open_data(&s, &d, err);
	double begin = now();
	if (!rc)
		rc = plan_compile(&s, NULL, &p, err);
	double plan_ms = (now() - begin) * 1e3;
	if (!rc)
		rc = engine_create(&s, p, engine_backend_cpu(), threads, &e, err);
	if (!rc)
		rc = engine_attach(e, d, NULL, err);
	if (rc)
		return rc;
	engine_init_params(e);
	print(c, threads, "plan", plan_ms, "ms", false);
	return measure(c, &s, p, e, threads, ops, err);
}

struct options {
	int threads, steps; /* 0 = the case's */
	bool ops, any;
	bool chosen[ARRAY_LEN(cases)];
};

static bool parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		int64_t value = 0;
		bool number = i + 1 < argc && num_parse_i64(argv[i + 1], 1, STEPS_MAX, &value) == 0;
		if (!strcmp(argv[i], "--ops")) {
			o->ops = true;
			continue;
		}
		if (!strcmp(argv[i], "--threads") && number) {
			o->threads = (int)value;
			i++;
			continue;
		}
		if (!strcmp(argv[i], "--steps") && number) {
			o->steps = (int)value;
			i++;
			continue;
		}
		bool known = false;
		for (size_t k = 0; k < ARRAY_LEN(cases); k++)
			if (!strcmp(argv[i], cases[k].name))
				known = o->chosen[k] = o->any = true;
		if (!known)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	if (!parse(argc, argv, &o)) {
		fprintf(stderr, "usage: bench-engine [CASE...] [--threads N] [--steps N] [--ops]\ncases:");
		for (size_t i = 0; i < ARRAY_LEN(cases); i++)
			fprintf(stderr, " %s", cases[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct bench_case *c = &cases[i];
		struct err err = { 0 };
		if (o.any && !o.chosen[i])
			continue;
		if (run_case(
				c, o.threads ? o.threads : c->threads, o.steps ? o.steps : c->steps, o.ops, &err)) {
			fprintf(stderr, "bench-engine: %s: %s\n", c->name, err.message);
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}
