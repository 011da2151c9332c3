/* SPDX-License-Identifier: Apache-2.0
 * A rank is killed or stopped while all train, on meshes of each kind: every other rank's step ends
 * with an error that says which call and which rank, it stays, and leaving does not hang. */
#include "tests/parallel/parallel_fixture.h"

enum {
	RANKS = 4,
	CALM_STEPS = 3,
	KILL_DEADLINE_MS = 200000, /* a lost rank is seen, not waited for */
	STOP_DEADLINE_MS = 10000,  /* far above what a step takes on a busy machine */
	NOTICED_MS = 60000,
};

struct fault {
	struct run_job job;
	int victim, signal;
};

static void survive(struct engine *e, struct mesh *mesh, const struct fault *f)
{
	struct err err = { 0 }, again = { 0 };
	struct engine_step s;
	int rc = 0;
	int64_t begin = fixture_now_ms();
	while (rc == 0) {
		begin = fixture_now_ms();
		rc = engine_step(e, &s, &err);
	}
	/* A neighbour that leaves gives its own reason to those that still wait for it. */
	bool told = f->job.spec.parallel.pipeline > 1 && rc == ERR_CANCELLED &&
		strstr(err.message, " gave up: ") != NULL;
	bool expected = told || rc == (f->signal == SIGKILL ? ERR_NETWORK : ERR_TIMEOUT);
	if (!expected)
		fprintf(stderr, "signal %d: %d: %s\n", f->signal, rc, err.message);
	RANK_CHECK(expected);
	RANK_CHECK(fixture_now_ms() - begin <= NOTICED_MS);
	RANK_CHECK(strstr(err.message, "of group ") != NULL && strstr(err.message, "rank ") != NULL);
	RANK_CHECK(engine_step(e, &s, &again) == rc);
	RANK_CHECK(strcmp(err.message, again.message) == 0);
	begin = fixture_now_ms();
	engine_destroy(e);
	mesh_close(mesh);
	RANK_CHECK(fixture_now_ms() - begin <= NOTICED_MS);
}

static void fault_body(struct rank *r)
{
	const struct fault *f = r->all->arg;
	struct err err = { 0 };
	struct run_open o;
	struct engine_step s;
	run_open(r, &f->job, f->signal == SIGKILL ? KILL_DEADLINE_MS : STOP_DEADLINE_MS, &o);
	for (int i = 0; i < CALM_STEPS; i++)
		RANK_OK(engine_step(o.engine, &s, &err));
	fixture_report(r);
	if (r->rank == f->victim)
		for (;;) /* to the signal */
			RANK_OK(engine_step(o.engine, &s, &err));
	survive(o.engine, o.mesh, f);
	plan_destroy(o.plan);
	data_close(o.data);
}

/* A training with a fault in it, one of several at a time. */
struct case_of {
	struct fault fault;
	struct ranks all;
};

static void begin(struct case_of *c, const struct fixture *files, struct spec_parallel parallel,
	int victim, int signal)
{
	*c = (struct case_of){ .fault = { .victim = victim, .signal = signal } };
	run_job_of(files, parallel, &c->fault.job);
	c->all = (struct ranks){ .size = RANKS, .body = fault_body, .arg = &c->fault };
	fixture_start(&c->all);
}

static void strike(struct case_of *c)
{
	const int victim = c->fault.victim;
	int status = 0;
	for (int r = 0; r < RANKS; r++)
		fixture_await(&c->all, r);
	kill(c->all.pids[victim], c->fault.signal);
	if (c->fault.signal == SIGSTOP) {
		assert_int_equal(waitpid(c->all.pids[victim], &status, WUNTRACED), c->all.pids[victim]);
		assert_true(WIFSTOPPED(status));
	}
}

static void run_fault(
	const struct fixture *files, struct spec_parallel parallel, int victim, int signal)
{
	static struct case_of c;
	begin(&c, files, parallel, victim, signal);
	strike(&c);
	fixture_finish(&c.all, victim);
}

/* Each rank of stage 0 and the last ones of the others; those that wait for a deadline, fewer. */
static bool wanted(int zero, int victim, int signal)
{
	if (signal == SIGSTOP)
		return zero == victim && zero != 1;
	return zero == 0 || victim == 0 || victim == RANKS - 1;
}

static void each(enum spec_family family, int signal)
{
	struct fixture f = { .spec = case_language(family) };
	f.spec.hyper.batch_size = RANKS * 2;
	f.spec.hyper.micro_batch_size = 1;
	fixture_files(&f);
	for (int zero = 0; zero <= 3; zero++)
		for (int victim = 0; victim < RANKS; victim++)
			if (wanted(zero, victim, signal))
				run_fault(&f, (struct spec_parallel){ RANKS, 1, 1, zero, 4096, 0 }, victim, signal);
	unlink(f.file[0].path);
}

static void killed(void **state)
{
	(void)state;
	each(SPEC_GPT2, SIGKILL);
}

static void stopped(void **state)
{
	(void)state;
	each(SPEC_LLAMA, SIGSTOP);
}

static const struct spec_parallel mixed[] = {
	{ .data = 1, .tensor = 1, .pipeline = 4 },
	{ .data = 1, .tensor = 1, .pipeline = 4, .interleave = 2 },
	{ .data = 2, .tensor = 1, .pipeline = 2, .zero_stage = 3, .bucket_bytes = 4096 },
	{ .data = 2, .tensor = 2, .pipeline = 1, .zero_stage = 3, .bucket_bytes = 4096 },
	{ .data = 1, .tensor = 2, .pipeline = 2 },
	{ .data = 1, .tensor = 4, .pipeline = 1 },
};

static struct fixture mixture(void)
{
	struct fixture f = { .spec = case_language(SPEC_GPT2) };
	f.spec.model.n_layer = 8;
	f.spec.model.n_head = 4;
	f.spec.hyper.batch_size = RANKS * 2;
	f.spec.hyper.micro_batch_size = 1;
	fixture_files(&f);
	return f;
}

/* Ranks that are no neighbours of the victim's hear of it from those that leave. */
static void mixtures(void **state)
{
	(void)state;
	struct fixture f = mixture();
	for (size_t i = 0; i < ARRAY_LEN(mixed); i++)
		for (int victim = 0; victim < RANKS; victim++)
			run_fault(&f, mixed[i], victim, SIGKILL);
	unlink(f.file[0].path);
}

/* All wait for a deadline: so all meshes at once, and one victim of each, drawn by a seed.
 * TRAINYARD_TEST_EVERY=1 stops each rank of each. */
static void stopped_mixtures(void **state)
{
	static struct case_of cases[ARRAY_LEN(mixed)];
	struct check_random random = check_random_start();
	struct fixture f = mixture();
	int rounds = getenv("TRAINYARD_TEST_EVERY") != NULL ? RANKS : 1;
	(void)state;
	for (int round = 0, first = (int)check_random_range(&random, 0, RANKS - 1); round < rounds;
		 round++) {
		for (size_t i = 0; i < ARRAY_LEN(mixed); i++)
			begin(&cases[i], &f, mixed[i], (first + round + (int)i) % RANKS, SIGSTOP);
		for (size_t i = 0; i < ARRAY_LEN(mixed); i++)
			strike(&cases[i]);
		for (size_t i = 0; i < ARRAY_LEN(mixed); i++)
			fixture_finish(&cases[i].all, cases[i].fault.victim);
	}
	unlink(f.file[0].path);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(killed), cmocka_unit_test(stopped),
		cmocka_unit_test(mixtures), cmocka_unit_test(stopped_mixtures) };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
