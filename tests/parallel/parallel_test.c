/* SPDX-License-Identifier: Apache-2.0
 * Every mesh trains to what one rank trains to: losses, gradient norms, weights and the evaluation
 * of twenty steps, for each family; and all ranks of a mesh agree bit by bit. One test a case. */
#include "tests/parallel/parallel_compare.h"
#include "tests/unit/workers/engine/rounding.h"

enum { BATCH = 16, MICRO = 2, BUCKET_BYTES = 16 * 1024 };

static struct engine_case cases[CASES_MAX];
static int case_count;

static void data_meshes(struct fixture *f, const char *name)
{
	static const int64_t all[] = { 2, 4, 8 };
	const struct bounds *b = &bounds_of[f->spec.precision];
	/* Eight ranks add only numbers to four, but for what cuts the batch to the last sample. */
	size_t ways_count = strncmp(name, "gpt2", 4) == 0 || strcmp(name, "dlrm") == 0 ? 3 : 2;
	run_mesh(f, (struct spec_parallel){ 1, 1, 1, 0, 0, 0 }, alone);
	for (size_t w = 0; w < ways_count; w++)
		for (int zero = 0; zero <= 3; zero++) {
			char what[128];
			snprintf(what, sizeof(what), "%s, data %lld, ZeRO %d", name, (long long)all[w], zero);
			/* Small buckets, so that there are several. */
			run_mesh(f, (struct spec_parallel){ all[w], 1, 1, zero, BUCKET_BYTES, 0 }, together);
			compare_runs(what, (int)all[w], b);
		}
}

static void run_case(struct job_spec spec, const char *name, enum spec_precision precision)
{
	spec.precision = precision;
	spec.hyper.batch_size = BATCH;
	spec.hyper.micro_batch_size = MICRO;
	/* Slow enough that twenty steps do not blow up the last bit of a sum; kinks and batch norms
	 * over few rows do it faster. */
	spec.hyper.learning_rate = spec.model.family == SPEC_CNN ? 1e-4 : 1e-3;
	compare_case(spec, name, data_meshes);
}

static void one_case(void **state)
{
	const struct engine_case *c = *state;
	run_case(c->spec, c->name, SPEC_FP32);
}

/* Narrow weights, fp32 vectors beside them, and a loss scale that all ranks move together. */
static void narrow(void **state)
{
	const struct engine_case *c = *state;
	run_case(c->spec, c->name, SPEC_BF16);
	run_case(c->spec, c->name, SPEC_FP16);
}

/* The weights that ranks have whole are the masters rounded by what the last step drew for each
 * element of the whole model, wherever its master is. */
static void check_rounding(const char *what, const struct job_spec *spec, int size)
{
	struct err err = { 0 };
	struct plan *whole = NULL;
	int64_t at = 0, checked = 0;
	assert_int_equal(plan_compile(spec, NULL, &whole, &err), 0);
	for (int i = 0; i < whole->param_count; i++) {
		const int64_t count = whole->params[i].count;
		const uint64_t key = rounding_key((uint64_t)spec->seed, RUN_STEPS, i);
		bool narrow = whole->buffers[whole->params[i].weight].type == PLAN_BF16;
		for (int64_t k = 0; k < count * size && narrow; k++) {
			const struct run_weight *w = &together->weight[k / count][i];
			uint16_t got, want = rounding_bf16(together->params[at + k % count], key, k % count);
			if (w->bytes == 0)
				continue;
			assert_int_equal(w->bytes, 2 * count);
			memcpy(&got, &together->weights[k / count][w->at + 2 * (k % count)], sizeof(got));
			checked++;
			if (got != want)
				fail_msg("%s: element %lld of %s on rank %lld is %04x, not %04x", what,
					(long long)(k % count), whole->params[i].name, (long long)(k / count), got,
					want);
		}
		at += count;
	}
	assert_true(checked > 0 || whole->mesh.zero == 3);
	plan_destroy(whole);
}

/* Drawn by element: each stage of ZeRO gives the same bits, and any mesh what one rank has. */
static void stochastic_meshes(struct fixture *f, const char *name)
{
	static float first[RUN_ELEMENTS_MAX];
	run_mesh(f, (struct spec_parallel){ 1, 1, 1, 0, 0, 0 }, alone);
	for (int zero = 0; zero <= 3; zero++) {
		char what[128];
		struct job_spec spec = f->spec;
		snprintf(what, sizeof(what), "%s, data 2, ZeRO %d", name, zero);
		spec.parallel = (struct spec_parallel){ 2, 1, 1, zero, BUCKET_BYTES, 0 };
		run_mesh(f, spec.parallel, together);
		compare_runs(what, 2, &bounds_of[SPEC_BF16]);
		check_rounding(what, &spec, 2);
		size_t bytes = (size_t)together->params_count * sizeof(float);
		if (zero == 0)
			memcpy(first, together->params, bytes);
		else if (memcmp(first, together->params, bytes) != 0)
			fail_msg("%s: other bits than with stage 0", what);
	}
}

static void stochastic(void **state)
{
	struct job_spec spec = case_language(SPEC_GPT2);
	spec.precision = SPEC_BF16;
	spec.hyper.stochastic_rounding = true;
	/* Stages add in other orders: the norm's squares, and a rank's micro-batches. */
	spec.hyper.grad_clip = 0;
	spec.hyper.batch_size = BATCH;
	spec.hyper.micro_batch_size = BATCH / 2;
	spec.hyper.learning_rate = 1e-3;
	compare_case(spec, "gpt2, rounded stochastically", stochastic_meshes);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[2 * CASES_MAX + 1];
	int n = 0;
	compare_begin();
	case_count = case_families(cases);
	for (int i = 0; i < case_count; i++)
		tests[n++] = (struct CMUnitTest){ cases[i].name, one_case, NULL, NULL, &cases[i] };
	tests[n++] = (struct CMUnitTest){ "gpt2-stochastic", stochastic, NULL, NULL, NULL };
	static const char *const both[] = { "gpt2", "llama-lora-packed", "resnet-basic", "dlrm" };
	static char names[ARRAY_LEN(both)][64];
	for (size_t k = 0; k < ARRAY_LEN(both); k++)
		for (int i = 0; i < case_count; i++)
			if (strcmp(cases[i].name, both[k]) == 0) {
				snprintf(names[k], sizeof(names[k]), "%s-16bit", both[k]);
				tests[n++] = (struct CMUnitTest){ names[k], narrow, NULL, NULL, &cases[i] };
			}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("parallel", tests, (size_t)n, NULL, NULL);
}
