/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/err.c and the error list. */
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "tests/support/check.h"

#include <errno.h>

static void the_list_has_no_doubles(void **state)
{
	size_t count;
	const struct err_info *all = err_all(&count);
	assert_true(count > 30);
	for (size_t i = 0; i < count; i++) {
		assert_true(all[i].code < 0);
		assert_in_range(all[i].http_status, 400, 599);
		assert_ptr_equal(err_info(all[i].code), &all[i]);
		for (size_t k = 0; k < i; k++) {
			assert_int_not_equal(all[i].code, all[k].code);
			assert_string_not_equal(all[i].slug, all[k].slug);
			assert_string_not_equal(all[i].name, all[k].name);
		}
	}
}

static void unknown_codes_read_as_internal(void **state)
{
	assert_string_equal(err_info(-9999)->name, "INTERNAL");
	assert_string_equal(err_info(0)->name, "INTERNAL");
	assert_string_equal(err_info(5)->name, "INTERNAL");
	assert_int_equal(err_info(ERR_NOT_FOUND)->http_status, 404);
}

static void set_fills_and_returns(void **state)
{
	struct err e = { .retry_after_s = 9, .sqlstate = "23505" };
	assert_int_equal(err_set(&e, ERR_CONFLICT, "$.a", "job %s is %d", "x", 3), ERR_CONFLICT);
	assert_int_equal(e.code, ERR_CONFLICT);
	assert_string_equal(e.message, "job x is 3");
	assert_string_equal(e.param, "$.a");
	assert_string_equal(e.sqlstate, "");
	assert_int_equal(e.retry_after_s, 0);
	assert_int_equal(err_set(NULL, ERR_IO, NULL, "x"), ERR_IO);
	/* Wrapping a message by itself. */
	assert_int_equal(err_set(&e, ERR_IO, e.param, "outer: %s", e.message), ERR_IO);
	assert_string_equal(e.message, "outer: job x is 3");
	assert_string_equal(e.param, "$.a");
}

static void cuts_stay_utf8(void **state)
{
	for (int shift = 0; shift < 4; shift++) {
		char text[2000] = "abc";
		size_t len = (size_t)shift;
		while (len + 4 < sizeof(text)) {
			memcpy(text + len, "\xF0\x9F\x98\x80", 4);
			len += 4;
		}
		text[len] = '\0';
		struct err e = { 0 };
		(void)err_set(&e, ERR_IO, text, "%s", text);
		assert_true(strlen(e.message) > ERR_MESSAGE_MAX - 6);
		assert_true(utf8_is_valid(e.message, strlen(e.message)));
		assert_true(utf8_is_valid(e.param, strlen(e.param)));
	}
}

static void errno_is_appended(void **state)
{
	struct err e = { 0 };
	assert_int_equal(err_errno(&e, ERR_IO, ENOENT, "cannot open %s", "/x"), ERR_IO);
	assert_string_equal(e.message, "cannot open /x: No such file or directory");
	assert_int_equal(err_errno(NULL, ERR_IO, ENOENT, "x"), ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_list_has_no_doubles),
		cmocka_unit_test(unknown_codes_read_as_internal),
		cmocka_unit_test(set_fills_and_returns),
		cmocka_unit_test(cuts_stay_utf8),
		cmocka_unit_test(errno_is_appended),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
