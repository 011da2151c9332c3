/* SPDX-License-Identifier: Apache-2.0
 * Sharing a product: the pieces of all threads' rectangles are C, each element once, in tiles. */
#include "tests/support/check.h"
#include "workers/engine/cpu/gemm_share.h"

enum { ROUNDS = 3000, SIDE_MAX = 300 };

static struct check_random random_source;

static int64_t pick(int64_t min, int64_t max)
{
	return check_random_range(&random_source, min, max);
}

static struct gemm_share random_share(void)
{
	const int64_t vectors[] = { 4, 8, 16 };
	return (struct gemm_share){ .m = pick(1, SIDE_MAX),
		.n = pick(1, SIDE_MAX),
		.k = pick(1, 3) == 1 ? pick(1, 4000) : pick(4000, 4000000),
		.mr = pick(1, 14),
		.nr = 2 * vectors[pick(0, 2)],
		.threads = (int)pick(1, 40),
		.row_cost = 0.1,
		.column_cost = pick(0, 1) ? 0.1 : 0.15 };
}

static void mark(const struct gemm_share *s, const struct gemm_rect *r, uint8_t *seen)
{
	assert_true(r->row >= 0 && r->row_end <= s->m && r->column >= 0 && r->column_end <= s->n);
	assert_int_equal(r->column % s->nr, 0);
	for (int64_t i = r->row; i < r->row_end; i++)
		for (int64_t j = r->column; j < r->column_end; j++)
			seen[i * s->n + j]++;
}

static void every_element_once(void **state)
{
	static uint8_t seen[SIDE_MAX * SIDE_MAX];
	int64_t cut_rows = 0, cut_columns = 0;
	for (int round = 0; round < ROUNDS; round++) {
		const struct gemm_share s = random_share();
		struct gemm_rect r;
		memset(seen, 0, sizeof(seen));
		for (int thread = 0; thread < s.threads; thread++) {
			if (!gemm_share_part(&s, gemm_share_grid(&s), thread, &r))
				continue;
			const struct gemm_cut cut = gemm_share_cut(&s, &r);
			cut_rows += cut.pieces > 1 && cut.rows;
			cut_columns += cut.pieces > 1 && !cut.rows;
			for (int piece = 0; piece < cut.pieces; piece++) {
				const struct gemm_rect part = gemm_share_piece(&s, &r, cut, piece);
				mark(&s, &part, seen);
			}
		}
		for (int64_t i = 0; i < s.m * s.n; i++)
			assert_int_equal(seen[i], 1);
	}
	assert_true(cut_rows > ROUNDS / 10 && cut_columns > ROUNDS / 10);
}

static void the_work_is_even_and_the_last_pieces_small(void **state)
{
	const struct gemm_share s = { .m = 1024,
		.n = 3072,
		.k = 768,
		.mr = 14,
		.nr = 32,
		.threads = 4,
		.row_cost = 0.1,
		.column_cost = 0.1 };
	for (int thread = 0; thread < s.threads; thread++) {
		struct gemm_rect r;
		assert_true(gemm_share_part(&s, gemm_share_grid(&s), thread, &r));
		const int64_t area = (r.row_end - r.row) * (r.column_end - r.column);
		assert_int_equal(area, s.m * s.n / s.threads);
		const struct gemm_cut cut = gemm_share_cut(&s, &r);
		assert_true(cut.pieces >= 3);
		const struct gemm_rect last = gemm_share_piece(&s, &r, cut, cut.pieces - 1);
		assert_true((last.row_end - last.row) * (last.column_end - last.column) * 4 <= area);
	}
}

static void one_thread_and_small_products_are_not_cut(void **state)
{
	struct gemm_share s = { .m = 1000,
		.n = 1000,
		.k = 1000,
		.mr = 14,
		.nr = 32,
		.threads = 1,
		.row_cost = 0.1,
		.column_cost = 0.1 };
	struct gemm_rect r;
	assert_true(gemm_share_part(&s, gemm_share_grid(&s), 0, &r));
	assert_int_equal(gemm_share_cut(&s, &r).pieces, 1);
	s.threads = 2;
	assert_true(gemm_share_part(&s, gemm_share_grid(&s), 1, &r));
	assert_true(gemm_share_cut(&s, &r).pieces > 1);
	s.k = 10;
	assert_int_equal(gemm_share_cut(&s, &r).pieces, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_element_once),
		cmocka_unit_test(the_work_is_even_and_the_last_pieces_small),
		cmocka_unit_test(one_thread_and_small_products_are_not_cut),
	};
	random_source = check_random_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
