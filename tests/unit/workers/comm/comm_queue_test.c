/* SPDX-License-Identifier: Apache-2.0
 * The queue of a group: tickets, deadlines, aborts, and calls that do not fit together. */
#include "tests/unit/workers/comm/comm_fixture.h"

#include <pthread.h>

enum {
	RANKS = 3,
	COUNT = 4099,
	CALLS = 50,
	SHORT_MS = 200,
};

/* ------------------------------------------------------------------ tickets */

static void overlap(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "overlap", true, FIXTURE_DEADLINE_MS);
	float *data = fixture_alloc(CALLS * COUNT * (int64_t)sizeof(float));
	int64_t tickets[CALLS];
	bool done = false;
	for (int n = 0; n < CALLS; n++) {
		for (int i = 0; i < COUNT; i++)
			data[n * COUNT + i] = (float)(r->rank + n + i % 11);
		struct comm_args a = { .recv = data + n * COUNT, .count = COUNT, .type = COMM_F32 };
		RANK_OK(c->ops->all_reduce(c, &a, &tickets[n], &err));
		RANK_CHECK(tickets[n] == n + 1);
	}
	RANK_OK(comm_wait(c, tickets[CALLS - 1], &err)); /* the last is done when all are */
	for (int n = 0; n < CALLS; n++) {
		RANK_OK(comm_test(c, tickets[n], &done, &err));
		RANK_CHECK(done);
		RANK_OK(comm_wait(c, tickets[n], &err));
		for (int i = 0; i < COUNT; i++)
			RANK_CHECK(data[n * COUNT + i] == (float)(3 * (n + i % 11) + 3));
	}
	RANK_CHECK(comm_wait(c, CALLS + 1, &err) == ERR_INVALID_VALUE);
	RANK_CHECK(comm_test(c, 0, &done, &err) == ERR_INVALID_VALUE);
	comm_close(c);
	free(data);
}

static void tickets_overlap(void **state)
{
	(void)state;
	fixture_run(RANKS, overlap, NULL, NULL);
}

static void fill(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "full", true, FIXTURE_DEADLINE_MS);
	struct comm_args none = { 0 };
	int64_t ticket = 0;
	if (r->rank == 0) { /* nobody else comes: all that is called stays */
		for (int n = 0; n < COMM_PENDING_MAX; n++)
			RANK_OK(c->ops->barrier(c, &none, &ticket, &err));
		RANK_CHECK(c->ops->barrier(c, &none, &ticket, &err) == ERR_OVERLOADED);
		RANK_CHECK(ticket == COMM_PENDING_MAX);
	}
	fixture_report(r);
	fixture_hold(r);
	int64_t begin = fixture_now_ms();
	comm_close(c); /* with calls that are not done */
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
	fixture_report(r);
}

/* Rank 0 has closed before rank 1 begins to. */
static void run_first_closes(void (*body)(struct rank *r))
{
	struct ranks all = { .size = 2, .body = body };
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	for (int r = 0; r < all.size; r++) {
		fixture_release(&all, r);
		fixture_await(&all, r);
	}
	fixture_finish(&all, -1);
}

static void the_queue_has_an_end(void **state)
{
	(void)state;
	run_first_closes(fill);
}

static void close_first(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "first", true, FIXTURE_DEADLINE_MS);
	RANK_OK(fixture_do(c, COMM_BARRIER, &(struct comm_args){ 0 }, &err));
	fixture_report(r);
	fixture_hold(r);
	int64_t begin = fixture_now_ms();
	comm_close(c);
	int64_t ms = fixture_now_ms() - begin;
	RANK_CHECK(ms <= FIXTURE_PROMPT_MS);
	if (r->rank == 0) /* the other may still be in its last call */
		RANK_CHECK(ms >= COMM_GOODBYE_MS - 1);
	fixture_report(r);
}

static void a_close_waits_for_the_others(void **state)
{
	(void)state;
	run_first_closes(close_first);
}

/* A call behind a slower one has its own deadline. */
static void late(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "late", true, FIXTURE_DEADLINE_MS);
	if (r->rank == 0) {
		int64_t tickets[2], begin = fixture_now_ms();
		RANK_OK(c->ops->barrier(c, &(struct comm_args){ 0 }, &tickets[0], &err));
		RANK_OK(
			c->ops->barrier(c, &(struct comm_args){ .deadline_ms = SHORT_MS }, &tickets[1], &err));
		RANK_CHECK(comm_wait(c, tickets[1], &err) == ERR_TIMEOUT);
		RANK_CHECK(strstr(err.message, "barrier #2 of group late (rank 0 of 2)") != NULL);
		RANK_CHECK(comm_wait(c, tickets[0], &err) == ERR_TIMEOUT);
		int64_t ms = fixture_now_ms() - begin;
		RANK_CHECK(ms >= SHORT_MS && ms <= FIXTURE_PROMPT_MS);
	}
	fixture_report(r);
	fixture_hold(r);
	comm_close(c);
}

