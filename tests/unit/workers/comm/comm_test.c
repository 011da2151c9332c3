/* SPDX-License-Identifier: Apache-2.0
 * What is refused, and the group of one rank. */
#include "tests/support/check.h"
#include "workers/comm/comm.h"

static void options_are_checked(void **state)
{
	(void)state;
	static const struct comm_options wrong[] = {
		{ .name = NULL, .size = 1 },
		{ .name = "", .size = 1 },
		{ .name = "../x", .size = 1 },
		{ .name = "Upper", .size = 1 },
		{ .name = "a-name-that-is-longer-than-a-name-of-a-group-may-be", .size = 1 },
		{ .name = "x", .size = 0 },
		{ .name = "x", .size = COMM_RANKS_MAX + 1 },
		{ .name = "x", .size = 1, .rank = 1 },
		{ .name = "x", .size = 2 }, /* no store */
		{ .name = "x", .size = 1, .deadline_ms = -1 },
	};
	for (size_t n = 0; n < ARRAY_LEN(wrong); n++) {
		struct err err = { 0 };
		struct comm *c = NULL;
		assert_int_equal(comm_open(&wrong[n], &c, &err), ERR_INVALID_VALUE);
		assert_null(c);
	}
}

static struct comm *alone(void)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = { .name = "alone", .size = 1 };
	assert_int_equal(comm_open(&o, &c, &err), 0);
	return c;
}

static void arguments_are_checked(void **state)
{
	(void)state;
	struct comm *c = alone();
	struct err err = { 0 };
	float x[2] = { 1, 2 };
	int64_t ticket = 77, two = 2;
	struct comm_args a = { .recv = x, .count = 2, .type = COMM_BYTES };
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .count = 2 };
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .recv = x, .count = -1 };
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .recv = x, .count = INT64_MAX };
	assert_int_equal(c->ops->broadcast(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .recv = x, .count = 2, .root = 1 };
	assert_int_equal(c->ops->broadcast(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .send = x, .count = 2, .root = 0 };
	assert_int_equal(c->ops->send(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .send = x, .recv = x, .count = 1, .send_counts = &two };
	assert_int_equal(c->ops->all_to_all(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	a = (struct comm_args){ .recv = x, .count = 2, .deadline_ms = -1 };
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), ERR_INVALID_VALUE);
	assert_int_equal(ticket, 77);
	a.deadline_ms = 0; /* nothing of this hurt the group */
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), 0);
	assert_int_equal(ticket, 1);
	comm_close(c);
}

static void one_rank_has_its_own_results(void **state)
{
	(void)state;
	struct comm *c = alone();
	struct err err = { 0 };
	float in[3] = { 1, 2, 3 }, out[3] = { 0 };
	int64_t ticket = 0;
	bool done = false;
	struct comm_args a = { .send = in, .recv = out, .count = 3 };
	int (*const calls[])(struct comm *, const struct comm_args *, int64_t *, struct err *) = {
		c->ops->all_reduce, c->ops->reduce_scatter, c->ops->all_gather, c->ops->all_to_all
	};
	for (size_t n = 0; n < ARRAY_LEN(calls); n++) {
		memset(out, 0, sizeof(out));
		assert_int_equal(calls[n](c, &a, &ticket, &err), 0);
		assert_int_equal(ticket, (int64_t)n + 1);
		assert_int_equal(comm_wait(c, ticket, &err), 0);
		assert_memory_equal(in, out, sizeof(in));
	}
	assert_int_equal(c->ops->barrier(c, &(struct comm_args){ 0 }, &ticket, &err), 0);
	assert_int_equal(comm_test(c, ticket, &done, &err), 0);
	assert_true(done);
	assert_int_equal(comm_wait(c, ticket + 1, &err), ERR_INVALID_VALUE);
	comm_abort(c, "enough");
	comm_abort(c, "more");
	assert_int_equal(c->ops->all_reduce(c, &a, &ticket, &err), ERR_CANCELLED);
	assert_non_null(strstr(err.message, "enough"));
	assert_int_equal(comm_wait(c, ticket, &err), 0);
	comm_close(c);
	comm_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_checked),
		cmocka_unit_test(arguments_are_checked),
		cmocka_unit_test(one_rank_has_its_own_results),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
