/* SPDX-License-Identifier: Apache-2.0
 * The real NCCL without a device: it is loaded, its identifier goes through a store, and what is
 * missing is named. What it does with devices: comm_device_test.c and the transport's other tests,
 * over a stand-in. */
#include "tests/unit/workers/comm/comm_fixture.h"
#include "workers/comm/comm_nccl_private.h"

enum {
	SKIPPED = 77,
	SHORT_MS = 300,
	RANKS = 3,
};

static struct comm_options options_of(const struct rank *r, const char *name, int size)
{
	static const struct comm_device device; /* the first, its default stream */
	return (struct comm_options){ .name = name,
		.rank = r->rank,
		.size = size,
		.store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.device = &device };
}

static bool has_device(void)
{
	int count = 0;
	return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/* ------------------------------------------------------------------ meeting */

struct ids {
	ncclUniqueId id[RANKS];
};

static void exchange(struct rank *r)
{
	struct err err = { 0 };
	struct ids *shared = r->all->shared;
	const struct comm_nccl_library *l = NULL;
	struct comm_options o = options_of(r, "ids", r->size);
	RANK_OK(comm_nccl_library(&l, &err));
	RANK_OK(comm_nccl_exchange(&o, l, comm_nccl_now_us() + FIXTURE_DEADLINE_MS * INT64_C(1000),
		&shared->id[r->rank], &err));
}

static void the_identifier_goes_through_the_store(void **state)
{
	(void)state;
	struct ids *shared = fixture_shared(sizeof(*shared));
	static const ncclUniqueId zero;
	fixture_run(RANKS, exchange, NULL, shared);
	assert_memory_not_equal(&shared->id[0], &zero, sizeof(zero));
	for (int r = 1; r < RANKS; r++)
		assert_memory_equal(&shared->id[0], &shared->id[r], sizeof(zero));
	munmap(shared, sizeof(*shared));
}

static void other_version(struct rank *r)
{
	struct err err = { 0 };
	const struct comm_nccl_library *l = NULL;
	struct comm_options o = options_of(r, "versions", r->size);
	ncclUniqueId id;
	int64_t deadline_us = comm_nccl_now_us() + FIXTURE_DEADLINE_MS * INT64_C(1000);
	RANK_OK(comm_nccl_library(&l, &err));
	struct comm_nccl_library mine = *l;
	mine.version += r->rank == 0 ? 0 : 1;
	int rc = comm_nccl_exchange(&o, &mine, deadline_us, &id, &err);
	RANK_CHECK(rc == (r->rank == 0 ? 0 : ERR_CONFLICT));
	if (r->rank > 0)
		RANK_CHECK(strstr(err.message, "need the same") != NULL);
}

static void versions_must_agree(void **state)
{
	(void)state;
	fixture_run(2, other_version, NULL, NULL);
}

/* Neither the host group nor the identifier waits longer than the options say. */
static void nobody(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	const struct comm_nccl_library *l = NULL;
	ncclUniqueId id;
	struct comm_options o = options_of(r, "nobody", 2);
	o.rank = 1;
	o.open_ms = SHORT_MS;
	int64_t begin = fixture_now_ms();
	RANK_OK(comm_nccl_library(&l, &err));
	int rc = comm_nccl_exchange(&o, l, comm_nccl_now_us() + SHORT_MS * INT64_C(1000), &id, &err);
	RANK_CHECK(rc == ERR_TIMEOUT && strstr(err.message, "rank 0") != NULL);
	RANK_CHECK(comm_open(&o, &c, &err) == ERR_TIMEOUT);
	RANK_CHECK(strstr(err.message, "group nobody") != NULL);
	int64_t ms = fixture_now_ms() - begin;
	RANK_CHECK(ms >= SHORT_MS && ms <= FIXTURE_PROMPT_MS);
}

static void a_rank_never_comes(void **state)
{
	(void)state;
	fixture_run(1, nobody, NULL, NULL);
}

/* ------------------------------------------------------------------ what is missing */

static void no_device(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = options_of(r, "bare", r->size);
	int64_t begin = fixture_now_ms();
	int rc = comm_open(&o, &c, &err);
	fprintf(stderr, "rank %d: %d %s\n", r->rank, rc, err.message);
	RANK_CHECK(rc == ERR_UNAVAILABLE);
	RANK_CHECK(strstr(err.message, "group bare") && strstr(err.message, "CUDA: "));
	RANK_CHECK(fixture_now_ms() - begin <= FIXTURE_PROMPT_MS);
}

static void a_missing_device_is_named(void **state)
{
	(void)state;
	if (has_device())
		return; /* ranks that share it are another matter */
	fixture_run(2, no_device, NULL, NULL);
}

/* What NCCL itself says without a driver, in our code. */
static void no_driver(struct rank *r)
{
	struct err err = { 0 };
	const struct comm_nccl_library *l = NULL;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t nccl = NULL;
	(void)r;
	RANK_OK(comm_nccl_library(&l, &err));
	RANK_CHECK(l->GetUniqueId(&id) == ncclSuccess);
	config.blocking = 0;
	ncclResult_t rc = l->CommInitRankConfig(&nccl, 1, id, 0, &config);
	RANK_CHECK(rc != ncclSuccess && rc != ncclInProgress);
	RANK_CHECK(comm_nccl_failed(l, NULL, rc, "group x", &err) == ERR_UNAVAILABLE);
	fprintf(stderr, "%s\n", err.message);
	RANK_CHECK(strstr(err.message, "NCCL_DEBUG=INFO") != NULL);
	RANK_CHECK(strstr(err.message, "driver") != NULL);
}

static void nccl_says_what_it_needs(void **state)
{
	(void)state;
	if (has_device())
		return;
	fixture_run(1, no_driver, NULL, NULL);
}

static void no_library(struct rank *r)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = options_of(r, "library", 2);
	RANK_CHECK(setenv("TRAINYARD_NCCL_LIBRARY", r->all->arg, 1) == 0);
	int rc = comm_open(&o, &c, &err);
	fprintf(stderr, "%d %s\n", rc, err.message);
	RANK_CHECK(rc == ERR_UNAVAILABLE);
	RANK_CHECK(strstr(err.message, r->all->arg) && strstr(err.message, "TRAINYARD_NCCL_LIBRARY"));
	RANK_CHECK(comm_open(&o, &c, &err) == ERR_UNAVAILABLE); /* and again */
}

static void a_missing_library_is_named(void **state)
{
	(void)state;
	fixture_run(1, no_library, "libnccl-of-nowhere.so.2", NULL);
	fixture_run(1, no_library, "libm.so.6", NULL); /* a library, but not NCCL */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_identifier_goes_through_the_store),
		cmocka_unit_test(versions_must_agree),
		cmocka_unit_test(a_rank_never_comes),
		cmocka_unit_test(a_missing_device_is_named),
		cmocka_unit_test(nccl_says_what_it_needs),
		cmocka_unit_test(a_missing_library_is_named),
	};
	struct err err = { 0 };
	const struct comm_nccl_library *library = NULL;
	/* In a process of its own: what is loaded here the ranks would have too. */
	pid_t pid = fork();
	int status = 0;
	if (pid == 0)
		_exit(comm_nccl_library(&library, &err) < 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	if (status != 0) {
		fprintf(stderr, "skipped: NCCL is not installed\n");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
