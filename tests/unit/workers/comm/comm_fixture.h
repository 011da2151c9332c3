/* SPDX-License-Identifier: Apache-2.0
 * Ranks as real processes: a test's body runs in a fork for each, they meet in a temporary folder,
 * and a body that fails says where and ends its process. Their parent has a pipe to and from each,
 * and memory that all share. A program runs over the transport that its first argument names; with
 * FIXTURE_DEVICE there is a CUDA runtime (tests/cuda/emulation), and "nccl" is one too. */
#pragma once

#include "core/base/clock.h"
#include "core/base/file.h"
#include "tests/support/check.h"
#include "workers/comm/comm.h"
#include "workers/comm/comm_store.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef FIXTURE_DEVICE
#include <cuda_runtime_api.h>
#endif

enum {
	FIXTURE_RANKS_MAX = 8,
	FIXTURE_LIFE_S = 400, /* a rank that hangs ends by SIGALRM, and fails its test */
	/* What is noticed comes within PROMPT, on a machine that is as busy as can be; what is waited
	 * for to its deadline takes ten times that. */
	FIXTURE_PROMPT_MS = 20000,
	FIXTURE_DEADLINE_MS = 200000,
};

/* In a rank: cmocka's own assertions belong to the parent. */
#define RANK_CHECK(condition)                                                     \
	do {                                                                          \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: rank: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                             \
		}                                                                         \
	} while (0)
#define RANK_OK(call)                                                                             \
	do {                                                                                          \
		int _rc = (call);                                                                         \
		if (_rc < 0) {                                                                            \
			fprintf(                                                                              \
				stderr, "%s:%d: rank: %s: %d %s\n", __FILE__, __LINE__, #call, _rc, err.message); \
			_exit(1);                                                                             \
		}                                                                                         \
	} while (0)

static enum comm_transport fixture_transport = COMM_AUTO;
static bool fixture_on_device;

/* argv: the transport, then the name of one test. */
static inline void fixture_arguments(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "shm") == 0)
		fixture_transport = COMM_SHM;
	else if (argc > 1 && strcmp(argv[1], "tcp") == 0)
		fixture_transport = COMM_TCP;
	else if (argc > 1 && strcmp(argv[1], "nccl") == 0)
		fixture_on_device = true;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
}

/* The rank's device where groups are in its memory; its stream lives as long as the process. */
static inline const struct comm_device *fixture_device(void)
{
	static struct comm_device device;
#ifdef FIXTURE_DEVICE
	if (fixture_on_device && device.stream == NULL)
		RANK_CHECK(cudaSetDevice(0) == cudaSuccess &&
			cudaStreamCreate((cudaStream_t *)&device.stream) == cudaSuccess);
#endif
	return fixture_on_device ? &device : NULL;
}

struct ranks;

struct rank {
	const struct ranks *all;
	int rank, size;
	struct comm_store *store;
	int from_parent, to_parent;
};

struct ranks {
	int size;
	void (*body)(struct rank *r);
	const void *arg;
	void *shared; /* written by ranks, read by the parent; NULL without */
	char dir[FILE_PATH_MAX];
	pid_t pids[FIXTURE_RANKS_MAX];
	int to[FIXTURE_RANKS_MAX], from[FIXTURE_RANKS_MAX];
};

static inline int64_t fixture_now_ms(void)
{
	return clock_mono_us(clock_system()) / 1000;
}

static inline void *fixture_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(p != MAP_FAILED);
	return p;
}

static inline void fixture_rank_main(struct ranks *all, int n, int from_parent, int to_parent)
{
	struct err err = { 0 };
	struct rank r = { all, n, all->size, NULL, from_parent, to_parent };
	alarm(FIXTURE_LIFE_S);
	RANK_OK(comm_store_folder_open(all->dir, &r.store, &err));
	all->body(&r);
	comm_store_destroy(r.store);
}

static inline void fixture_start(struct ranks *all)
{
	snprintf(all->dir, sizeof(all->dir), "/tmp/trainyard-comm-XXXXXX");
	assert_non_null(mkdtemp(all->dir));
	(void)fflush(NULL);
	for (int n = 0; n < all->size; n++) {
		int down[2], up[2];
		assert_int_equal(pipe(down), 0);
		assert_int_equal(pipe(up), 0);
		all->pids[n] = fork();
		assert_true(all->pids[n] >= 0);
		if (all->pids[n] == 0) {
			close(down[1]);
			close(up[0]);
			fixture_rank_main(all, n, down[0], up[1]);
			exit(0); /* not _exit: the sanitizer looks for leaks here */
		}
		close(down[0]);
		close(up[1]);
		all->to[n] = down[1];
		all->from[n] = up[0];
	}
}

/* A byte from the rank, or failure when it ended instead. */
static inline void fixture_await(struct ranks *all, int n)
{
	char byte;
	assert_int_equal(read(all->from[n], &byte, 1), 1);
}

static inline void fixture_release(struct ranks *all, int n)
{
	assert_int_equal(write(all->to[n], "x", 1), 1);
}

