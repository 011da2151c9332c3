/* SPDX-License-Identifier: Apache-2.0
 * Every collective against a plain computation, bit by bit, on many sizes, types and numbers of
 * ranks. */
#include "tests/unit/workers/comm/comm_fixture.h"

enum {
	LARGE = 1300003,     /* elements: for up to 3 ranks several pieces, and no multiple of ranks */
	LARGE_MANY = 100003, /* for more ranks */
	LARGE_PARTS = 50001, /* where each rank has as many */
	FEW = 3,
	CASES = 8,
	BOTH_RUNS = 2,
};

struct shared {
	uint64_t hashes[BOTH_RUNS][FIXTURE_RANKS_MAX];
};

struct arg {
	uint64_t seed;
	int run;
	bool check;
};

/* ------------------------------------------------------------------ made values */

static uint64_t mix(uint64_t a, uint64_t b)
{
	struct check_random r = { a * 0x9E3779B97F4A7C15u + b };
	return check_random_bits(&r);
}

static uint16_t to_bf16(float x)
{
	uint32_t b;
	memcpy(&b, &x, sizeof(b));
	if (x != x)
		return (uint16_t)(b >> 16 | 0x40);
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static void store(enum comm_type type, void *to, int64_t i, float x)
{
	if (type == COMM_F32) {
		((float *)to)[i] = x;
	} else if (type == COMM_BF16) {
		((uint16_t *)to)[i] = to_bf16(x);
	} else if (type == COMM_F16) {
		((_Float16 *)to)[i] = (_Float16)x;
	} else {
		((uint8_t *)to)[i] = (uint8_t)(int)(x * 16.0F);
	}
}

static float load(enum comm_type type, const void *from, int64_t i)
{
	if (type == COMM_F32)
		return ((const float *)from)[i];
	if (type == COMM_F16)
		return (float)((const _Float16 *)from)[i];
	uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* What rank r holds in a case: any other rank can make it too. */
static void *make(uint64_t key, int r, enum comm_type type, int64_t count)
{
	void *data = fixture_alloc(count * comm_type_bytes(type));
	for (int64_t i = 0; i < count; i++) {
		uint64_t bits = mix(key + (uint64_t)r, (uint64_t)i);
		/* of many sizes, so that the order of a sum shows */
		float x = (float)(bits >> 40) * 0x1p-22F - 2.0F;
		store(type, data, i, x / (float)(1 << (bits & 15)));
	}
	return data;
}

/* The reduction of what all ranks hold, as the header promises it. */
static void *reduced(
	uint64_t key, int size, enum comm_type type, enum comm_reduce reduce, int64_t count)
{
	float *sum = fixture_alloc(count * (int64_t)sizeof(float));
	for (int r = 0; r < size; r++) {
		void *data = make(key, r, type, count);
		for (int64_t i = 0; i < count; i++) {
			float x = load(type, data, i);
			sum[i] = r == 0 ? x : reduce == COMM_SUM ? sum[i] + x : x > sum[i] ? x : sum[i];
		}
		free(data);
	}
	void *out = fixture_alloc(count * comm_type_bytes(type));
	for (int64_t i = 0; i < count; i++)
		store(type, out, i, sum[i]);
	free(sum);
	return out;
}

/* ------------------------------------------------------------------ cases */

struct test {
	struct rank *r;
	struct comm *c;
	uint64_t hash; /* of all results */
};

static bool same(struct test *t, const void *got, const void *want, int64_t bytes)
{
	const uint8_t *p = got;
	for (int64_t i = 0; i < bytes; i++)
		t->hash = (t->hash ^ p[i]) * 0x100000001B3u;
	return bytes == 0 || memcmp(got, want, (size_t)bytes) == 0;
}

static void try_reduce(
	struct test *t, uint64_t key, enum comm_type type, enum comm_reduce reduce, int64_t count)
{
	struct err err = { 0 };
	int64_t unit = comm_type_bytes(type);
	void *mine = make(key, t->r->rank, type, count);
	void *out = fixture_alloc(count * unit);
	void *want = reduced(key, t->r->size, type, reduce, count);
	struct comm_args a = {
		.send = mine, .recv = out, .count = count, .type = type, .reduce = reduce
	};
	RANK_OK(fixture_do(t->c, COMM_ALL_REDUCE, &a, &err));
	RANK_CHECK(same(t, out, want, count * unit));
	int64_t part = count / t->r->size;
	a.count = part;
	if (part * t->r->size == count) {
		RANK_OK(fixture_do(t->c, COMM_REDUCE_SCATTER, &a, &err));
		RANK_CHECK(
			memcmp(out, (char *)want + t->r->rank * part * unit, (size_t)(part * unit)) == 0);
	}
	a = (struct comm_args){ .recv = mine, .count = count, .type = type, .reduce = reduce };
	RANK_OK(fixture_do(t->c, COMM_ALL_REDUCE, &a, &err)); /* in place */
	RANK_CHECK(same(t, mine, want, count * unit));
	free(mine);
	free(out);
	free(want);
}

static void try_gather(struct test *t, uint64_t key, enum comm_type type, int64_t count)
{
	struct err err = { 0 };
	int size = t->r->size, rank = t->r->rank;
	int64_t bytes = count * comm_type_bytes(type);
	char *mine = make(key, rank, type, count), *out = fixture_alloc(bytes * size);
	struct comm_args a = { .send = mine, .recv = out, .count = count, .type = type };
	for (int in_place = 0; in_place < 2; in_place++) {
		RANK_OK(fixture_do(t->c, COMM_ALL_GATHER, &a, &err));
		for (int r = 0; r < size; r++) {
			void *want = make(key, r, type, count);
			RANK_CHECK(same(t, out + r * bytes, want, bytes));
			free(want);
		}
		memset(out, 0, (size_t)(bytes * size));
		if (bytes > 0)
			memcpy(out + rank * bytes, mine, (size_t)bytes);
		a.send = out + rank * bytes;
	}
	free(mine);
	free(out);
}

static void try_broadcast(struct test *t, uint64_t key, enum comm_type type, int64_t count)
{
	struct err err = { 0 };
	for (int root = 0; root < t->r->size; root++) {
		void *data = make(key, t->r->rank, type, count), *want = make(key, root, type, count);
		struct comm_args a = { .recv = data, .count = count, .type = type, .root = root };
		RANK_OK(fixture_do(t->c, COMM_BROADCAST, &a, &err));
		RANK_CHECK(same(t, data, want, count * comm_type_bytes(type)));
		free(data);
		free(want);
	}
}

/* Elements that rank a sends to rank b. */
static int64_t count_between(uint64_t key, int a, int b, int64_t count, bool each)
{
	return each ? count : (int64_t)(mix(key, (uint64_t)(a * 64 + b)) % (uint64_t)(count + 1));
}

static void try_all_to_all(
	struct test *t, uint64_t key, enum comm_type type, int64_t count, bool each)
{
	struct err err = { 0 };
	int size = t->r->size, rank = t->r->rank;
	int64_t unit = comm_type_bytes(type), sends[FIXTURE_RANKS_MAX], receives[FIXTURE_RANKS_MAX];
	for (int r = 0; r < size; r++) {
		sends[r] = count_between(key, rank, r, count, each);
		receives[r] = count_between(key, r, rank, count, each);
	}
	char *mine = make(key, rank, type, count * size), *out = fixture_alloc(count * size * unit);
	struct comm_args a = { .send = mine, .recv = out, .count = count, .type = type };
	if (!each) {
		a.send_counts = sends;
		a.recv_counts = receives;
	}
	RANK_OK(fixture_do(t->c, COMM_ALL_TO_ALL, &a, &err));
	int64_t at = 0;
	for (int r = 0; r < size; r++) {
		char *theirs = make(key, r, type, count * size);
		int64_t begin = 0;
		for (int i = 0; i < rank; i++)
			begin += count_between(key, r, i, count, each);
		RANK_CHECK(same(t, out + at * unit, theirs + begin * unit, receives[r] * unit));
		at += receives[r];
		free(theirs);
	}
	free(mine);
	free(out);
}

/* Each rank hands to the next; the first begins, or all would wait. */
static void try_ring(struct test *t, uint64_t key, enum comm_type type, int64_t count)
{
	struct err err = { 0 };
	int size = t->r->size, rank = t->r->rank;
	int64_t bytes = count * comm_type_bytes(type);
	void *mine = make(key, rank, type, count), *out = fixture_alloc(bytes);
	void *want = make(key, (rank + size - 1) % size, type, count);
	struct comm_args send = {
		.send = mine, .count = count, .type = type, .root = (rank + 1) % size
	};
	struct comm_args receive = {
		.recv = out, .count = count, .type = type, .root = (rank + size - 1) % size
	};
	if (rank == 0)
		RANK_OK(fixture_do(t->c, COMM_SEND, &send, &err));
	RANK_OK(fixture_do(t->c, COMM_RECV, &receive, &err));
	if (rank != 0)
		RANK_OK(fixture_do(t->c, COMM_SEND, &send, &err));
	RANK_CHECK(same(t, out, want, bytes));
	free(mine);
	free(out);
	free(want);
}

static void all_operations(struct rank *r)
{
	const struct arg *arg = r->all->arg;
	struct shared *shared = r->all->shared;
	struct test t = { r, fixture_group(r, "all", arg->check, FIXTURE_DEADLINE_MS), 0 };
	struct check_random random = { arg->seed };
	struct err err = { 0 };
	for (int n = 0; n < CASES; n++) {
		int64_t sizes[CASES] = { 0, 1, 7, 1009, 4096 * r->size,
			check_random_range(&random, 1, 20000), r->size > FEW ? LARGE_MANY : LARGE,
			8 * r->size };
		int64_t count = sizes[n], part = n == 6 ? LARGE_PARTS : count / (n > 3 ? r->size : 1);
		for (int type = 0; type < COMM_TYPE_COUNT; type++) {
			uint64_t key = mix(arg->seed, (uint64_t)(n * COMM_TYPE_COUNT + type));
			if (type != COMM_BYTES)
				for (int reduce = 0; reduce < (n == 6 ? 1 : COMM_REDUCE_COUNT); reduce++)
					try_reduce(&t, key, (enum comm_type)type, (enum comm_reduce)reduce, count);
			try_gather(&t, key, (enum comm_type)type, part);
			try_broadcast(&t, key, (enum comm_type)type, part);
			try_all_to_all(&t, key, (enum comm_type)type, part, true);
			try_all_to_all(&t, key, (enum comm_type)type, part, false);
			if (r->size > 1)
				try_ring(&t, key, (enum comm_type)type, part);
			RANK_OK(fixture_do(t.c, COMM_BARRIER, &(struct comm_args){ 0 }, &err));
		}
	}
	comm_close(t.c);
	/* all_to_all and the ring differ by rank: what may be compared between ranks is reduced. */
	shared->hashes[arg->run][r->rank] = t.hash;
}

static void run_twice(int size)
{
	struct check_random random = check_random_start();
	struct arg arg = { .seed = check_random_bits(&random) };
	struct shared *shared = fixture_shared(sizeof(*shared));
	for (arg.run = 0; arg.run < BOTH_RUNS; arg.run++) {
		arg.check = arg.run == 0; /* comparing changes nothing */
		fixture_run(size, all_operations, &arg, shared);
	}
	for (int r = 0; r < size; r++)
		assert_int_equal(shared->hashes[0][r], shared->hashes[1][r]);
	munmap(shared, sizeof(*shared));
}

static void one_rank(void **state)
{
	(void)state;
	run_twice(1);
}

static void two_ranks(void **state)
{
	(void)state;
	run_twice(2);
}

static void three_ranks(void **state)
{
	(void)state;
	run_twice(3);
}

static void four_ranks(void **state)
{
	(void)state;
	run_twice(4);
}

static void eight_ranks(void **state)
{
	(void)state;
	run_twice(8);
}

/* ------------------------------------------------------------------ bits */

/* Sums whose order shows, and a buffer of each rank that all others read. */
static void same_bits(struct rank *r)
{
	const struct arg *arg = r->all->arg;
	struct shared *shared = r->all->shared;
	struct err err = { 0 };
	struct comm *c = fixture_group(r, "bits", true, FIXTURE_DEADLINE_MS);
	float *x = make(arg->seed, r->rank, COMM_F32, LARGE);
	for (int64_t i = 0; i < LARGE; i++)
		x[i] *= (float)(1 << (mix(arg->seed, (uint64_t)i + 77) % 24));
	struct comm_args a = { .recv = x, .count = LARGE, .type = COMM_F32 };
	RANK_OK(fixture_do(c, COMM_ALL_REDUCE, &a, &err));
	comm_close(c);
	struct test t = { r, NULL, 0 };
	(void)same(&t, x, x, LARGE * (int64_t)sizeof(float));
	shared->hashes[arg->run][r->rank] = t.hash;
	free(x);
}

static void the_same_bits_everywhere(void **state)
{
	(void)state;
	struct check_random random = check_random_start();
	struct arg arg = { .seed = check_random_bits(&random) };
	struct shared *shared = fixture_shared(sizeof(*shared));
	for (arg.run = 0; arg.run < BOTH_RUNS; arg.run++)
		fixture_run(4, same_bits, &arg, shared);
	for (int r = 0; r < 4; r++) {
		assert_int_equal(shared->hashes[0][r], shared->hashes[0][0]);
		assert_int_equal(shared->hashes[1][r], shared->hashes[0][0]);
	}
	munmap(shared, sizeof(*shared));
}

/* ------------------------------------------------------------------ several groups */

/* A row and a column of a 2x2 mesh, and all, at once and out of step. */
static void mesh(struct rank *r)
{
	struct err err = { 0 };
	char row[COMM_NAME_MAX], column[COMM_NAME_MAX];
	int y = r->rank / 2, x = r->rank % 2;
	snprintf(row, sizeof(row), "row%d", y);
	snprintf(column, sizeof(column), "column%d", x);
	struct comm *groups[3];
	struct comm_options options[3] = {
		{ .name = row, .rank = x, .size = 2 },
		{ .name = column, .rank = y, .size = 2 },
		{ .name = "all", .rank = r->rank, .size = 4 },
	};
	for (int g = 0; g < 3; g++) {
		options[g].store = r->store;
		options[g].check = true;
		options[g].transport = fixture_transport;
		options[g].device = fixture_device();
		RANK_OK(comm_open(&options[g], &groups[g], &err));
	}
	enum { ROUNDS = 20, COUNT = 50021 };
	float *data[3];
	for (int g = 0; g < 3; g++)
		data[g] = fixture_alloc(COUNT * (int64_t)sizeof(float));
	for (int round = 0; round < ROUNDS; round++) {
		int64_t tickets[3];
		for (int g = 0; g < 3; g++)
			for (int i = 0; i < COUNT; i++)
				data[g][i] = (float)(r->rank + i % 7 + round);
		for (int i = 0; i < 3; i++) { /* each rank in another order */
			int g = (i + r->rank) % 3;
			struct comm_args a = { .recv = data[g], .count = COUNT, .type = COMM_F32 };
			RANK_OK(groups[g]->ops->all_reduce(groups[g], &a, &tickets[g], &err));
		}
		for (int g = 0; g < 3; g++)
			RANK_OK(comm_wait(groups[g], tickets[g], &err));
		for (int i = 0; i < COUNT; i++) {
			int own = i % 7 + round;
			RANK_CHECK(data[0][i] == (float)(2 * own + 4 * y + 1));
			RANK_CHECK(data[1][i] == (float)(2 * own + 2 * x + 2));
			RANK_CHECK(data[2][i] == (float)(4 * own + 6));
		}
	}
	for (int g = 0; g < 3; g++) {
		free(data[g]);
		comm_close(groups[g]);
	}
}

static void groups_do_not_meet(void **state)
{
	(void)state;
	fixture_run(4, mesh, NULL, NULL);
}

int main(int argc, char **argv)
{
	fixture_arguments(argc, argv);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_rank),
		cmocka_unit_test(two_ranks),
		cmocka_unit_test(three_ranks),
		cmocka_unit_test(four_ranks),
		cmocka_unit_test(eight_ranks),
		cmocka_unit_test(the_same_bits_everywhere),
		cmocka_unit_test(groups_do_not_meet),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
