/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/arena.c. */
#include "core/base/arena.h"
#include "tests/support/check.h"

static void memory_is_zeroed_aligned_and_apart(void **state)
{
	struct check_random random = check_random_start();
	struct arena a;
	arena_init(&a, 1024 * 1024);
	assert_null(a.head);
	unsigned char *pieces[500];
	size_t sizes[500];
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 500; i++) {
			sizes[i] = (size_t)check_random_range(&random, 0, 300);
			pieces[i] = arena_alloc(&a, sizes[i]);
			assert_non_null(pieces[i]);
			assert_int_equal((uintptr_t)pieces[i] % 16, 0);
			for (size_t k = 0; k < sizes[i]; k++)
				assert_int_equal(pieces[i][k], 0);
			memset(pieces[i], i & 0xFF, sizes[i]);
		}
		for (int i = 0; i < 500; i++) {
			for (size_t k = 0; k < sizes[i]; k++)
				assert_int_equal(pieces[i][k], i & 0xFF);
		}
		arena_finish(&a);
		assert_int_equal(a.used_bytes, 0);
	}
}

static void the_limit_holds(void **state)
{
	struct arena a;
	arena_init(&a, 10000);
	int got = 0;
	while (arena_alloc(&a, 100))
		got++;
	assert_in_range(got, 80, 100);
	assert_true(a.used_bytes <= 10000);
	assert_null(arena_alloc(&a, SIZE_MAX));
	assert_null(arena_alloc(&a, SIZE_MAX - 15));
	arena_finish(&a);
	assert_non_null(arena_alloc(&a, 100));
	arena_finish(&a);

	arena_init(&a, 0);
	assert_null(arena_alloc(&a, 0));
	arena_finish(&a);
}

static void arrays_do_not_overflow(void **state)
{
	struct arena a;
	arena_init(&a, SIZE_MAX / 2);
	assert_null(arena_array(&a, SIZE_MAX / 4, 8));
	assert_null(arena_array(&a, SIZE_MAX, SIZE_MAX));
	assert_non_null(arena_array(&a, 10, 8));
	arena_finish(&a);
}

static void strings_are_copied(void **state)
{
	struct arena a;
	arena_init(&a, 4096 + 64);
	char text[] = "hello";
	char *copy = arena_strdup(&a, text);
	text[0] = 'J';
	assert_string_equal(copy, "hello");
	assert_string_equal(arena_strndup(&a, "hello", 2), "he");
	assert_string_equal(arena_strndup(&a, "he", 20), "he");
	assert_null(arena_strdup(&a, NULL));
	assert_null(arena_strndup(&a, NULL, 3));
	assert_string_equal(arena_printf(&a, "%s-%d", "x", 42), "x-42");
	assert_null(arena_printf(&a, "%10000d", 1));
	arena_finish(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_zeroed_aligned_and_apart),
		cmocka_unit_test(the_limit_holds),
		cmocka_unit_test(arrays_do_not_overflow),
		cmocka_unit_test(strings_are_copied),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
