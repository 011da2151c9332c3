/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/utf8.c. */
#include "core/base/utf8.h"
#include "tests/support/check.h"

/* Writes a code point by the definition. */
static size_t encode(uint32_t cp, char ret[static 4])
{
	if (cp < 0x80) {
		ret[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		ret[0] = (char)(0xC0 | cp >> 6);
		ret[1] = (char)(0x80 | (cp & 63));
		return 2;
	}
	if (cp < 0x10000) {
		ret[0] = (char)(0xE0 | cp >> 12);
		ret[1] = (char)(0x80 | (cp >> 6 & 63));
		ret[2] = (char)(0x80 | (cp & 63));
		return 3;
	}
	ret[0] = (char)(0xF0 | cp >> 18);
	ret[1] = (char)(0x80 | (cp >> 12 & 63));
	ret[2] = (char)(0x80 | (cp >> 6 & 63));
	ret[3] = (char)(0x80 | (cp & 63));
	return 4;
}

static void every_code_point(void **state)
{
	for (uint32_t cp = 0; cp < 0x1FFFFF; cp++) {
		char text[4];
		size_t len = encode(cp, text);
		bool good = cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF);
		if (utf8_next(text, len) != (good ? len : 0))
			fail_msg("code point %X", cp);
		if (len > 1 && utf8_next(text, len - 1) != 0)
			fail_msg("code point %X, cut", cp);
	}
}

static void overlong_and_stray_bytes(void **state)
{
	static const char *const cases[] = { "\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80",
		"\xE0\x9F\xBF", "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF5\x80\x80\x80", "\xFF", "\xFE",
		"\xC3(", "\xE2\x28\xA1", "\xE2\x82(" };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(utf8_next(cases[i], strlen(cases[i])), 0);
}

static void the_first_bad_byte_is_found(void **state)
{
	assert_int_equal(utf8_valid_prefix("h\xC3\xA9llo", 6), 6);
	assert_int_equal(utf8_valid_prefix("h\xC3\xA9\xFFllo", 7), 3);
	assert_int_equal(utf8_valid_prefix("h\xC3", 2), 1);
	assert_int_equal(utf8_valid_prefix("", 0), 0);
	assert_true(utf8_is_valid("a\0b", 3));
	assert_false(utf8_is_valid("a\xFF", 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_code_point),
		cmocka_unit_test(overlong_and_stray_bytes),
		cmocka_unit_test(the_first_bad_byte_is_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
