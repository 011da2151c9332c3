/* SPDX-License-Identifier: Apache-2.0
 * Tests tests/gpu/cmocka.h, which judges the tests on a GPU: what must fail fails, and is counted.
 */
#include "tests/support/check.h"

static int teardowns;

static int good(void **state)
{
	return 0;
}

static int bad(void **state)
{
	return -1;
}

static int teardown(void **state)
{
	teardowns++;
	return 0;
}

static void nothing(void **state) {}

static void holds(void **state)
{
	int x = 3;
	assert_true(x == 3);
	assert_false(x == 4);
	assert_non_null(&x);
	assert_null(NULL);
	assert_ptr_equal(&x, &x);
	assert_int_equal(x, 3);
	assert_int_not_equal(x, -3);
	assert_in_range(x, 3, 3);
	assert_string_equal("a", "a");
	assert_string_not_equal("a", "b");
	assert_memory_equal("abc", "abd", 2);
	assert_memory_not_equal("abc", "abd", 3);
}

static void is_skipped(void **state)
{
	skip();
	fail_msg("behind skip");
}

#define FAILS(name, what)          \
	static void name(void **state) \
	{                              \
		int x = 3;                 \
		(void)x;                   \
		what;                      \
	}
FAILS(fails_true, assert_true(x == 4))
FAILS(fails_false, assert_false(x == 3))
FAILS(fails_non_null, assert_non_null(NULL))
FAILS(fails_null, assert_null(&x))
FAILS(fails_pointer, assert_ptr_equal(&x, NULL))
FAILS(fails_equal, assert_int_equal(x, -3))
FAILS(fails_not_equal, assert_int_not_equal(x, 3))
FAILS(fails_range, assert_in_range(x, 4, 5))
FAILS(fails_text, assert_string_equal("a", "b"))
FAILS(fails_no_text, assert_string_not_equal("a", "a"))
FAILS(fails_memory, assert_memory_equal("abc", "abd", 3))
FAILS(fails_no_memory, assert_memory_not_equal("abc", "abd", 2))
FAILS(fails_message, fail_msg("x is %d", x))

int main(void)
{
	const struct CMUnitTest pass[] = {
		cmocka_unit_test(holds),
		cmocka_unit_test(is_skipped),
		cmocka_unit_test_setup_teardown(holds, good, teardown),
	};
	const struct CMUnitTest fails[] = {
		cmocka_unit_test(fails_true),
		cmocka_unit_test(fails_false),
		cmocka_unit_test(fails_non_null),
		cmocka_unit_test(fails_null),
		cmocka_unit_test(fails_pointer),
		cmocka_unit_test(fails_equal),
		cmocka_unit_test(fails_not_equal),
		cmocka_unit_test(fails_range),
		cmocka_unit_test(fails_text),
		cmocka_unit_test(fails_no_text),
		cmocka_unit_test(fails_memory),
		cmocka_unit_test(fails_no_memory),
		cmocka_unit_test(fails_message),
		cmocka_unit_test_setup_teardown(holds, bad, teardown),
		cmocka_unit_test_setup_teardown(holds, good, bad),
		cmocka_unit_test_setup_teardown(fails_true, good, teardown),
	};
	const struct CMUnitTest one[] = { cmocka_unit_test(nothing) };
	int passing = cmocka_run_group_tests(pass, NULL, NULL);
	int failing = cmocka_run_group_tests(fails, NULL, NULL);
	int grouped = cmocka_run_group_tests(one, bad, NULL) + cmocka_run_group_tests(one, good, bad);
	(void)printf(
		"%d and %d fail, %d of groups, %d teardowns\n", passing, failing, grouped, teardowns);
	return passing == 0 && failing == (int)(sizeof(fails) / sizeof(fails[0])) && grouped == 2 &&
			teardowns == 2
		? 0
		: 1;
}