static void a_deadline_holds_in_the_queue(void **state)
{
	(void)state;
	struct ranks all = { .size = 2, .body = late };
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	for (int r = 0; r < all.size; r++)
		fixture_release(&all, r);
	fixture_finish(&all, -1);
}

/* ------------------------------------------------------------------ abort */

static void *abort_thread(void *data)
{
	comm_abort(data, "the job was cancelled");
	comm_abort(data, "the second reason");
	return NULL;
}

static void aborted(struct rank *r)
{
	struct err err = { 0 }, again = { 0 };
	struct comm *c = fixture_group(r, "aborted", r->all->arg != NULL, FIXTURE_DEADLINE_MS);
	float x[COUNT] = { 0 };
	struct comm_args a = { .recv = x, .count = COUNT, .type = COMM_F32 };
	int64_t first = 0, ticket = 0;
	RANK_OK(c->ops->all_reduce(c, &a, &first, &err));
	RANK_OK(comm_wait(c, first, &err));
	int64_t begin = fixture_now_ms();
	if (r->rank == 2) { /* does not join */
		fixture_hold(r);
	} else {
		RANK_OK(c->ops->all_reduce(c, &a, &ticket, &err));
		fixture_report(r);
		pthread_t thread;
		if (r->rank == 0)
			RANK_CHECK(pthread_create(&thread, NULL, abort_thread, c) == 0);
		int rc = comm_wait(c, ticket, &err);
		if (rc != ERR_CANCELLED)
			fprintf(stderr, "rank %d: %d %s\n", r->rank, rc, err.message);
		RANK_CHECK(rc == ERR_CANCELLED);
		if (r->rank == 0)
			pthread_join(thread, NULL);
		RANK_CHECK(strstr(err.message, "aborted: the job was cancelled") != NULL);
		RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
		RANK_CHECK(fixture_do(c, COMM_ALL_REDUCE, &a, &again) == ERR_CANCELLED);
		RANK_CHECK(strcmp(err.message, again.message) == 0);
		RANK_OK(comm_wait(c, first, &again)); /* what was done stays done */
		fixture_report(r);
	}
	begin = fixture_now_ms();
	comm_close(c);
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
}

static void an_abort_ends_all(void **state)
{
	(void)state;
	for (int check = 0; check < 2; check++) {
		struct ranks all = { .size = RANKS, .body = aborted, .arg = check ? "check" : NULL };
		fixture_start(&all);
		for (int reports = 0; reports < 2; reports++) {
			fixture_await(&all, 0);
			fixture_await(&all, 1);
		}
		fixture_release(&all, 2);
		fixture_finish(&all, -1);
	}
}

/* ------------------------------------------------------------------ mismatch */

struct odd {
	enum comm_op usual, op;
	struct comm_args difference; /* what the odd rank has in place of the usual */
	const char *word;            /* of the message */
	int rank;                    /* the odd one */
};

static void differ(struct rank *r)
{
	const struct odd *odd = r->all->arg;
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "differ", true, FIXTURE_DEADLINE_MS);
	char *send = fixture_alloc(RANKS * COUNT * 8), *recv = fixture_alloc(RANKS * COUNT * 8);
	memset(send, 0, RANKS * COUNT * 8);
	struct comm_args a = { .send = send, .recv = recv, .count = COUNT, .type = COMM_F32 };
	RANK_OK(fixture_do(c, odd->usual, &a, &err)); /* one that fits, first */
	bool me = r->rank == odd->rank;
	if (me) {
		a.count += odd->difference.count;
		a.type = (enum comm_type)((int)a.type + (int)odd->difference.type);
		a.reduce = odd->difference.reduce;
		a.root = odd->op == COMM_SEND ? (r->rank + 1) % r->size : odd->difference.root;
	}
	int64_t begin = fixture_now_ms();
	int rc = fixture_do(c, me ? odd->op : odd->usual, &a, &err);
	if (rc != ERR_CONFLICT || strstr(err.message, odd->word) == NULL)
		fprintf(stderr, "rank %d: %d %s\n", r->rank, rc, err.message);
	RANK_CHECK(rc == ERR_CONFLICT);
	RANK_CHECK(strstr(err.message, odd->word) != NULL);
	RANK_CHECK(strstr(err.message, "#2 of group differ") != NULL);
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
	comm_close(c);
	free(send);
	free(recv);
}

