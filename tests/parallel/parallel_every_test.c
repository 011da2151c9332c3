/* SPDX-License-Identifier: Apache-2.0
 * Every factoring of 1 to 8 ranks trains to what one rank trains to: data x tensor x pipeline, ZeRO
 * 0 to 3, one stage or two on a rank, 1, 2 or 4 micro-batches, activations kept or computed again;
 * of each family what the plan does not refuse. A mesh is a test. By default a few, drawn by a
 * seed; TRAINYARD_TEST_EVERY=1 runs all (`./run test every`). */
#include "tests/parallel/parallel_compare.h"

enum {
	EVERY_MAX = 4096,
	REASONS_MAX = 8,
	DRAWN = 10,
	DRAWN_SANITIZED = 3,
	DRAWN_DEVICE = 2, /* kernels under emulation: so many, of so few ranks */
	DEVICE_RANKS_MAX = 4,
	BUCKET_BYTES = 4096,
};

struct every {
	const struct engine_case *of;
	int64_t data, tensor, pipeline, interleave, zero, micros;
	enum spec_checkpointing keep;
	char name[112];
};

/* Why plans are refused. */
struct reason {
	char param[ERR_PARAM_MAX], first[ERR_MESSAGE_MAX];
	int count;
};

static struct engine_case cases[CASES_MAX];
static struct every all[EVERY_MAX];
static struct reason reasons[REASONS_MAX];
static int all_count, reason_count;

/* The smallest model that the axes can cut, and not into equal parts where that is not asked: a
 * layer more than stages, a prime vocabulary. */
static void shape(struct job_spec *s, const struct every *e)
{
	int64_t t = e->tensor;
	s->model.n_layer = e->pipeline * e->interleave + 1;
	s->model.n_kv_head = s->model.family == SPEC_LLAMA ? t : 0;
	s->model.n_head = t == 1 || s->model.family == SPEC_LLAMA ? 2 * t : t;
	s->model.n_embd = 4 * s->model.n_head;
	s->model.n_inner = s->model.family == SPEC_LLAMA ? 7 * t : 4 * s->model.n_embd;
	s->data.sequence_length = t == 8 ? 16 : t == 5 || t == 7 ? 2 * t : 12;
}

static struct job_spec spec_of(const struct every *e)
{
	struct job_spec s = e->of->spec;
	bool language = spec_is_language(&s);
	if (language)
		shape(&s, e);
	/* Batch norms need rows. */
	s.hyper.micro_batch_size = language ? 1 : 2;
	s.hyper.batch_size = s.hyper.micro_batch_size * e->data * e->micros;
	s.hyper.learning_rate = s.model.family == SPEC_CNN ? 1e-4 : 1e-3;
	s.checkpointing = e->keep;
	s.parallel = (struct spec_parallel){ .data = e->data,
		.tensor = e->tensor,
		.pipeline = e->pipeline,
		.interleave = e->interleave,
		.zero_stage = e->zero,
		.bucket_bytes = BUCKET_BYTES };
	return s;
}

static void refused(const struct err *err)
{
	int i = 0;
	while (i < reason_count && strcmp(reasons[i].param, err->param) != 0)
		i++;
	assert_true(i < REASONS_MAX);
	if (i == reason_count) {
		snprintf(reasons[i].param, sizeof(reasons[i].param), "%s", err->param);
		snprintf(reasons[i].first, sizeof(reasons[i].first), "%s", err->message);
		reason_count++;
	}
	reasons[i].count++;
}

static void add(struct every e)
{
	struct err err = { 0 };
	struct job_spec s = spec_of(&e);
	struct plan *plan = NULL;
	if (plan_compile_rank(&s, NULL, 0, &plan, &err) < 0) {
		refused(&err);
		return;
	}
	plan_destroy(plan);
	assert_true(all_count < EVERY_MAX);
	snprintf(e.name, sizeof(e.name),
		"%s: data %lld x tensor %lld x pipeline %lld x %lld, ZeRO %lld, %lld micro-batches%s",
		e.of->name, (long long)e.data, (long long)e.tensor, (long long)e.pipeline,
		(long long)e.interleave, (long long)e.zero, (long long)e.micros,
		e.keep == SPEC_FULL ? ", computed again" : "");
	all[all_count++] = e;
}

