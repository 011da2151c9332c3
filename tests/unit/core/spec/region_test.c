/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/region.c. */
#include "core/spec/region.h"
#include "tests/support/check.h"

static void the_tree_contains_downwards_only(void **state)
{
	assert_true(region_contains("any", "us-east-1"));
	assert_true(region_contains("us", "us"));
	assert_true(region_contains("us", "us-east-1"));
	assert_false(region_contains("us-east-1", "us"));
	assert_false(region_contains("us", "eu-west-1"));
	assert_false(region_contains("us-east", "us-west-1"));
	assert_false(region_contains("us", "any"));
}

static void the_unknown_is_nowhere(void **state)
{
	static const char *const unknown[] = { NULL, "", "mars", "US", "us-", "us-east-1 ", "any/" };
	for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
		assert_false(region_known(unknown[i]));
		assert_false(region_contains("any", unknown[i]));
		assert_false(region_contains(unknown[i], "us"));
		assert_false(region_contains(unknown[i], unknown[i]));
		assert_null(region_parent(unknown[i]));
	}
}

static void parents_lead_to_the_root(void **state)
{
	const char *name = "ap-southeast-1";
	int steps = 0;
	for (; region_parent(name); name = region_parent(name), steps++)
		assert_true(region_contains(region_parent(name), name));
	assert_string_equal(name, "any");
	assert_int_equal(steps, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tree_contains_downwards_only),
		cmocka_unit_test(the_unknown_is_nowhere),
		cmocka_unit_test(parents_lead_to_the_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
