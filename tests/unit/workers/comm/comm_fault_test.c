/* SPDX-License-Identifier: Apache-2.0
 * A rank is killed, or stopped, before it joins a collective or inside one: all others get an
 * error, at once or at the call's deadline, and close without hanging. */
#include "tests/unit/workers/comm/comm_fixture.h"

enum {
	RANKS = 3,
	STOP_DEADLINE_MS = 300,
	/* Even a third is more than a ring holds; and than a socket's buffers do. */
	SMALL_BYTES = 6 << 20,
	INSIDE_BYTES = 48 << 20,
	OPEN_MS = 500,
};

struct fault {
	enum comm_op op;
	int victim, signal;
	bool inside; /* the victim has entered the call when it stops */
	bool check;
};

static int64_t bytes_of(const struct fault *f)
{
	return f->inside && fixture_transport == COMM_TCP ? INSIDE_BYTES : SMALL_BYTES;
}

static struct comm_args args_of(const struct fault *f, struct rank *r, char *send, char *recv)
{
	int parts = f->op == COMM_REDUCE_SCATTER || f->op == COMM_ALL_GATHER || f->op == COMM_ALL_TO_ALL
		? r->size
		: 1;
	return (struct comm_args){
		.send = send,
		.recv = recv,
		.count = bytes_of(f) / 4 / parts,
		.type = COMM_F32,
		.root = f->op == COMM_SEND ? 1 - r->rank : 0,
		/* a lost rank is seen, not waited for */
		.deadline_ms = f->signal == SIGKILL ? FIXTURE_DEADLINE_MS : STOP_DEADLINE_MS,
	};
}

static void survive(const struct fault *f, struct comm *c, enum comm_op op,
	const struct comm_args *a, struct rank *r)
{
	struct err err = { 0 };
	int64_t ticket = 0, begin = fixture_now_ms();
	int rc = fixture_call(c, op, a, &ticket, &err);
	fixture_report(r);
	if (rc == 0)
		rc = comm_wait(c, ticket, &err);
	int64_t ms = fixture_now_ms() - begin;
	int want = f->signal == SIGKILL ? ERR_NETWORK : ERR_TIMEOUT;
	if (rc != want || ms > FIXTURE_PROMPT_MS)
		fprintf(stderr,
			"%s, signal %d to rank %d, inside %d, check %d: rank %d: %d after %lld ms: %s\n",
			comm_op_name(op), f->signal, f->victim, f->inside, f->check, r->rank, rc, (long long)ms,
			err.message);
	RANK_CHECK(rc == want);
	RANK_CHECK(ms <= FIXTURE_PROMPT_MS);
	RANK_CHECK(strstr(err.message, comm_op_name(op)) && strstr(err.message, "fault"));
	struct err again = { 0 }; /* it stays */
	RANK_CHECK(fixture_do(c, COMM_BARRIER, &(struct comm_args){ 0 }, &again) == rc);
	RANK_CHECK(strcmp(err.message, again.message) == 0);
	begin = fixture_now_ms();
	comm_close(c);
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
}

static void fault_body(struct rank *r)
{
	const struct fault *f = r->all->arg;
	char *send = r->all->shared, *recv = send + INSIDE_BYTES;
	struct comm *c = fixture_group(r, "fault", f->check, FIXTURE_DEADLINE_MS);
	struct comm_args a = args_of(f, r, send, recv);
	enum comm_op op = f->op == COMM_SEND && r->rank == 1 ? COMM_RECV : f->op;
	if (r->rank == f->victim) {
		int64_t ticket = 0;
		struct err err = { 0 };
		a.deadline_ms = FIXTURE_DEADLINE_MS;
		if (f->inside)
			RANK_OK(fixture_call(c, op, &a, &ticket, &err));
		fixture_report(r);
		fixture_hold(r); /* for ever */
	}
	fixture_report(r);
	fixture_hold(r);
	survive(f, c, op, &a, r);
}

static void run_fault(const struct fault *f, void *buffers)
{
	struct ranks all = {
		.size = f->op == COMM_SEND ? 2 : RANKS, .body = fault_body, .arg = f, .shared = buffers
	};
	int status = 0;
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	/* Stopped first in any case, so that it gets no further. */
	kill(all.pids[f->victim], SIGSTOP);
	assert_int_equal(waitpid(all.pids[f->victim], &status, WUNTRACED), all.pids[f->victim]);
	assert_true(WIFSTOPPED(status));
	for (int r = 0; r < all.size; r++)
		if (r != f->victim)
			fixture_release(&all, r);
	for (int r = 0; r < all.size; r++)
		if (r != f->victim)
			fixture_await(&all, r);
	if (f->signal == SIGKILL)
		kill(all.pids[f->victim], SIGKILL);
	fixture_finish(&all, f->victim);
}

static void each_collective(int signal, bool inside)
{
	struct check_random random = check_random_start();
	/* What is in them does not matter here, and new pages for each rank take most of the time. */
	size_t bytes = 2 * (size_t)INSIDE_BYTES;
	void *buffers = fixture_shared(bytes);
	static const enum comm_op ops[] = { COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER,
		COMM_BROADCAST, COMM_ALL_TO_ALL, COMM_SEND, COMM_BARRIER };
	for (size_t op = 0; op < ARRAY_LEN(ops); op++) {
		if (inside && ops[op] == COMM_BARRIER)
			continue; /* its messages are too small to be inside */
		for (int victim = 0; victim < (ops[op] == COMM_SEND ? 2 : RANKS); victim++) {
			struct fault f = { ops[op], victim, signal, inside,
				.check = check_random_range(&random, 0, 1) };
			/* Unless they compare, the root of a broadcast needs nobody but its readers. */
			run_fault(&f, buffers);
		}
	}
	munmap(buffers, bytes);
}

static void killed_before_it_joins(void **state)
{
	(void)state;
	each_collective(SIGKILL, false);
}

static void killed_inside(void **state)
{
	(void)state;
	each_collective(SIGKILL, true);
}

static void stopped_before_it_joins(void **state)
{
	(void)state;
	each_collective(SIGSTOP, false);
}

static void stopped_inside(void **state)
{
	(void)state;
	each_collective(SIGSTOP, true);
}

/* ------------------------------------------------------------------ opening */

static void open_alone(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = { .name = "alone",
		.rank = r->rank,
		.size = r->size + 1,
		.store = r->store,
		.open_ms = OPEN_MS,
		.transport = fixture_transport,
		.device = fixture_device() };
	int64_t begin = fixture_now_ms();
	int rc = comm_open(&o, &c, &err);
	RANK_CHECK(rc == ERR_TIMEOUT || rc == ERR_NETWORK);
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
	RANK_CHECK(strstr(err.message, "alone") != NULL);
}

static void a_rank_never_comes(void **state)
{
	(void)state;
	fixture_run(2, open_alone, NULL, NULL);
}

static void open_otherwise(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = { .name = "other",
		.rank = r->rank,
		.size = r->size,
		.store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.check = r->rank == 0,
		.transport = fixture_transport,
		.device = fixture_device() };
	RANK_CHECK(comm_open(&o, &c, &err) == ERR_CONFLICT);
}

static void options_must_agree(void **state)
{
	(void)state;
	fixture_run(2, open_otherwise, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_before_it_joins),
		cmocka_unit_test(killed_inside),
		cmocka_unit_test(stopped_before_it_joins),
		cmocka_unit_test(stopped_inside),
		cmocka_unit_test(a_rank_never_comes),
		cmocka_unit_test(options_must_agree),
	};
	fixture_arguments(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