/* What one rank trains to depends on the outer loops only. */
static void list_mesh(struct every e)
{
	for (int64_t micros = 1; micros <= 4; micros *= 2)
		for (int64_t interleave = 1; interleave <= (e.pipeline > 1 ? 2 : 1); interleave++)
			for (int full = 0; full <= 1; full++)
				for (int64_t zero = 0; zero <= (e.data > 1 ? 3 : 0); zero++) {
					e.micros = micros;
					e.interleave = interleave;
					e.keep = full ? SPEC_FULL : SPEC_KEEP_ALL;
					e.zero = zero;
					add(e);
				}
}

/* Adapters and prompts have the meshes of the other programs. */
static bool wanted(const struct engine_case *c)
{
	return !spec_is_language(&c->spec) || strcmp(c->name, "gpt2") == 0 ||
		strcmp(c->name, "llama") == 0;
}

static bool on_device(void)
{
	return engine_is_apart(test_backend(PLAN_F32));
}

static void list(void)
{
	const int64_t ranks = on_device() ? DEVICE_RANKS_MAX : RUN_RANKS_MAX;
	int count = case_families(cases);
	for (int i = 0; i < count; i++)
		for (int64_t t = 1; t <= ranks && wanted(&cases[i]); t++)
			for (int64_t d = 1; d * t <= ranks; d++)
				for (int64_t p = 1; p * d * t <= ranks; p++)
					list_mesh(
						(struct every){ .of = &cases[i], .data = d, .tensor = t, .pipeline = p });
	printf("%d meshes of %d ranks and less; plans refused:\n", all_count, (int)ranks);
	for (int i = 0; i < reason_count; i++)
		printf("%7d %s (%s)\n", reasons[i].count, reasons[i].param, reasons[i].first);
}

/* Kept while the next mesh has the same job. */
static void need_alone(struct fixture *f)
{
	static struct job_spec last;
	const struct job_spec meant = f->spec;
	f->spec.checkpointing = SPEC_KEEP_ALL;
	f->spec.parallel = (struct spec_parallel){ 1, 1, 1, 0, 0, 0 };
	if (memcmp(&last, &f->spec, sizeof(last)) != 0)
		run_mesh(f, f->spec.parallel, alone);
	memcpy(&last, &f->spec, sizeof(last));
	f->spec = meant;
}

static void one(void **state)
{
	const struct every *e = *state;
	struct fixture f = { .spec = spec_of(e) };
	fixture_files(&f);
	need_alone(&f);
	run_mesh(&f, f.spec.parallel, together);
	for (int i = 0; i < f.files; i++)
		unlink(f.file[i].path);
	compare_runs(e->name, (int)(e->data * e->tensor * e->pipeline), &bounds_of[SPEC_FP32]);
}

/* Some of all, in the order of all: true for those that are drawn. */
static void draw(bool *ret_drawn)
{
	struct check_random random = check_random_start();
	bool sanitized = getenv("TRAINYARD_SANITIZED") != NULL;
	int left = on_device() ? (sanitized ? 1 : DRAWN_DEVICE) : sanitized ? DRAWN_SANITIZED : DRAWN;
	while (left > 0) {
		int64_t i = check_random_range(&random, 0, all_count - 1);
		left -= !ret_drawn[i];
		ret_drawn[i] = true;
	}
}

int main(int argc, char **argv)
{
	static struct CMUnitTest tests[EVERY_MAX];
	static bool drawn[EVERY_MAX];
	bool every = getenv("TRAINYARD_TEST_EVERY") != NULL;
	size_t n = 0;
	compare_begin();
	list();
	if (!every)
		draw(drawn);
	for (int i = 0; i < all_count; i++)
		if (every || drawn[i])
			tests[n++] = (struct CMUnitTest){ all[i].name, one, NULL, NULL, &all[i] };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("parallel_every", tests, n, NULL, NULL);
}
