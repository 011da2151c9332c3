/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/base64.c: RFC 4648's vectors, random bytes there and back, text that is none. */
#include "tests/support/check.h"

#include "core/base/base64.h"
#include "core/base/err.h"

#include <string.h>

static void vectors(void **state)
{
	static const char *const cases[][2] = { { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" },
		{ "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" },
		{ "foobar", "Zm9vYmFy" } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf text, back;
		buf_init(&text, 64);
		buf_init(&back, 64);
		assert_int_equal(base64_encode(&text, cases[i][0], strlen(cases[i][0])), 0);
		assert_string_equal(buf_cstr(&text), cases[i][1]);
		assert_int_equal(base64_decode(&back, cases[i][1]), 0);
		assert_string_equal(buf_cstr(&back), cases[i][0]);
		buf_finish(&text);
		buf_finish(&back);
	}
}

static void any_bytes_come_back(void **state)
{
	struct check_random random = check_random_start();
	for (int i = 0; i < 500; i++) {
		unsigned char bytes[100];
		size_t n = (size_t)check_random_range(&random, 0, sizeof(bytes));
		for (size_t k = 0; k < n; k++)
			bytes[k] = (unsigned char)check_random_range(&random, 0, 255);
		struct buf text, back;
		buf_init(&text, 200);
		buf_init(&back, 200);
		assert_int_equal(base64_encode(&text, bytes, n), 0);
		assert_int_equal(base64_decode(&back, buf_cstr(&text)), 0);
		assert_int_equal(back.len, n);
		if (n > 0)
			assert_memory_equal(back.data, bytes, n);
		buf_finish(&text);
		buf_finish(&back);
	}
}

static void other_text_is_refused(void **state)
{
	static const char *const cases[] = { "Z", "Zg",
		"Zg=", "Z===", "====", "Zg==Zg==", "Zh==", "Zm9=", "Zm 9", "Zm9\n", "Zm9-", "=Zg=" };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf back;
		buf_init(&back, 64);
		if (base64_decode(&back, cases[i]) != ERR_INVALID_VALUE)
			fail_msg("%s is taken", cases[i]);
		buf_finish(&back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors),
		cmocka_unit_test(any_bytes_come_back),
		cmocka_unit_test(other_text_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
