/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/agree.c and ranks.c: ranks as processes that meet in a folder, over TCP,
 * and leave what they saw in memory that all share. */
#include "tests/support/check.h"

#include "core/base/file.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, ROUNDS = 20, DEADLINE_MS = 60000 };

struct party;

struct rank {
	struct party *party;
	int index;
	struct ranks others;
	struct agree_say said[ROUNDS];
	int waited;
	int code;
	struct err err;
};

struct party {
	char dir[64];
	struct job_spec spec;
	struct rank ranks[RANKS];
	void (*play)(struct rank *r);
};

static void enter(struct rank *r)
{
	const struct ranks_place place = {
		.rank = r->index, .rendezvous = r->party->dir, .deadline_ms = DEADLINE_MS
	};
	r->code = ranks_join(&r->party->spec, &place, &r->others, &r->err);
	if (r->code == 0)
		r->party->play(r);
	ranks_leave(&r->others);
}

static struct party *hold(void (*play)(struct rank *r))
{
	struct party *p =
		mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	*p = (struct party){ .dir = "/tmp/agree_test_XXXXXX",
		.spec = { .device_count = RANKS, .parallel = { .data = RANKS } },
		.play = play };
	assert_non_null(mkdtemp(p->dir));
	pid_t pids[RANKS];
	for (int i = 0; i < RANKS; i++) {
		struct rank *r = &p->ranks[i];
		r->party = p;
		r->index = i;
		pids[i] = fork();
		if (pids[i] == 0) {
			enter(r);
			_exit(0);
		}
	}
	for (int i = 0; i < RANKS; i++) {
		int status = 0;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(file_remove_tree(p->dir, NULL), 0);
	return p;
}

static void finish(struct party *p)
{
	munmap(p, sizeof(*p));
}

/* ------------------------------------------------------------------------------ rounds */

/* Round by round, what each rank says. */
static const struct {
	struct agree_say say[RANKS], done;
} rounds[] = {
	{ { { 0 } }, { 0 } },
	/* An order that reached one rank alone. */
	{ { [2] = { .order = LOOP_TERMINATE } }, { .order = LOOP_TERMINATE } },
	{ { [1] = { .order = LOOP_PAUSE }, [2] = { .order = LOOP_TERMINATE } },
		{ .order = LOOP_PAUSE } },
	{ { [0] = { .order = LOOP_PAUSE }, [1] = { .order = LOOP_CANCEL } }, { .order = LOOP_CANCEL } },
	/* The clock is rank 0's alone. */
	{ { [1] = { .time_up = true } }, { 0 } },
	{ { [0] = { .time_up = true } }, { .time_up = true } },
	{ { [1] = { .checkpoint = true } }, { .checkpoint = true } },
	{ { [2] = { .over = true } }, { .over = true } },
};

static void note_waiting(void *ctx)
{
	((struct rank *)ctx)->waited++;
}

static void say_rounds(struct rank *r)
{
	for (size_t i = 0; i < ARRAY_LEN(rounds) && r->code == 0; i++) {
		r->said[i] = rounds[i].say[r->index];
		/* The others wait through what rank 0 is busy with. */
		for (size_t busy = 0; r->index == 0 && busy < i; busy++)
			agree_wait(r->others.mesh);
		r->code = agree_step(r->others.mesh, &r->said[i], note_waiting, r, &r->err);
	}
}

static void all_ranks_do_the_same(void **state)
{
	struct party *p = hold(say_rounds);
	for (int i = 0; i < RANKS; i++) {
		if (p->ranks[i].code != 0)
			fail_msg("rank %d: %s", i, p->ranks[i].err.message);
		/* Each time that rank 0 was busy. */
		assert_int_equal(
			p->ranks[i].waited, i == 0 ? 0 : ARRAY_LEN(rounds) * (ARRAY_LEN(rounds) - 1) / 2);
		for (size_t k = 0; k < ARRAY_LEN(rounds); k++)
			assert_memory_equal(&p->ranks[i].said[k], &rounds[k].done, sizeof(p->ranks[i].said[k]));
	}
}

static void nobody_is_asked_when_alone(void **state)
{
	struct agree_say say = { .order = LOOP_PAUSE, .checkpoint = true };
	struct err err = { 0 };
	struct ranks others = { 0 };
	const struct job_spec spec = { .device_count = 1 };
	assert_int_equal(ranks_join(&spec, &(struct ranks_place){ 0 }, &others, &err), 0);
	assert_null(others.mesh);
	assert_true(ranks_is_first(others.mesh));
	assert_int_equal(agree_step(others.mesh, &say, NULL, NULL, &err), 0);
	assert_true(say.order == LOOP_PAUSE && say.checkpoint);
	assert_int_equal(agree_opened(others.mesh, ERR_IO, &err), ERR_IO);
	ranks_leave(&others);
}

/* ------------------------------------------------------------------------------ failures */

static void open_but_one(struct rank *r)
{
	int rc = r->index == 1 ? err_set(&r->err, ERR_INVALID_DATA, "a.csv", "line 7 is wrong") : 0;
	r->code = agree_opened(r->others.mesh, rc, &r->err);
}

static void what_fails_on_one_fails_on_all(void **state)
{
	struct party *p = hold(open_but_one);
	for (int i = 0; i < RANKS; i++) {
		assert_int_equal(p->ranks[i].code, ERR_INVALID_DATA);
		assert_string_equal(p->ranks[i].err.param, "a.csv");
		assert_string_equal(p->ranks[i].err.message, "rank 1: line 7 is wrong");
	}
	finish(p);
}

static void leave_early(struct rank *r)
{
	struct agree_say say = { .order = LOOP_GO_ON };
	if (r->index != 2)
		r->code = agree_step(r->others.mesh, &say, NULL, NULL, &r->err);
}

static void a_lost_rank_is_told(void **state)
{
	struct party *p = hold(leave_early);
	for (int i = 0; i < RANKS - 1; i++) {
		assert_true(ranks_is_lost(p->ranks[i].code));
		assert_non_null(strstr(p->ranks[i].err.message, "group world"));
	}
	assert_int_equal(p->ranks[2].code, 0);
	finish(p);
}

static void a_rank_needs_a_place_and_a_mesh_that_fits(void **state)
{
	struct err err = { 0 };
	struct ranks others = { 0 };
	struct job_spec spec = { .device_count = 2, .parallel = { .data = 2 } };
	const struct ranks_place nowhere = { 0 };
	assert_int_equal(ranks_join(&spec, &nowhere, &others, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.resources.count");
	spec.parallel.data = 4;
	assert_int_equal(ranks_join(&spec, &nowhere, &others, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.parallelism");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_ranks_do_the_same),
		cmocka_unit_test(nobody_is_asked_when_alone),
		cmocka_unit_test(what_fails_on_one_fails_on_all),
		cmocka_unit_test(a_lost_rank_is_told),
		cmocka_unit_test(a_rank_needs_a_place_and_a_mesh_that_fits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
