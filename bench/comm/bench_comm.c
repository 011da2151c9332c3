/* SPDX-License-Identifier: Apache-2.0
 * All-reduce of floats between processes of this machine: bench-comm RANKS FLOATS ROUNDS shm|tcp
 * prints the median and the best time of a round in milliseconds, of rank 0. */
#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/num.h"
#include "workers/comm/comm.h"
#include "workers/comm/comm_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 1000, WARM_UP = 2, HUGE_PAGE = 2 << 20 };

struct run {
	const char *dir;
	int64_t ranks, floats, rounds;
	enum comm_transport transport;
};

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int call(struct comm *c, bool barrier, float *data, int64_t count, struct err *err)
{
	int64_t ticket = 0;
	struct comm_args a = { .recv = data, .count = count, .type = COMM_F32 };
	int rc =
		barrier ? c->ops->barrier(c, &a, &ticket, err) : c->ops->all_reduce(c, &a, &ticket, err);
	return rc < 0 ? rc : comm_wait(c, ticket, err);
}

static int measure(struct comm *c, const struct run *run, float *data, struct err *err)
{
	int64_t us[ROUNDS_MAX + WARM_UP];
	float want = (float)(run->ranks * (run->ranks + 1) / 2);
	for (int64_t n = 0; n < run->rounds + WARM_UP; n++) {
		for (int64_t i = 0; i < run->floats; i++)
			data[i] = (float)(c->rank + 1);
		int rc = call(c, true, NULL, 0, err);
		int64_t begin = clock_mono_us(clock_system());
		if (rc == 0)
			rc = call(c, false, data, run->floats, err);
		us[n] = clock_mono_us(clock_system()) - begin;
		if (rc < 0)
			return rc;
		if (data[0] != want || data[run->floats / 2] != want || data[run->floats - 1] != want)
			return err_set(err, ERR_INTERNAL, NULL, "wrong sums");
	}
	qsort(us + WARM_UP, (size_t)run->rounds, sizeof(*us), by_value);
	if (c->rank == 0)
		printf(
			"%.3f %.3f\n", (double)us[WARM_UP + run->rounds / 2] / 1e3, (double)us[WARM_UP] / 1e3);
	return 0;
}

static int rank_main(const struct run *run, int rank, struct err *err)
{
	cleanup(comm_store_destroyp) struct comm_store *store = NULL;
	cleanup(comm_closep) struct comm *c = NULL;
	size_t bytes = (size_t)num_round_up(run->floats * (int64_t)sizeof(float), HUGE_PAGE);
	cleanup(freep) float *data = aligned_alloc(HUGE_PAGE, bytes);
	struct comm_options o = {
		.name = "bench", .rank = rank, .size = (int)run->ranks, .transport = run->transport
	};
	if (data == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory");
	(void)madvise(data, bytes, MADV_HUGEPAGE); /* as the engine has its memory */
	int rc = comm_store_folder_open(run->dir, &store, err);
	o.store = store;
	if (rc == 0)
		rc = comm_open(&o, &c, err);
	return rc < 0 ? rc : measure(c, run, data, err);
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/trainyard-bench-XXXXXX";
	struct run run = { .dir = dir };
	if (argc != 5 || num_parse_i64(argv[1], 1, 64, &run.ranks) < 0 ||
		num_parse_i64(argv[2], 1, INT32_MAX, &run.floats) < 0 ||
		num_parse_i64(argv[3], 1, ROUNDS_MAX, &run.rounds) < 0 ||
		(strcmp(argv[4], "shm") != 0 && strcmp(argv[4], "tcp") != 0) || mkdtemp(dir) == NULL) {
		fprintf(stderr, "usage: bench-comm RANKS FLOATS ROUNDS shm|tcp\n");
		return 2;
	}
	run.transport = strcmp(argv[4], "shm") == 0 ? COMM_SHM : COMM_TCP;
	for (int rank = 0; rank < run.ranks; rank++) {
		if (fork() != 0)
			continue;
		struct err err = { 0 };
		if (rank_main(&run, rank, &err) < 0) {
			fprintf(stderr, "bench-comm: rank %d: %s\n", rank, err.message);
			exit(1);
		}
		exit(0);
	}
	int status = 0, failed = 0;
	while (wait(&status) > 0)
		failed |= status != 0;
	return file_remove_tree(dir, NULL) < 0 || failed;
}
