/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/buf.c. */
#include "core/base/buf.h"
#include "core/base/err.h"
#include "tests/support/check.h"

static void what_is_appended_is_there(void **state)
{
	struct check_random random = check_random_start();
	cleanup(buf_finish) struct buf b;
	buf_init(&b, 100000);
	assert_string_equal(buf_cstr(&b), "");
	char expected[100001];
	size_t len = 0;
	while (len < 90000) {
		char piece[200];
		size_t bytes = (size_t)check_random_range(&random, 0, sizeof(piece));
		for (size_t i = 0; i < bytes; i++)
			piece[i] = (char)check_random_bits(&random);
		assert_int_equal(buf_append(&b, piece, bytes), 0);
		memcpy(expected + len, piece, bytes);
		len += bytes;
		assert_int_equal(b.data[b.len], 0);
	}
	assert_int_equal(b.len, len);
	assert_memory_equal(b.data, expected, len);
	buf_consume(&b, 1000);
	assert_int_equal(b.len, len - 1000);
	assert_memory_equal(b.data, expected + 1000, len - 1000);
	buf_consume(&b, b.len);
	assert_string_equal(buf_cstr(&b), "");
}

static void the_maximum_is_exact_and_sticks(void **state)
{
	cleanup(buf_finish) struct buf b;
	buf_init(&b, 10);
	assert_int_equal(buf_str(&b, "0123456789"), 0);
	assert_int_equal(b.len, 10);
	assert_int_equal(buf_str(&b, ""), 0);
	assert_int_equal(buf_char(&b, 'x'), ERR_TOO_LARGE);
	assert_int_equal(b.failed, ERR_TOO_LARGE);
	assert_null(b.data);
	assert_int_equal(buf_str(&b, ""), ERR_TOO_LARGE);
	assert_int_equal(buf_printf(&b, "%d", 1), ERR_TOO_LARGE);
	assert_null(buf_take(&b, NULL));
	assert_string_equal(buf_cstr(&b), "");
	buf_reset(&b);
	assert_int_equal(buf_printf(&b, "%s-%d", "a", 7), 0);
	assert_string_equal(buf_cstr(&b), "a-7");
	assert_int_equal(buf_printf(&b, "%08d", 7), ERR_TOO_LARGE);
}

static void huge_appends_do_not_wrap(void **state)
{
	cleanup(buf_finish) struct buf b;
	buf_init(&b, SIZE_MAX - 1);
	assert_int_equal(buf_char(&b, 'x'), 0);
	assert_int_equal(buf_append(&b, "", SIZE_MAX), ERR_TOO_LARGE);
	cleanup(buf_finish) struct buf endless;
	buf_init(&endless, SIZE_MAX);
	assert_int_equal(buf_char(&endless, 'x'), ERR_TOO_LARGE);
}

static void take_hands_over(void **state)
{
	struct buf b;
	buf_init(&b, 10);
	size_t len = 99;
	cleanup(freep) char *empty = buf_take(&b, &len);
	assert_string_equal(empty, "");
	assert_int_equal(len, 0);
	assert_int_equal(buf_str(&b, "abc"), 0);
	cleanup(freep) char *text = buf_take(&b, &len);
	assert_string_equal(text, "abc");
	assert_int_equal(len, 3);
	assert_null(b.data);
	assert_int_equal(buf_str(&b, "again"), 0);
	buf_finish(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_appended_is_there),
		cmocka_unit_test(the_maximum_is_exact_and_sticks),
		cmocka_unit_test(huge_appends_do_not_wrap),
		cmocka_unit_test(take_hands_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
