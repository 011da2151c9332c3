/* SPDX-License-Identifier: Apache-2.0
 * The order of a device: a call comes behind what the stream had been given, and what the stream is
 * given behind comm_order comes after the call; nobody waits on the host. Over the emulation's
 * streams (tests/cuda), where a stream does what it likes unless it is told to wait. */
#include "tests/unit/workers/comm/comm_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
	RANKS = 3,
	COUNT = 4099,
	ROUNDS = 20,
	OLD_CALLS = COMM_PENDING_MAX + 3,
};

/* ------------------------------------------------------------------ work on a stream */

struct step {
	atomic_bool *gate; /* NULL: open */
	const float *from;
	float *to, value;
};

static void run_step(void *data)
{
	const struct step *s = data;
	while (s->gate != NULL && !atomic_load(s->gate))
		sched_yield();
	for (int i = 0; i < COUNT; i++)
		s->to[i] = s->from != NULL ? s->from[i] : s->value + (float)(i % 5);
}

static void give(const struct comm_device *d, struct step *s)
{
	RANK_CHECK(cudaLaunchHostFunc(d->stream, run_step, s) == cudaSuccess);
}

static float *device_alloc(int64_t count)
{
	void *p = NULL;
	RANK_CHECK(cudaMalloc(&p, (size_t)count * sizeof(float)) == cudaSuccess);
	return p;
}

/* ------------------------------------------------------------------ tests */

/* Everything of a round is given while the stream's first work has not begun. */
static void order(struct rank *r)
{
	struct err err = { 0 };
	const struct comm_device *d = fixture_device();
	struct comm *c = fixture_group(r, "order", true, FIXTURE_DEADLINE_MS);
	float *x = device_alloc(COUNT), *y = device_alloc(COUNT);
	RANK_OK(comm_register(c, x, COUNT * (int64_t)sizeof(float), &err));
	for (int round = 0; round < ROUNDS; round++) {
		atomic_bool gate = false;
		bool done = true;
		int64_t ticket = 0;
		struct step fill = { &gate, NULL, x, (float)(r->rank + round) };
		struct step take = { NULL, x, y, 0 }, clear = { NULL, NULL, x, -1 };
		struct comm_args a = { .recv = x, .count = COUNT, .type = COMM_F32 };
		give(d, &fill);
		RANK_OK(c->ops->all_reduce(c, &a, &ticket, &err));
		RANK_OK(comm_order(c, ticket, &err));
		give(d, &take);
		give(d, &clear);
		RANK_OK(comm_test(c, ticket, &done, &err));
		RANK_CHECK(!done);
		atomic_store(&gate, true);
		RANK_CHECK(cudaStreamSynchronize(d->stream) == cudaSuccess);
		RANK_OK(comm_wait(c, ticket, &err));
		for (int i = 0; i < COUNT; i++)
			RANK_CHECK(y[i] == (float)(3 * (round + i % 5) + 3));
	}
	comm_close(c);
	RANK_CHECK(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess);
}

static void a_stream_waits_and_the_host_does_not(void **state)
{
	(void)state;
	fixture_run(RANKS, order, NULL, NULL);
}

/* Calls that are ordered behind each other by the group alone, and tickets that are long done. */
static void chain(struct rank *r)
{
	struct err err = { 0 };
	const struct comm_device *d = fixture_device();
	struct comm *c = fixture_group(r, "chain", false, FIXTURE_DEADLINE_MS);
	float *x = device_alloc(COUNT), *y = device_alloc(COUNT);
	struct step fill = { NULL, NULL, x, (float)r->rank }, take = { NULL, x, y, 0 };
	int64_t ticket = 0;
	give(d, &fill);
	for (int n = 0; n < OLD_CALLS; n++) {
		struct comm_args a = {
			.recv = x, .count = COUNT, .type = COMM_F32, .root = n % r->size, .reduce = COMM_MAX
		};
		if (n == COMM_PENDING_MAX)
			RANK_OK(comm_wait(c, OLD_CALLS - COMM_PENDING_MAX, &err));
		RANK_OK(n < 2 ? c->ops->all_reduce(c, &a, &ticket, &err)
					  : c->ops->broadcast(c, &a, &ticket, &err));
	}
	RANK_OK(comm_order(c, ticket, &err));
	RANK_OK(comm_order(c, 1, &err));
	RANK_CHECK(comm_order(c, ticket + 1, &err) == ERR_INVALID_VALUE);
	give(d, &take);
	RANK_CHECK(cudaStreamSynchronize(d->stream) == cudaSuccess);
	for (int i = 0; i < COUNT; i++)
		RANK_CHECK(y[i] == (float)(r->size - 1 + i % 5));
	comm_close(c);
	RANK_CHECK(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess);
}

