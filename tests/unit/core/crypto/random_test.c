/* SPDX-License-Identifier: Apache-2.0
 * Tests core/crypto/random.c. */
#include "core/crypto/random.h"
#include "tests/support/check.h"

static void bytes_vary(void **state)
{
	/* Of 64 KiB, every byte value comes; twice the same never does. */
	static unsigned char a[65536], b[65536];
	int seen[256] = { 0 };
	assert_int_equal(random_bytes(a, sizeof(a)), 0);
	assert_int_equal(random_bytes(b, sizeof(b)), 0);
	assert_int_not_equal(memcmp(a, b, sizeof(a)), 0);
	for (size_t i = 0; i < sizeof(a); i++)
		seen[a[i]]++;
	for (int i = 0; i < 256; i++)
		assert_in_range(seen[i], 100, 500);
	assert_int_equal(random_bytes(a, 0), 0);
	assert_true(random_bytes(a, SIZE_MAX) < 0);
}

static void equal_compares_all(void **state)
{
	assert_true(random_equal("abc", "abc", 3));
	assert_true(random_equal("abc", "abd", 2));
	assert_true(random_equal("", "x", 0));
	char a[32] = { 0 };
	for (size_t i = 0; i < sizeof(a); i++) {
		char b[32] = { 0 };
		b[i] = 1;
		assert_false(random_equal(a, b, sizeof(a)));
	}
}

static void crc_is_zlibs(void **state)
{
	assert_int_equal(random_crc32("123456789", 9), 0xCBF43926u);
	assert_int_equal(random_crc32("", 0), 0);
	assert_int_equal(random_crc32("The quick brown fox jumps over the lazy dog", 43), 0x414FA339u);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_vary),
		cmocka_unit_test(equal_compares_all),
		cmocka_unit_test(crc_is_zlibs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
