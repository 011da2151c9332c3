/* SPDX-License-Identifier: Apache-2.0
 * Range and entity tag headers, as RFC 9110 reads them. */
#include "server/http/range.h"
#include "tests/support/check.h"

static void ranges(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		int64_t size;
		enum range_kind kind;
		int64_t first, count;
	} cases[] = {
		{ NULL, 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=0-0", 10, RANGE_PART, 0, 1 },
		{ "bytes=0-", 10, RANGE_PART, 0, 10 },
		{ "bytes=9-9", 10, RANGE_PART, 9, 1 },
		{ "Bytes=3-100", 10, RANGE_PART, 3, 7 },
		{ "bytes=-3", 10, RANGE_PART, 7, 3 },
		{ "bytes=-30", 10, RANGE_PART, 0, 10 },
		{ "bytes=10-", 10, RANGE_UNSATISFIABLE, 0, 10 },
		{ "bytes=-0", 10, RANGE_UNSATISFIABLE, 0, 10 },
		{ "bytes=0-", 0, RANGE_UNSATISFIABLE, 0, 0 },
		{ "bytes=-1", 0, RANGE_UNSATISFIABLE, 0, 0 },
		/* What is not understood is not honoured. */
		{ "bytes=5-3", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=-", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=1", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=0-1,3-4", 10, RANGE_WHOLE, 0, 10 },
		{ "items=0-1", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes= 0-1", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=99999999999999999999-", 10, RANGE_WHOLE, 0, 10 },
		{ "bytes=0-99999999999999999999", 10, RANGE_WHOLE, 0, 10 },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t first = -1;
		int64_t count = -1;
		assert_int_equal(
			range_parse(cases[i].header, cases[i].size, &first, &count), cases[i].kind);
		assert_int_equal(first, cases[i].first);
		assert_int_equal(count, cases[i].count);
	}
}

static void entity_tags(void **state)
{
	(void)state;
	assert_true(range_etag_matches("\"abc\"", "abc"));
	assert_true(range_etag_matches("W/\"abc\"", "abc"));
	assert_true(range_etag_matches("\"x\", \"abc\"", "abc"));
	assert_true(range_etag_matches("*", "abc"));
	assert_false(range_etag_matches(NULL, "abc"));
	assert_false(range_etag_matches("", "abc"));
	assert_false(range_etag_matches("abc", "abc"));
	assert_false(range_etag_matches("\"ab\"", "abc"));
	assert_false(range_etag_matches("\"abcd\"", "abc"));
	assert_false(range_etag_matches("\"ab", "ab\""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges),
		cmocka_unit_test(entity_tags),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