static inline void fixture_report(struct rank *r)
{
	RANK_CHECK(write(r->to_parent, "x", 1) == 1);
}

static inline void fixture_hold(struct rank *r)
{
	char byte;
	RANK_CHECK(read(r->from_parent, &byte, 1) == 1);
}

/* Waits for all ranks; all but the victim (-1: none) must have ended well. */
static inline void fixture_finish(struct ranks *all, int victim)
{
	int failed = 0;
	for (int n = 0; n < all->size; n++) {
		int status = 0;
		if (n == victim)
			continue;
		assert_int_equal(waitpid(all->pids[n], &status, 0), all->pids[n]);
		if (status != 0) {
			fprintf(stderr, "rank %d of %d: status %#x\n", n, all->size, (unsigned)status);
			failed++;
		}
	}
	if (victim >= 0) {
		kill(all->pids[victim], SIGKILL);
		assert_int_equal(waitpid(all->pids[victim], NULL, 0), all->pids[victim]);
	}
	for (int n = 0; n < all->size; n++) {
		close(all->to[n]);
		close(all->from[n]);
	}
	struct err err = { 0 };
	assert_int_equal(file_remove_tree(all->dir, &err), 0);
	assert_int_equal(failed, 0);
}

/* A test of many meshes takes one in so many, each another one: the first by a seed, and fewer
 * under sanitizers, which are slow. `./run test every` takes all. */
enum { FIXTURE_SPARED = 2, FIXTURE_SPARED_SANITIZED = 5 };
static inline bool fixture_takes(void)
{
	static int64_t asked = -1;
	bool sanitized = getenv("TRAINYARD_SANITIZED") != NULL;
	int64_t spared = sanitized ? FIXTURE_SPARED_SANITIZED : FIXTURE_SPARED;
	if (getenv("TRAINYARD_TEST_EVERY") != NULL)
		return true;
	if (asked < 0) {
		struct check_random random = check_random_start();
		asked = check_random_range(&random, 0, spared - 1);
	}
	return asked++ % spared == 0;
}

static inline void fixture_run(
	int size, void (*body)(struct rank *r), const void *arg, void *shared)
{
	struct ranks all = { .size = size, .body = body, .arg = arg, .shared = shared };
	fixture_start(&all);
	fixture_finish(&all, -1);
}

static inline struct comm *fixture_group(
	struct rank *r, const char *name, bool check, int64_t deadline_ms)
{
	struct err err = { 0 };
	struct comm *c = NULL;
	struct comm_options o = {
		.name = name,
		.rank = r->rank,
		.size = r->size,
		.store = r->store,
		.open_ms = FIXTURE_DEADLINE_MS,
		.deadline_ms = deadline_ms,
		.check = check,
		.transport = fixture_transport,
		.device = fixture_device(),
	};
	RANK_OK(comm_open(&o, &c, &err));
	return c;
}

/* The function of one operation. */
static inline int fixture_call(struct comm *c, enum comm_op op, const struct comm_args *a,
	int64_t *ret_ticket, struct err *err)
{
	switch (op) {
	case COMM_ALL_REDUCE: return c->ops->all_reduce(c, a, ret_ticket, err);
	case COMM_REDUCE_SCATTER: return c->ops->reduce_scatter(c, a, ret_ticket, err);
	case COMM_ALL_GATHER: return c->ops->all_gather(c, a, ret_ticket, err);
	case COMM_BROADCAST: return c->ops->broadcast(c, a, ret_ticket, err);
	case COMM_ALL_TO_ALL: return c->ops->all_to_all(c, a, ret_ticket, err);
	case COMM_SEND: return c->ops->send(c, a, ret_ticket, err);
	case COMM_RECV: return c->ops->recv(c, a, ret_ticket, err);
	case COMM_BARRIER:
	case COMM_OP_COUNT: break;
	}
	return c->ops->barrier(c, a, ret_ticket, err);
}

/* One call to its end. */
static inline int fixture_do(
	struct comm *c, enum comm_op op, const struct comm_args *a, struct err *err)
{
	int64_t ticket = 0;
	int rc = fixture_call(c, op, a, &ticket, err);
	return rc < 0 ? rc : comm_wait(c, ticket, err);
}

static inline void *fixture_alloc(int64_t bytes)
{
	void *p = malloc(bytes > 0 ? (size_t)bytes : 1);
	RANK_CHECK(p != NULL);
	return p;
}

/* Of this process, as the kernel's status calls it: "VmHWM:" the most since the last reset. */
static inline int64_t fixture_memory_kib(const char *what)
{
	char line[256];
	int64_t kib = -1;
	FILE *file = fopen("/proc/self/status", "re");
	RANK_CHECK(file != NULL);
	while (fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, what, strlen(what)) == 0)
			kib = strtoll(line + strlen(what), NULL, 10);
	fclose(file);
	return kib;
}

static inline void fixture_memory_reset(void)
{
	FILE *peak = fopen("/proc/self/clear_refs", "we");
	RANK_CHECK(peak != NULL && fputs("5", peak) >= 0 && fclose(peak) == 0);
}
