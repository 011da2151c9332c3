/* SPDX-License-Identifier: Apache-2.0
 * Prints the cost model beside published runs, and what the search finds, as JSON lines for
 * bench/table.py. `--why` prints each run's step in its parts, for people. Called by bench.py. */
#include "bench/scale/published.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const checkpointing_words[] = { "keeps all", "recomputes little",
	"recomputes layers" };

static struct job_spec language(enum spec_family family, int64_t layers, int64_t width,
	int64_t heads, int64_t kv_heads, int64_t inner, int64_t vocabulary, int64_t sequence,
	int64_t batch)
{
	struct job_spec s = { .task = SPEC_LANGUAGE_MODEL, .device_count = 1, .precision = SPEC_BF16 };
	s.model = (struct spec_model){ .family = family,
		.n_layer = layers,
		.n_head = heads,
		.n_kv_head = kv_heads,
		.n_embd = width,
		.n_inner = inner,
		.n_positions = sequence,
		.vocab_size = vocabulary,
		.norm_eps = 1e-5,
		.rope_theta = 10000,
		.tied = family == SPEC_GPT2 };
	s.data.format = SPEC_FORMAT_TOKENS;
	s.data.sequence_length = sequence;
	s.hyper = (struct spec_hyper){
		.max_steps = 1, .batch_size = batch, .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95
	};
	return s;
}

static struct scale_cluster cluster_of(const struct published *p)
{
	struct scale_cluster c;
	scale_cluster_known(p->device, p->devices, &c);
	c.fp8 = p->fp8;
	c.overlap.tensor = p->tensor_overlap;
	if (p->attention_share > 0)
		c.device.attention_share = p->attention_share;
	if (p->gradient_bytes > 0)
		c.overlap.gradient_bytes = p->gradient_bytes;
	return c;
}

/* Returns the mesh's micro-batch, or the largest that fits and divides. */
static int estimate(
	const struct published *p, struct scale_cost *ret, struct scale_mesh *ret_mesh, struct err *err)
{
	struct scale_cluster c = cluster_of(p);
	struct job_spec s = language(p->model.family, p->model.layers, p->model.width, p->model.heads,
		p->model.kv_heads, p->model.inner, p->model.vocabulary, p->model.sequence, p->batch);
	cleanup(scale_model_destroyp) struct scale_model *m = NULL;
	int rc = scale_model_create(&s, &m, err);
	if (rc)
		return rc;
	*ret_mesh = p->mesh;
	if (p->mesh.micro_batch > 0)
		return scale_estimate(m, &c, ret_mesh, ret, err);
	int64_t most = p->batch / p->mesh.data;
	for (ret_mesh->micro_batch = most; ret_mesh->micro_batch > 0; ret_mesh->micro_batch--) {
		if (most % ret_mesh->micro_batch)
			continue;
		rc = scale_estimate(m, &c, ret_mesh, ret, err);
		if (rc || ret->fits)
			return rc;
	}
	return 0;
}

static double published_tokens_s(const struct published *p, const struct scale_cost *cost)
{
	if (p->unit == PUBLISHED_TOKENS)
		return p->value;
	return p->value * 1e12 * cost->tokens_s / cost->source_flops_s;
}

static void print_mesh(const struct scale_mesh *m)
{
	printf("data %d", m->data);
	if (m->zero)
		printf(" ZeRO-%d", m->zero);
	if (m->tensor > 1)
		printf(" x tensor %d", m->tensor);
	if (m->pipeline > 1)
		printf(" x pipeline %d", m->pipeline);
	if (m->interleave > 1)
		printf(" in %d chunks", m->interleave);
	printf(", micro-batch %lld", (long long)m->micro_batch);
}

