/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/ident.c. */
#include "core/base/ident.h"
#include "tests/support/check.h"

static void ids_are_well_formed_and_differ(void **state)
{
	enum { COUNT = 2000 };
	static char ids[COUNT][IDENT_MAX];
	for (int i = 0; i < COUNT; i++) {
		ident_new(clock_system(), "job", ids[i]);
		assert_true(ident_is(ids[i], "job"));
		assert_int_equal(strlen(ids[i]), 4 + IDENT_ULID_LEN);
	}
	qsort(ids, COUNT, sizeof(ids[0]), (int (*)(const void *, const void *))strcmp);
	for (int i = 1; i < COUNT; i++)
		assert_string_not_equal(ids[i - 1], ids[i]);
}

static void ids_sort_by_time_and_hold_it(void **state)
{
	struct clock_manual c;
	clock_manual_init(&c, 1469918176385000); /* the specification's example: 01ARYZ6S41 */
	char first[IDENT_MAX], second[IDENT_MAX];
	ident_new(&c.base, "x", first);
	assert_memory_equal(first, "x_01ARYZ6S41", 12);
	for (int i = 0; i < 100; i++) {
		clock_manual_advance(&c, 1000);
		ident_new(&c.base, "x", second);
		assert_true(strcmp(first, second) < 0);
		memcpy(first, second, sizeof(first));
	}
}

static void others_are_refused(void **state)
{
	assert_true(ident_is("job_01ARYZ6S41TSV4RRFFQ69G5FAV", "job"));
	static const char *const cases[] = { "", "job", "job_", "job_01ARYZ6S41TSV4RRFFQ69G5FA",
		"job_01ARYZ6S41TSV4RRFFQ69G5FAVX", "file_01ARYZ6S41TSV4RRFFQ69G5FAV",
		"job_81ARYZ6S41TSV4RRFFQ69G5FAV", "job_01ARYZ6S41TSV4RRFFQ69G5FAI",
		"job_01aryz6s41tsv4rrffq69g5fav", "job-01ARYZ6S41TSV4RRFFQ69G5FAV",
		" job_01ARYZ6S41TSV4RRFFQ69G5FAV", "job_01ARYZ6S41TSV4RRFFQ69G5FA\n",
		"jobs_01ARYZ6S41TSV4RRFFQ69G5FAV", "job_../../../../etc/passwd0000" };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_false(ident_is(cases[i], "job"));
	assert_false(ident_is(NULL, "job"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ids_are_well_formed_and_differ),
		cmocka_unit_test(ids_sort_by_time_and_hold_it),
		cmocka_unit_test(others_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
