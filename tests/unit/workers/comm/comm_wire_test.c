/* SPDX-License-Identifier: Apache-2.0
 * The wire by itself, where nobody above it minds deadlines too: waits end by themselves, lost
 * ranks are seen by those that wait for others, and what another rank writes into shared memory is
 * not believed. */
#include "tests/unit/workers/comm/comm_fixture.h"
#include "workers/comm/comm_private.h"
#include "workers/comm/comm_shm_private.h"

#include <pthread.h>

enum {
	RANKS = 3,
	SHORT_MS = 200,
	LARGE = 48 << 20, /* bytes that no ring and no socket's buffers hold */
	SMALL = 1000,
	ENDLESS = 1 << 30, /* bytes: half a second's and more */
};

static int64_t deadline_us(int64_t ms)
{
	return clock_mono_us(clock_system()) + ms * 1000;
}

static struct comm_options options_of(struct rank *r)
{
	return (struct comm_options){ .name = "wire",
		.rank = r->rank,
		.size = r->size,
		.store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.transport = fixture_transport };
}

static struct comm_wire *open_wire(struct rank *r)
{
	struct err err = { 0 };
	struct comm_wire *w = NULL;
	struct comm_options o = options_of(r);
	if (fixture_transport == COMM_SHM)
		RANK_OK(comm_shm_open(&o, deadline_us(FIXTURE_DEADLINE_MS), &w, &err));
	else
		RANK_OK(comm_gloo_open(&o, deadline_us(FIXTURE_DEADLINE_MS), &w, &err));
	return w;
}

static int begin(struct comm_wire *w, int peer, bool out, char *data, int64_t bytes)
{
	struct err err = { 0 };
	int handle = -1;
	struct comm_message m = {
		.peer = peer, .slot = COMM_SLOT_DATA, .out = out, .data = data, .bytes = bytes
	};
	RANK_OK(w->ops->start(w, &m, deadline_us(FIXTURE_DEADLINE_MS), &handle, &err));
	return handle;
}

/* Ends well before FIXTURE_DEADLINE_MS, with this code and about this rank. */
static void end(struct comm_wire *w, int handle, int64_t ms, int want, int want_peer)
{
	struct err err = { 0 };
	int peer = -1;
	int64_t from = fixture_now_ms();
	int rc = w->ops->finish(w, handle, deadline_us(ms), &peer, &err);
	if (rc != want || peer != want_peer)
		fprintf(stderr, "%d about rank %d: %s\n", rc, peer, err.message);
	RANK_CHECK(rc == want);
	RANK_CHECK(peer == want_peer);
	RANK_CHECK(fixture_now_ms() - from <= FIXTURE_PROMPT_MS);
}

/* ------------------------------------------------------------------ waits end */

static void wait_in_vain(struct rank *r)
{
	struct err err = { 0 };
	struct comm_wire *w = open_wire(r);
	char *data = fixture_alloc(LARGE);
	if (r->rank == 0) {
		int64_t from = fixture_now_ms();
		end(w, begin(w, 1, false, data, SMALL), SHORT_MS, ERR_TIMEOUT, 1);
		RANK_CHECK(fixture_now_ms() - from >= SHORT_MS - 1);
		end(w, begin(w, 1, true, data, LARGE), SHORT_MS, ERR_TIMEOUT, 1);
		RANK_CHECK(w->ops->check(w, deadline_us(0), &err) == ERR_TIMEOUT);
		RANK_OK(w->ops->check(w, deadline_us(FIXTURE_DEADLINE_MS), &err));
	}
	fixture_report(r);
	fixture_hold(r);
	w->ops->destroy(w);
	free(data);
}

static void run_held(int size, void (*body)(struct rank *r))
{
	struct ranks all = { .size = size, .body = body };
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	for (int r = 0; r < all.size; r++)
		fixture_release(&all, r);
	fixture_finish(&all, -1);
}

static void a_wait_ends_at_its_deadline(void **state)
{
	(void)state;
	run_held(2, wait_in_vain);
}

static void *interrupt_thread(void *data)
{
	struct comm_wire *w = data;
	w->ops->interrupt(w);
	return NULL;
}

static void interrupted(struct rank *r)
{
	struct err err = { 0 };
	struct comm_wire *w = open_wire(r);
	char data[SMALL];
	if (r->rank == 0) {
		int handle = begin(w, 1, false, data, SMALL);
		pthread_t thread;
		RANK_CHECK(pthread_create(&thread, NULL, interrupt_thread, w) == 0);
		end(w, handle, FIXTURE_DEADLINE_MS, ERR_CANCELLED, 1);
		pthread_join(thread, NULL);
		end(w, handle, FIXTURE_DEADLINE_MS, ERR_CANCELLED, 1); /* it stays */
		RANK_CHECK(w->ops->check(w, deadline_us(FIXTURE_DEADLINE_MS), &err) == ERR_CANCELLED);
	}
	fixture_report(r);
	fixture_hold(r);
	w->ops->destroy(w);
}

static void an_interrupt_ends_a_wait(void **state)
{
	(void)state;
	run_held(2, interrupted);
}

/* ------------------------------------------------------------------ lost ranks */

/* Rank 0 waits for rank 1, which is there and silent; rank 2 ends. */
static void lose_another(struct rank *r)
{
	char data[SMALL];
	struct comm_wire *w = open_wire(r);
	fixture_report(r);
	if (r->rank == 2) {
		fixture_hold(r); /* until all have opened */
		_exit(0);        /* as a crash: nothing is closed */
	}
	if (r->rank == 0)
		end(w, begin(w, 1, false, data, SMALL), FIXTURE_DEADLINE_MS, ERR_NETWORK, 2);
	fixture_report(r);
	fixture_hold(r);
	w->ops->destroy(w);
}