static void a_group_keeps_its_order(void **state)
{
	(void)state;
	fixture_run(RANKS, chain, NULL, NULL);
}

/* Each rank posts what it will receive before it sends: the first calls, which connect, wait for
 * nobody on the host. */
static void post_first(struct rank *r)
{
	struct err err = { 0 };
	struct comm *groups[2];
	float *x = device_alloc(2 * COUNT);
	int64_t tickets[2];
	for (int g = 0; g < 2; g++) {
		struct comm_options o = { .name = g == 0 ? "down" : "up",
			.rank = r->rank,
			.size = 2,
			.store = r->store,
			.device = fixture_device() };
		RANK_OK(comm_open(&o, &groups[g], &err));
	}
	struct comm_args in = { .recv = x, .count = COUNT, .type = COMM_F32, .root = 1 - r->rank };
	struct comm_args out = { .send = x + COUNT, .count = COUNT, .type = COMM_F32, .root = in.root };
	struct comm *from = groups[r->rank], *to = groups[1 - r->rank];
	struct step fill = { NULL, NULL, x + COUNT, (float)r->rank };
	give(fixture_device(), &fill);
	RANK_OK(from->ops->recv(from, &in, &tickets[0], &err));
	RANK_OK(to->ops->send(to, &out, &tickets[1], &err));
	RANK_OK(comm_wait(from, tickets[0], &err));
	RANK_OK(comm_wait(to, tickets[1], &err));
	for (int i = 0; i < COUNT; i++)
		RANK_CHECK(x[i] == (float)(1 - r->rank + i % 5));
	for (int g = 0; g < 2; g++)
		comm_close(groups[g]);
	RANK_CHECK(cudaFree(x) == cudaSuccess);
}

static void neighbours_receive_before_they_send(void **state)
{
	(void)state;
	fixture_run(2, post_first, NULL, NULL);
}

/* A group of one copies in the stream's order. */
static void alone(struct rank *r)
{
	struct err err = { 0 };
	const struct comm_device *d = fixture_device();
	struct comm *c = fixture_group(r, "alone", true, FIXTURE_DEADLINE_MS);
	float *x = device_alloc(COUNT), *y = device_alloc(COUNT);
	atomic_bool gate = false;
	int64_t ticket = 0;
	struct step fill = { &gate, NULL, x, 7 };
	struct comm_args a = { .send = x, .recv = y, .count = COUNT, .type = COMM_F32 };
	give(d, &fill);
	RANK_OK(c->ops->reduce_scatter(c, &a, &ticket, &err));
	RANK_OK(comm_order(c, ticket, &err));
	atomic_store(&gate, true);
	RANK_OK(comm_wait(c, ticket, &err));
	for (int i = 0; i < COUNT; i++)
		RANK_CHECK(y[i] == (float)(7 + i % 5));
	comm_close(c);
	RANK_CHECK(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess);
}

static void one_rank_copies_in_order(void **state)
{
	(void)state;
	fixture_run(1, alone, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stream_waits_and_the_host_does_not),
		cmocka_unit_test(a_group_keeps_its_order),
		cmocka_unit_test(neighbours_receive_before_they_send),
		cmocka_unit_test(one_rank_copies_in_order),
	};
	fixture_arguments(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
