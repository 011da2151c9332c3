/* SPDX-License-Identifier: Apache-2.0
 * The text of API keys. */
#include "server/auth/api_key.h"
#include "tests/support/check.h"

#include <string.h>

static void made_keys_are_well_formed_and_different(void **state)
{
	(void)state;
	char first[API_KEY_MAX] = "";
	for (int i = 0; i < 50; i++) {
		char key[API_KEY_MAX];
		char shown[API_KEY_SHOWN_MAX];
		unsigned char hash[DIGEST_BYTES];
		unsigned char again[DIGEST_BYTES];
		assert_int_equal(api_key_make(key, hash, shown), 0);
		assert_int_equal(strlen(key), API_KEY_LEN);
		assert_true(api_key_is_well_formed(key));
		assert_int_equal(api_key_hash(key, again), 0);
		assert_memory_equal(hash, again, sizeof(hash));
		assert_string_equal(shown + strlen(shown) - 4, key + API_KEY_LEN - 4);
		assert_true(strlen(shown) < 12);
		assert_string_not_equal(key, first);
		memcpy(first, key, sizeof(first));
	}
}

static void any_changed_character_shows(void **state)
{
	(void)state;
	char key[API_KEY_MAX];
	char shown[API_KEY_SHOWN_MAX];
	unsigned char hash[DIGEST_BYTES];
	assert_int_equal(api_key_make(key, hash, shown), 0);
	for (size_t i = 0; i < API_KEY_LEN; i++) {
		char changed[API_KEY_MAX];
		memcpy(changed, key, sizeof(changed));
		changed[i] = key[i] == '7' ? '8' : '7';
		assert_false(api_key_is_well_formed(changed));
	}
	key[API_KEY_LEN - 1] = '\0';
	assert_false(api_key_is_well_formed(key));
	assert_false(api_key_is_well_formed(""));
	assert_false(api_key_is_well_formed("ty_"));
	assert_false(api_key_is_well_formed("sk_00000000000000000000000000000000000000000"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(made_keys_are_well_formed_and_different),
		cmocka_unit_test(any_changed_character_shows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