static void a_lost_rank_ends_waits_for_others(void **state)
{
	(void)state;
	struct ranks all = { .size = RANKS, .body = lose_another };
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	fixture_release(&all, 2);
	for (int r = 0; r < 2; r++)
		fixture_await(&all, r);
	for (int r = 0; r < 2; r++)
		fixture_release(&all, r);
	fixture_finish(&all, -1);
}

/* Rank 1 ends in the middle of a message to rank 0: right behind the start of one that nothing
 * could move meanwhile. Its pages are the kernel's page of zeros. */
static void lose_halfway(struct rank *r)
{
	struct comm_wire *w = open_wire(r);
	char *data = mmap(
		NULL, ENDLESS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	RANK_CHECK(data != MAP_FAILED);
	if (r->rank == 1) {
		fixture_hold(r);
		(void)begin(w, 0, true, data, ENDLESS);
		_exit(0);
	}
	int handle = begin(w, 1, false, data, ENDLESS);
	fixture_report(r);
	end(w, handle, FIXTURE_DEADLINE_MS, ERR_NETWORK, 1);
	w->ops->destroy(w);
	munmap(data, ENDLESS);
}

static void an_unfinished_message_is_lost(void **state)
{
	(void)state;
	struct ranks all = { .size = 2, .body = lose_halfway };
	fixture_start(&all);
	fixture_await(&all, 0);
	fixture_release(&all, 1);
	fixture_finish(&all, -1);
}

/* What a rank had sent is taken although it is gone. */
static void leave_behind(struct rank *r)
{
	struct comm_wire *w = open_wire(r);
	char data[SMALL];
	memset(data, r->rank == 1 ? 7 : 0, sizeof(data));
	fixture_report(r);
	if (r->rank == 1) {
		fixture_hold(r); /* until both have opened */
		(void)begin(w, 0, true, data, SMALL);
		_exit(0);
	}
	fixture_hold(r); /* until it is gone */
	end(w, begin(w, 1, false, data, SMALL), FIXTURE_DEADLINE_MS, 0, 1);
	for (int i = 0; i < SMALL; i++)
		RANK_CHECK(data[i] == 7);
	end(w, begin(w, 1, false, data, SMALL), FIXTURE_DEADLINE_MS, ERR_NETWORK, 1);
	w->ops->destroy(w);
}

static void what_was_sent_is_taken(void **state)
{
	(void)state;
	if (fixture_transport != COMM_SHM)
		return; /* Gloo sends nothing before the other has asked */
	struct ranks all = { .size = 2, .body = leave_behind };
	siginfo_t info;
	fixture_start(&all);
	for (int r = 0; r < all.size; r++)
		fixture_await(&all, r);
	fixture_release(&all, 1);
	assert_int_equal(waitid(P_PID, (id_t)all.pids[1], &info, WEXITED | WNOWAIT), 0);
	fixture_release(&all, 0);
	fixture_finish(&all, -1);
}

/* ------------------------------------------------------------------ shared memory */

/* Rank 1 is no wire, only its links: it writes what it likes. */
static void misbehave(struct rank *r)
{
	struct err err = { 0 };
	char data[SMALL];
	if (r->rank == 0) {
		struct comm_wire *w = open_wire(r);
		fixture_hold(r);
		bool count = *(const char *)r->all->arg == 'c';
		end(w, begin(w, 1, false, data, SMALL), FIXTURE_DEADLINE_MS,
			count ? ERR_NETWORK : ERR_CONFLICT, 1);
		w->ops->destroy(w);
		return;
	}
	struct comm_options o = options_of(r);
	struct comm_shm_links l = { 0 };
	RANK_OK(comm_shm_meet(&o, deadline_us(FIXTURE_DEADLINE_MS), &l, &err));
	struct comm_shm_ring *ring = l.links[0].out;
	if (*(const char *)r->all->arg == 'c') {
		atomic_store(&ring->filled, COMM_SHM_SLOTS + 1);
	} else {
		ring->frames[0] = (struct comm_shm_frame){ .bytes = INT64_MAX, .slot = COMM_SLOT_DATA };
		atomic_store(&ring->filled, 1);
	}
	fixture_report(r);
	fixture_hold(r);
	comm_shm_links_finish(&l);
}

static void run_misbehaving(const char *how)
{
	if (fixture_transport != COMM_SHM)
		return;
	struct ranks all = { .size = 2, .body = misbehave, .arg = how };
	fixture_start(&all);
	fixture_await(&all, 1);
	fixture_release(&all, 0);
	siginfo_t info;
	assert_int_equal(waitid(P_PID, (id_t)all.pids[0], &info, WEXITED | WNOWAIT), 0);
	fixture_release(&all, 1);
	fixture_finish(&all, -1);
}

static void counts_beyond_the_ring_are_refused(void **state)
{
	(void)state;
	run_misbehaving("count");
}

static void lengths_are_our_own(void **state)
{
	(void)state;
	run_misbehaving("length");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_wait_ends_at_its_deadline),
		cmocka_unit_test(an_interrupt_ends_a_wait),
		cmocka_unit_test(a_lost_rank_ends_waits_for_others),
		cmocka_unit_test(an_unfinished_message_is_lost),
		cmocka_unit_test(what_was_sent_is_taken),
		cmocka_unit_test(counts_beyond_the_ring_are_refused),
		cmocka_unit_test(lengths_are_our_own),
	};
	fixture_arguments(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
