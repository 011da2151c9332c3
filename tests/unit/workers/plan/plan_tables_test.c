/* SPDX-License-Identifier: Apache-2.0
 * Tables cut for ranks, by chance and by hand: every row has one owner, no rank has more than a row
 * more than another, and a rank's plan has just the rows that it keeps. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include "core/base/num.h"

#include <time.h>

enum { RANKS_MAX = 256, ROW_BYTES = 20, RANDOM_CUTS = 3000 };

static struct plan_piece pieces[RANKS_MAX * SPEC_TABLES_MAX], again[RANKS_MAX * SPEC_TABLES_MAX];
static uint64_t random_state;

static int64_t pick(int64_t low, int64_t high)
{
	random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return low + (int64_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

/* A rank's pieces are of different tables in their order. */
static void check_slots(const struct plan_piece *own, int slots, int tables, const int64_t *rows)
{
	for (int i = 0; i < slots; i++) {
		assert_in_range(own[i].table, 0, tables - 1);
		assert_true(i == 0 || own[i - 1].table < own[i].table);
		assert_true(own[i].first >= 0 && own[i].rows >= 0);
		assert_true(own[i].first + own[i].rows <= rows[own[i].table]);
	}
}

/* Pieces cannot overlap: they would be more rows than there are, or begin or end at one place. */
static void check_table(int table, int64_t rows, int count)
{
	int64_t at = 0;
	while (at < rows) {
		int found = -1;
		for (int i = 0; i < count; i++)
			if (pieces[i].table == table && pieces[i].rows > 0 && pieces[i].first == at) {
				assert_int_equal(found, -1);
				found = i;
			}
		if (found < 0)
			fail_msg("nobody has a piece from row %lld of table %d", (long long)at, table);
		at += pieces[found].rows;
	}
	assert_int_equal(at, rows);
	int64_t all = 0;
	for (int i = 0; i < count; i++)
		all += pieces[i].table == table ? pieces[i].rows : 0;
	assert_int_equal(all, rows);
}

static void check(const int64_t *rows, int tables, int ranks)
{
	int slots = plan_tables_slots(tables, ranks);
	int64_t least = INT64_MAX, most = 0, first = 0;
	assert_true(slots <= tables && slots <= num_ceil_div(tables, ranks) + 1);
	plan_tables_cut(rows, tables, ranks, ROW_BYTES, pieces);
	plan_tables_cut(rows, tables, ranks, ROW_BYTES, again);
	assert_memory_equal(pieces, again, sizeof(*pieces) * (size_t)(slots * ranks));
	for (int r = 0; r < ranks; r++) {
		int64_t sum = 0, bytes = 0;
		check_slots(&pieces[r * slots], slots, tables, rows);
		for (int i = r * slots; i < (r + 1) * slots; i++) {
			sum += pieces[i].rows;
			bytes += num_round_up(pieces[i].rows * ROW_BYTES, PLAN_ALIGN_BYTES);
		}
		least = sum < least ? sum : least;
		most = sum > most ? sum : most;
		first = r == 0 ? bytes : first;
		assert_true(bytes <= first);
	}
	if (most > least + 1)
		fail_msg("%d tables on %d ranks: %lld rows on one, %lld on another", tables, ranks,
			(long long)most, (long long)least);
	for (int t = 0; t < tables; t++)
		check_table(t, rows[t], slots * ranks);
}

static void test_any_tables_are_cut_evenly(void **state)
{
	(void)state;
	for (int i = 0; i < RANDOM_CUTS; i++) {
		int64_t rows[SPEC_TABLES_MAX], scale[] = { 1, 3, 40, 5000, INT32_MAX };
		int tables = (int)pick(1, SPEC_TABLES_MAX);
		int ranks = (int)(pick(0, 3) ? pick(2, 16) : pick(2, RANKS_MAX));
		int widest = (int)pick(0, ARRAY_LEN(scale) - 1);
		for (int t = 0; t < tables; t++)
			rows[t] = pick(1, scale[pick(0, widest)]);
		check(rows, tables, ranks);
	}
}

/* The values of the 26 categories in Criteo's public data, and tables that leave no choice. */
static void test_known_tables(void **state)
{
	(void)state;
	const int64_t criteo[] = { 1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683,
		8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105,
		142572 };
	const int64_t equal[] = { 8, 8, 8 }, one[] = { 5 }, few[] = { 1, 1 };
	static const int ranks[] = { 2, 3, 4, 8, 64, RANKS_MAX };
	for (size_t i = 0; i < ARRAY_LEN(ranks); i++) {
		check(criteo, ARRAY_LEN(criteo), ranks[i]);
		check(equal, ARRAY_LEN(equal), ranks[i]);
		check(one, ARRAY_LEN(one), ranks[i]);
		check(few, ARRAY_LEN(few), ranks[i]);
	}
	assert_int_equal(plan_tables_slots(ARRAY_LEN(criteo), 8), 5);
}

/* Tables of a plan, weights and optimizer's state: all of it without ZeRO, otherwise a part; and no
 * rank needs more than rank 0. */
static void test_a_rank_keeps_its_part(void **state)
{
	(void)state;
	enum { RANKS = 4 };
	struct job_spec s = fixture_dlrm();
	int64_t whole = 0;
	s.model.table_rows[0] = 20000;
	s.hyper.batch_size = 2 * RANKS;
	s.hyper.micro_batch_size = 2;
	for (int zero = 0; zero <= 3; zero++) {
		int64_t total = 0, first = 0;
		s.parallel = (struct spec_parallel){ .data = RANKS, .zero_stage = zero };
		for (int rank = 0; rank < RANKS; rank++) {
			struct plan *p = NULL;
			int64_t bytes = 0;
			assert_int_equal(plan_compile_rank(&s, NULL, rank, &p, &err), 0);
			assert_int_equal(p->sparse_count, s.model.table_count);
			for (int i = 0; i < p->sparse_count; i++)
				bytes += plan_param_bytes(p, &p->params[p->sparse_first + i]);
			if (zero == 0)
				whole = bytes;
			else if (fabs((double)bytes * RANKS / (double)whole - 1) > 0.001)
				fail_msg("ZeRO %d, rank %d: %lld bytes of tables of %lld", zero, rank,
					(long long)bytes, (long long)whole);
			total += bytes;
			first = rank == 0 ? p->total_bytes : first;
			assert_true(p->total_bytes <= first);
			plan_destroy(p);
		}
		assert_int_equal(total, zero == 0 ? RANKS * whole : whole);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_tables_are_cut_evenly),
		cmocka_unit_test(test_known_tables),
		cmocka_unit_test(test_a_rank_keeps_its_part),
	};
	random_state = (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)random_state);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
