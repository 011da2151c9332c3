/* SPDX-License-Identifier: Apache-2.0
 * Tests core/crypto/hmac.c with the vectors of RFC 4231. */
#include "core/crypto/hmac.h"
#include "tests/support/check.h"

static void expect(const void *key, size_t key_bytes, const char *data, const char *hex)
{
	unsigned char sum[DIGEST_BYTES];
	char got[DIGEST_HEX_MAX];
	assert_int_equal(hmac_sha256(key, key_bytes, data, strlen(data), sum), 0);
	digest_to_hex(sum, got);
	assert_string_equal(got, hex);
}

static void known_vectors(void **state)
{
	unsigned char key[131];
	memset(key, 0x0b, 20);
	expect(key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
	expect("Jefe", 4, "what do ya want for nothing?",
		"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(key, 0xaa, 131);
	expect(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
		"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void an_empty_key_is_a_key(void **state)
{
	unsigned char sum[DIGEST_BYTES], other[DIGEST_BYTES];
	assert_int_equal(hmac_sha256("other", 5, "x", 1, other), 0);
	assert_int_equal(hmac_sha256(NULL, 0, "", 0, sum), 0);
	char hex[DIGEST_HEX_MAX];
	digest_to_hex(sum, hex);
	assert_string_equal(hex, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_vectors),
		cmocka_unit_test(an_empty_key_is_a_key),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
