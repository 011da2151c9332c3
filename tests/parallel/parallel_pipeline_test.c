/* SPDX-License-Identifier: Apache-2.0
 * Pipelines train to what one rank trains to: each language model over two and four stages, over
 * several stages on each rank, with data ranks and every ZeRO stage, with any number of
 * micro-batches and every way to keep activations. One test a case. */
#include "tests/parallel/parallel_compare.h"

enum { LAYERS = 9, BATCH = 16, MICRO = 2, BUCKET_BYTES = 16 * 1024 };

static struct engine_case cases[CASES_MAX];

static struct engine_case *case_named(const char *name)
{
	int count = case_families(cases);
	for (int i = 0; i < count; i++)
		if (strcmp(cases[i].name, name) == 0)
			return &cases[i];
	fail_msg("there is no case %s", name);
	return NULL;
}

static struct fixture begin(const char *name, enum spec_precision precision)
{
	struct fixture f = { .spec = case_named(name)->spec };
	f.spec.model.n_layer = LAYERS;
	f.spec.precision = precision;
	f.spec.hyper.batch_size = BATCH;
	f.spec.hyper.micro_batch_size = MICRO;
	f.spec.hyper.learning_rate = 1e-3;
	fixture_files(&f);
	return f;
}

static void end(struct fixture *f)
{
	for (int i = 0; i < f->files; i++)
		unlink(f->file[i].path);
}

struct mesh_of {
	int64_t data, pipeline, interleave;
	int zero;
};

/* What one rank makes of the job is in `alone`. */
static void hold(struct fixture *f, const char *name, struct mesh_of m)
{
	char what[160];
	snprintf(what, sizeof(what),
		"%s: data %lld x pipeline %lld x %lld stages, ZeRO %d, batch %lld / %lld", name,
		(long long)m.data, (long long)m.pipeline, (long long)m.interleave, m.zero,
		(long long)f->spec.hyper.batch_size, (long long)f->spec.hyper.micro_batch_size);
	struct spec_parallel parallel = { .data = m.data,
		.tensor = 1,
		.pipeline = m.pipeline,
		.interleave = m.interleave,
		.zero_stage = m.zero,
		.bucket_bytes = BUCKET_BYTES };
	run_mesh(f, parallel, together);
	compare_runs(what, (int)(m.data * m.pipeline), &bounds_of[f->spec.precision]);
}

static void hold_alone(struct fixture *f)
{
	run_mesh(f, (struct spec_parallel){ 1, 1, 1, 0, 0, 0 }, alone);
}

static void meshes(const char *name, enum spec_precision precision)
{
	static const struct mesh_of all[] = {
		{ 1, 2, 1, 0 },
		{ 1, 4, 1, 0 },
		{ 1, 2, 2, 0 },
		{ 1, 4, 2, 0 },
		{ 2, 2, 1, 0 },
		{ 2, 2, 1, 1 },
		{ 2, 2, 1, 2 },
		{ 2, 2, 1, 3 },
		{ 2, 2, 2, 0 },
		{ 2, 2, 2, 1 },
		{ 2, 2, 2, 2 },
		{ 2, 2, 2, 3 },
		{ 2, 4, 1, 3 },
	};
	struct fixture f = begin(name, precision);
	hold_alone(&f);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		hold(&f, name, all[i]);
	end(&f);
}

static void one_case(void **state)
{
	meshes(*state, SPEC_FP32);
}

static void narrow(void **state)
{
	(void)state;
	meshes("gpt2", SPEC_BF16);
	meshes("llama-lora-packed", SPEC_FP16);
}

/* A tied model without positions of its own; and with momentum in place of moments. */
static void tied(void **state)
{
	(void)state;
	struct fixture f = begin("llama", SPEC_FP32);
	f.spec.model.tied = true;
	f.spec.hyper.optimizer = SPEC_SGD;
	hold_alone(&f);
	hold(&f, "tied llama", (struct mesh_of){ 1, 2, 1, 0 });
	hold(&f, "tied llama", (struct mesh_of){ 2, 2, 2, 0 });
	hold(&f, "tied llama", (struct mesh_of){ 2, 4, 1, 1 });
	end(&f);
}

/* 1 to 8 micro-batches: fewer than there are stages, as many, more. */
static void accumulation(void **state)
{
	static const char *const names[] = { "gpt2", "llama" };
	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(names); n++)
		for (int64_t micros = 1; micros <= 8; micros++) {
			struct fixture f = begin(names[n], SPEC_FP32);
			f.spec.hyper.batch_size = 2 * micros;
			hold_alone(&f);
			hold(&f, names[n], (struct mesh_of){ 1, n == 0 ? 4 : 3, 1, 0 });
			if (micros % 2 == 0) {
				hold(&f, names[n], (struct mesh_of){ 1, 2, 3, 0 });
				hold(&f, names[n], (struct mesh_of){ 2, 2, 1, 2 });
			}
			end(&f);
		}
}

static void checkpointing(void **state)
{
	static const char *const names[] = { "gpt2", "gpt2-lora", "llama", "llama-lora-packed" };
	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(names); n++)
		for (int mode = SPEC_KEEP_ALL + 1; mode <= SPEC_FULL; mode++) {
			struct fixture f = begin(names[n], SPEC_FP32);
			f.spec.checkpointing = (enum spec_checkpointing)mode;
			hold_alone(&f);
			hold(&f, names[n], (struct mesh_of){ 1, 4, 1, 0 });
			hold(&f, names[n], (struct mesh_of){ 1, 4, 2, 0 });
			hold(&f, names[n], (struct mesh_of){ 2, 2, 2, 3 });
			end(&f);
		}
}

int main(int argc, char **argv)
{
	static char names[][32] = { "gpt2", "gpt2-lora", "llama", "llama-lora-packed",
		"gpt2-fine-tune" };
	struct CMUnitTest tests[ARRAY_LEN(names) + 4];
	size_t n = 0;
	compare_begin();
	for (; n < ARRAY_LEN(names); n++)
		tests[n] = (struct CMUnitTest){ names[n], one_case, NULL, NULL, names[n] };
	tests[n++] = (struct CMUnitTest){ "tied", tied, NULL, NULL, NULL };
	tests[n++] = (struct CMUnitTest){ "accumulation", accumulation, NULL, NULL, NULL };
	tests[n++] = (struct CMUnitTest){ "checkpointing", checkpointing, NULL, NULL, NULL };
	tests[n++] = (struct CMUnitTest){ "16bit", narrow, NULL, NULL, NULL };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("parallel_pipeline", tests, n, NULL, NULL);
}
