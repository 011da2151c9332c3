/* SPDX-License-Identifier: Apache-2.0
 * Every mesh trains to what one rank trains to: losses, gradient norms, weights and the evaluation
 * of twenty steps, for each family; and all ranks of a mesh agree bit by bit. One test a case. */
#include "tests/parallel/parallel_fixture.h"

enum { BATCH = 16, MICRO = 2, BUCKET_BYTES = 16 * 1024 };

static struct run_result *alone, *together;
static struct engine_case cases[CASES_MAX];
static int case_count;

static double relative(double a, double b)
{
	double size = fmax(fabs(a), fabs(b));
	return size > 0 ? fabs(a - b) / size : 0;
}

/* What twenty steps may make of sums in another order. */
struct bounds {
	double loss, norm, weights;
};
static const struct bounds bounds_of[] = {
	[SPEC_FP32] = { 1e-6, 1e-5, 1e-3 },
	[SPEC_BF16] = { 2e-2, 2e-1, 5e-2 },
	[SPEC_FP16] = { 2e-3, 5e-2, 2e-2 },
};

static void compare_steps(const char *name, int size, const struct bounds *b)
{
	for (int i = 0; i < RUN_STEPS; i++) {
		const struct run_step *want = &alone->step[0][i], *got = &together->step[0][i];
		if (relative(want->loss, got->loss) > b->loss)
			fail_msg(
				"%s: step %d: loss %.9g, one rank has %.9g", name, i + 1, got->loss, want->loss);
		if (relative(want->norm, got->norm) > b->norm)
			fail_msg("%s: step %d: gradient norm %.9g, one rank has %.9g", name, i + 1, got->norm,
				want->norm);
		assert_true(want->learning_rate == got->learning_rate);
		assert_int_equal(want->samples, got->samples);
		assert_int_equal(want->tokens, got->tokens);
		for (int r = 1; r < size; r++)
			if (memcmp(got, &together->step[r][i], sizeof(*got)) != 0)
				fail_msg("%s: step %d: rank %d tells another step than rank 0", name, i + 1, r);
	}
}

static void compare_weights(const char *name, const struct bounds *b)
{
	double diff = 0, size = 0;
	assert_int_equal(alone->params_count, together->params_count);
	if (together->owned != together->params_count)
		fail_msg("%s: the ranks own %lld of %lld elements", name, (long long)together->owned,
			(long long)together->params_count);
	for (int64_t i = 0; i < alone->params_count; i++) {
		diff += pow((double)alone->params[i] - (double)together->params[i], 2);
		size += pow((double)alone->params[i], 2);
	}
	if (!(sqrt(diff / size) <= b->weights))
		fail_msg("%s: the weights differ by %.3g", name, sqrt(diff / size));
}

/* Weights that every rank has, of a run with ZeRO below 3; and what the plan says of memory. */
static void compare_ranks(const char *name, int size)
{
	for (int r = 0; r < size; r++) {
		assert_int_equal(together->plan_bytes[r], together->memory_bytes[r]);
		if (memcmp(together->weights[0], together->weights[r], (size_t)together->weights_bytes) !=
			0)
			fail_msg("%s: rank %d has other weights than rank 0", name, r);
	}
}

static void compare_evaluation(const char *name, int size, const struct bounds *b)
{
	const struct engine_evaluation *want = &alone->evaluation[0], *got = &together->evaluation[0];
	if (relative(want->loss, got->loss) > 10 * b->loss)
		fail_msg("%s: evaluation: loss %.9g, one rank has %.9g", name, got->loss, want->loss);
	assert_int_equal(want->samples, got->samples);
	for (int r = 1; r < size; r++)
		assert_memory_equal(got, &together->evaluation[r], sizeof(*got));
}

static void data_meshes(struct fixture *f, const char *name)
{
	static const int64_t all[] = { 2, 4, 8 };
	const struct bounds *b = &bounds_of[f->spec.precision];
	/* Eight ranks add only numbers to four, but for what cuts the batch to the last sample. */
	size_t ways_count = strncmp(name, "gpt2", 4) == 0 || strcmp(name, "dlrm") == 0 ? 3 : 2;
	run_mesh(f, (struct spec_parallel){ 1, 1, 1, 0, 0 }, alone);
	for (size_t w = 0; w < ways_count; w++)
		for (int zero = 0; zero <= 3; zero++) {
			char what[128];
			snprintf(what, sizeof(what), "%s, data %lld, ZeRO %d", name, (long long)all[w], zero);
			/* Small buckets, so that there are several. */
			run_mesh(f, (struct spec_parallel){ all[w], 1, 1, zero, BUCKET_BYTES }, together);
			compare_steps(what, (int)all[w], b);
			compare_weights(what, b);
			compare_ranks(what, (int)all[w]);
			compare_evaluation(what, (int)all[w], b);
		}
}

static void run_case(struct job_spec spec, const char *name, enum spec_precision precision)
{
	struct fixture f = { .spec = spec };
	f.spec.precision = precision;
	f.spec.hyper.batch_size = BATCH;
	f.spec.hyper.micro_batch_size = MICRO;
	/* Slow enough that twenty steps do not blow up the last bit of a sum; kinks and batch norms
	 * over few rows do it faster. */
	f.spec.hyper.learning_rate = spec.model.family == SPEC_CNN ? 1e-4 : 1e-3;
	fixture_files(&f);
	data_meshes(&f, name);
	for (int i = 0; i < f.files; i++)
		unlink(f.file[i].path);
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

int main(int argc, char **argv)
{
	struct CMUnitTest tests[2 * CASES_MAX];
	int n = 0;
	alone = fixture_shared(sizeof(*alone));
	together = fixture_shared(sizeof(*together));
	case_count = case_families(cases);
	for (int i = 0; i < case_count; i++)
		tests[n++] = (struct CMUnitTest){ cases[i].name, one_case, NULL, NULL, &cases[i] };
	static const char *const both[] = { "gpt2", "llama-lora-packed", "resnet-basic" };
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