static void every_rank_sees_a_difference(void **state)
{
	(void)state;
	static const struct odd cases[] = {
		{ COMM_ALL_REDUCE, COMM_ALL_REDUCE, { .count = 1 }, "count", 0 },
		{ COMM_ALL_REDUCE, COMM_ALL_REDUCE, { .type = COMM_BF16 }, "type", 0 },
		{ COMM_ALL_REDUCE, COMM_ALL_REDUCE, { .reduce = COMM_MAX }, "reduction", 0 },
		{ COMM_ALL_REDUCE, COMM_ALL_GATHER, { 0 }, "operation", 0 },
		{ COMM_ALL_REDUCE, COMM_BARRIER, { 0 }, "operation", 0 },
		{ COMM_ALL_REDUCE, COMM_SEND, { 0 }, "operation", 0 },
		{ COMM_BARRIER, COMM_ALL_TO_ALL, { 0 }, "operation", 0 },
		{ COMM_REDUCE_SCATTER, COMM_REDUCE_SCATTER, { .count = -3 }, "count", 0 },
		{ COMM_ALL_GATHER, COMM_ALL_GATHER, { .count = 5 }, "count", 0 },
		{ COMM_BROADCAST, COMM_BROADCAST, { .root = 1 }, "root", 0 },
		{ COMM_ALL_TO_ALL, COMM_ALL_TO_ALL, { .count = 2 }, "count", 0 },
	};
	for (size_t n = 0; n < ARRAY_LEN(cases); n++) {
		for (int rank = 0; rank < RANKS; rank++) {
			struct odd odd = cases[n];
			odd.rank = rank;
			fixture_run(RANKS, differ, &odd, NULL);
		}
	}
}

/* Counts between two ranks that only these two know. */
static void differ_between(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "between", true, FIXTURE_DEADLINE_MS);
	char data[2 * RANKS * 8] = { 0 };
	int64_t sends[RANKS] = { 8, 8, 8 }, receives[RANKS] = { 8, 8, 8 };
	if (r->rank == 0)
		sends[1] = 7;
	struct comm_args a = { .send = data,
		.recv = data + sizeof(data) / 2,
		.send_counts = sends,
		.recv_counts = receives,
		.type = COMM_BYTES };
	int64_t begin = fixture_now_ms();
	int rc = fixture_do(c, COMM_ALL_TO_ALL, &a, &err);
	if (r->rank < 2) /* the third may have had all its own */
		RANK_CHECK(rc == ERR_CONFLICT);
	RANK_CHECK(rc == 0 || (rc == ERR_CONFLICT && strstr(err.message, "count") != NULL));
	RANK_CHECK(fixture_do(c, COMM_BARRIER, &(struct comm_args){ 0 }, &err) == ERR_CONFLICT);
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
	comm_close(c);
}

static void a_difference_of_two_is_everyones(void **state)
{
	(void)state;
	fixture_run(RANKS, differ_between, NULL, NULL);
}

/* Two ranks have the same two calls the other way round. */
static void swapped(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "swapped", true, FIXTURE_DEADLINE_MS);
	float x[8] = { 0 };
	int64_t tickets[2] = { 0 };
	struct comm_args a = { .recv = x, .count = 4, .type = COMM_F32 };
	for (int n = 0; n < 2; n++)
		if (fixture_call(
				c, (n + r->rank) % 2 ? COMM_BROADCAST : COMM_ALL_REDUCE, &a, &tickets[n], &err) < 0)
			break;
	RANK_CHECK(comm_wait(c, tickets[0], &err) == ERR_CONFLICT);
	comm_close(c);
}

static void order_is_compared(void **state)
{
	(void)state;
	fixture_run(RANKS, swapped, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tickets_overlap),
		cmocka_unit_test(the_queue_has_an_end),
		cmocka_unit_test(a_close_waits_for_the_others),
		cmocka_unit_test(a_deadline_holds_in_the_queue),
		cmocka_unit_test(an_abort_ends_all),
		cmocka_unit_test(every_rank_sees_a_difference),
		cmocka_unit_test(a_difference_of_two_is_everyones),
		cmocka_unit_test(order_is_compared),
	};
	fixture_arguments(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
