/* SPDX-License-Identifier: Apache-2.0
 * Language models whose layers several ranks share train to what one rank trains to: heads, the
 * mlp's units and the vocabulary cut, rows between them; with data ranks and every ZeRO stage,
 * stages of a pipeline, accumulation and checkpointing beside it. One test a case. */
#include "tests/parallel/parallel_compare.h"

enum { BATCH = 8, MICRO = 2, BUCKET_BYTES = 16 * 1024 };

static struct engine_case cases[CASES_MAX];
static int case_count;

/* tensor, data, pipeline, stages of a rank, ZeRO, samples of a micro-batch, checkpointing */
struct way {
	int64_t tensor, data, pipeline, interleave, zero, micro;
	enum spec_checkpointing keep;
};
static const struct way ways[] = {
	{ 2, 1, 1, 1, 0, 8, SPEC_KEEP_ALL },
	{ 4, 1, 1, 1, 0, 2, SPEC_SELECTIVE },
	{ 2, 1, 1, 1, 0, 2, SPEC_FULL },
	{ 2, 2, 1, 1, 0, 2, SPEC_KEEP_ALL },
	{ 2, 2, 1, 1, 1, 2, SPEC_FULL },
	{ 2, 2, 1, 1, 3, 2, SPEC_KEEP_ALL },
	{ 2, 1, 2, 1, 0, 2, SPEC_KEEP_ALL },
	{ 2, 1, 4, 1, 0, 2, SPEC_SELECTIVE },
	{ 2, 2, 2, 1, 1, 2, SPEC_FULL },
	{ 2, 2, 2, 2, 3, 2, SPEC_KEEP_ALL },
	{ 2, 2, 1, 1, 2, 1, SPEC_SELECTIVE },
	{ 2, 2, 2, 1, 2, 1, SPEC_SELECTIVE },
	{ 2, 4, 1, 1, 3, 1, SPEC_FULL },
	{ 4, 1, 2, 2, 0, 1, SPEC_FULL },
	{ 4, 2, 1, 1, 2, 4, SPEC_KEEP_ALL },
};

/* The large ones take all ways, of the others each a third. */
static bool takes(const char *name, size_t way)
{
	bool all = strcmp(name, "gpt2") == 0 || strcmp(name, "llama") == 0;
	return (all || way % 3 == strlen(name) % 3) && fixture_takes();
}

static void meshes(struct fixture *f, const char *name)
{
	const struct bounds *b = &bounds_of[f->spec.precision];
	int64_t micro = 0;
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		const struct way *w = &ways[i];
		if (!takes(name, i))
			continue;
		char what[160];
		snprintf(what, sizeof(what),
			"%s, tensor %d, data %d, pipeline %d x %d, ZeRO %d, micro-batch %d, keep %d", name,
			(int)w->tensor, (int)w->data, (int)w->pipeline, (int)w->interleave, (int)w->zero,
			(int)w->micro, (int)w->keep);
		f->spec.hyper.micro_batch_size = w->micro;
		f->spec.checkpointing = SPEC_KEEP_ALL;
		if (w->micro != micro) /* masks of dropout are a micro-batch's */
			run_mesh(f, (struct spec_parallel){ 1, 1, 1, 0, 0, 0 }, alone);
		micro = w->micro;
		f->spec.checkpointing = w->keep;
		run_mesh(f,
			(struct spec_parallel){
				w->data, w->tensor, w->pipeline, w->zero, BUCKET_BYTES, w->interleave },
			together);
		compare_runs(what, (int)(w->tensor * w->data * w->pipeline), b);
	}
}

static void run_case(struct job_spec spec, const char *name, enum spec_precision precision)
{
	spec.precision = precision;
	spec.hyper.batch_size = BATCH;
	spec.hyper.micro_batch_size = MICRO;
	spec.hyper.learning_rate = 1e-3;
	/* Layers for four stages, heads for four ranks. */
	spec.model.n_layer = 5;
	spec.model.n_head = 4;
	if (spec.model.family == SPEC_LLAMA)
		spec.model.n_kv_head = 4;
	compare_case(spec, name, meshes);
}

static void one_case(void **state)
{
	const struct engine_case *c = *state;
	run_case(c->spec, c->name, SPEC_FP32);
}

static void narrow(void **state)
{
	const struct engine_case *c = *state;
	run_case(c->spec, c->name, SPEC_BF16);
	run_case(c->spec, c->name, SPEC_FP16);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[2 * CASES_MAX];
	static char names[CASES_MAX][64];
	int n = 0;
	compare_begin();
	case_count = case_families(cases);
	for (int i = 0; i < case_count; i++) {
		if (!spec_is_language(&cases[i].spec))
			continue;
		tests[n++] = (struct CMUnitTest){ cases[i].name, one_case, NULL, NULL, &cases[i] };
		if (strcmp(cases[i].name, "gpt2") != 0 && strcmp(cases[i].name, "llama-lora-packed") != 0)
			continue;
		snprintf(names[n], sizeof(names[n]), "%s-16bit", cases[i].name);
		tests[n] = (struct CMUnitTest){ names[n], narrow, NULL, NULL, &cases[i] };
		n++;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("parallel_tensor", tests, (size_t)n, NULL, NULL);
}