static void print_parts(const struct scale_cost *c)
{
	printf(
		"    step %.3f s: compute %.3f (again %.3f), beside collectives %.3f, waits tensor %.3f "
		"data "
		"%.3f pipeline %.3f, bubble %.3f, update %.3f; %.0f GB%s; MFU %.1f %%, source's %.1f %%\n",
		c->step_s, c->compute_s, c->recompute_s, c->contention_s, c->tensor_s, c->data_s,
		c->pipeline_s, c->bubble_s, c->optimizer_s, c->memory_bytes / 1e9,
		c->fits ? "" : ", does not fit", 100 * c->mfu, 100 * c->source_mfu);
	for (int i = 0; i < SCALE_MEMORY_COUNT; i++)
		printf("    %s %.1f GB%s", scale_memory_word((enum scale_memory)i), c->memory[i] / 1e9,
			i + 1 < SCALE_MEMORY_COUNT ? "," : "\n");
	for (int i = 0; i < c->collective_count; i++) {
		const struct scale_collective *k = &c->collective[i];
		printf("    %s: %s over %s, %.0f x %.1f MB, %.3f s, waited for %.3f s, behind %s\n",
			k->name, k->operation, k->axis, k->calls, k->bytes / 1e6, k->seconds, k->exposed_s,
			k->behind);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

struct errors {
	double value[256];
	int count;
};

static void print_errors(struct errors *e, const char *name)
{
	if (e->count == 0)
		return;
	qsort(e->value, (size_t)e->count, sizeof(double), compare);
	double middle = e->value[e->count / 2];
	if (e->count % 2 == 0)
		middle = (middle + e->value[e->count / 2 - 1]) / 2;
	printf(
		"{\"case\":\"%s, %d runs\",\"metric\":\"median error\",\"value\":%.1f,\"unit\":\"%%\"}\n",
		name, e->count, 100 * middle);
	printf("{\"case\":\"%s, %d runs\",\"metric\":\"worst error\",\"value\":%.1f,\"unit\":\"%%\"}\n",
		name, e->count, 100 * e->value[e->count - 1]);
}

/* The run that was fitted is shown, not counted. */
static int print_published(bool why)
{
	struct errors all = { 0 }, from_64 = { 0 };
	for (int i = 0; i < published_count; i++) {
		const struct published *p = &published[i];
		struct scale_cost cost;
		struct scale_mesh mesh;
		struct err err = { 0 };
		struct scale_cluster c = cluster_of(p);
		if (estimate(p, &cost, &mesh, &err)) {
			fprintf(stderr, "bench-scale: %s %s: %s\n", p->source, p->name, err.message);
			return 1;
		}
		double seen = published_tokens_s(p, &cost), ratio = cost.tokens_s / seen;
		double error = fabs(ratio - 1);
		if (!p->fitted) {
			all.value[all.count++] = error;
			if (p->devices >= 64)
				from_64.value[from_64.count++] = error;
		}
		if (why) {
			printf("%s %s, %d x %s, ", p->source, p->name, p->devices, c.device.name);
			print_mesh(&mesh);
			printf(": %.0f of %.0f, %+.1f %%%s\n", cost.tokens_s, seen, 100 * (ratio - 1),
				p->fitted ? " (fitted)" : "");
			print_parts(&cost);
			continue;
		}
		printf(
			"{\"case\":\"%s %s, %d x %s%s\",\"metric\":\"tokens/s/device\",\"unit\":\"tokens/s\","
			"\"value\":%.6g,\"peer\":\"published\",\"peer_value\":%.6g,\"ratio\":%.4f%s%s%s}\n",
			p->source, p->name, p->devices, c.device.name, p->fitted ? " (fitted)" : "",
			cost.tokens_s, seen, ratio, p->note ? ",\"conditions\":\"" : "", p->note ? p->note : "",
			p->note ? "\"" : "");
	}
	print_errors(&all, "all but the fitted");
	print_errors(&from_64, "64 devices and more");
	return 0;
}

static const struct {
	const char *name;
	enum spec_family family;
	int64_t layers, width, heads, kv_heads, inner, vocabulary, sequence;
	int64_t batch_tokens; /* as such models are trained; at least 8,192 for each device */
} models[] = {
	{ "gpt2-124m", SPEC_GPT2, 12, 768, 12, 12, 3072, 50257, 1024, 512 * 1024 },
	{ "gpt2-1.5b", SPEC_GPT2, 48, 1600, 25, 25, 6400, 50257, 1024, 1024 * 1024 },
	{ "llama-7b", SPEC_LLAMA, 32, 4096, 32, 32, 11008, 32000, 4096, 4 * 1024 * 1024 },
	{ "llama-13b", SPEC_LLAMA, 40, 5120, 40, 40, 13824, 32000, 4096, 4 * 1024 * 1024 },
	{ "llama-70b", SPEC_LLAMA, 80, 8192, 64, 8, 28672, 32000, 4096, 4 * 1024 * 1024 },
	{ "llama-405b", SPEC_LLAMA, 126, 16384, 128, 8, 53248, 128256, 8192, 16 * 1024 * 1024 },
};

static double seconds_now(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int search(size_t i, int devices, bool why)
{
	int64_t least = INT64_C(8192) * devices, tokens = models[i].batch_tokens;
	int64_t batch = (tokens > least ? tokens : least) / models[i].sequence;
	struct job_spec s =
		language(models[i].family, models[i].layers, models[i].width, models[i].heads,
			models[i].kv_heads, models[i].inner, models[i].vocabulary, models[i].sequence, batch);
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, devices, &c);
	cleanup(scale_model_destroyp) struct scale_model *m = NULL;
	struct err err = { 0 };
	struct scale_search *r = calloc(1, sizeof(*r));
	double begin = seconds_now();
	int rc = r ? scale_model_create(&s, &m, &err) : ERR_NO_MEMORY;
	if (!rc)
		rc = scale_search(m, &c, r, &err);
	double took = seconds_now() - begin;
	if (why) {
		printf("%s on %d: %lld meshes in %.3f s %s\n", models[i].name, devices,
			r ? (long long)r->tried : 0, took, rc ? err.message : "");
		for (int k = 0; r && k < r->choice_count && k < 8; k++) {
			printf("  ");
			print_mesh(&r->choice[k].mesh);
			printf(", %s: %.0f tokens/s, MFU %.1f %%: %s\n",
				checkpointing_words[r->choice[k].mesh.checkpointing], r->choice[k].cost.tokens_s,
				100 * r->choice[k].cost.mfu, r->choice[k].reason);
		}
		if (r && r->choice_count)
			print_parts(&r->choice[0].cost);
	} else if (!rc) {
		printf("{\"case\":\"%s on %d x %s\",\"metric\":\"", models[i].name, devices, c.device.name);
		print_mesh(&r->choice[0].mesh);
		printf(", %s\",\"unit\":\"tokens/s\",\"value\":%.6g}\n",
			checkpointing_words[r->choice[0].mesh.checkpointing], r->choice[0].cost.tokens_s);
	} else {
		printf(
			"{\"case\":\"%s on %d x %s\",\"metric\":\"%s\",\"unit\":\"tokens/s\",\"value\":null}\n",
			models[i].name, devices, c.device.name, err.message);
	}
	free(r);
	return 0;
}

int main(int argc, char **argv)
{
	bool why = argc > 1 && strcmp(argv[1], "--why") == 0;
	int rc = print_published(why);
	for (size_t i = 0; i < ARRAY_LEN(models) && !rc; i++)
		for (int devices = 8; devices <= 4096 && !rc; devices *= 8)
			rc = search(i, devices, why);
	return rc;
}
