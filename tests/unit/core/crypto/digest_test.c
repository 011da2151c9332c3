/* SPDX-License-Identifier: Apache-2.0
 * Tests core/crypto/digest.c with the vectors of FIPS 180-2. */
#include "core/crypto/digest.h"
#include "tests/support/check.h"

#include <unistd.h>

static const char EMPTY[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char ABC[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char MILLION_A[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void known_vectors(void **state)
{
	char hex[DIGEST_HEX_MAX];
	assert_int_equal(digest_hex_of("abc", 3, hex), 0);
	assert_string_equal(hex, ABC);
	assert_int_equal(digest_hex_of("", 0, hex), 0);
	assert_string_equal(hex, EMPTY);
	assert_int_equal(digest_hex_of(NULL, 0, hex), 0);
	assert_string_equal(hex, EMPTY);
}

static void pieces_make_the_whole(void **state)
{
	struct check_random random = check_random_start();
	char chunk[1000];
	memset(chunk, 'a', sizeof(chunk));
	cleanup(digest_destroyp) struct digest *d = NULL;
	assert_int_equal(digest_create(&d), 0);
	size_t left = 1000000;
	while (left) {
		size_t bytes = (size_t)check_random_range(&random, 0, sizeof(chunk));
		if (bytes > left)
			bytes = left;
		assert_int_equal(digest_update(d, chunk, bytes), 0);
		left -= bytes;
	}
	unsigned char sum[DIGEST_BYTES];
	char hex[DIGEST_HEX_MAX];
	assert_int_equal(digest_final(d, sum), 0);
	digest_to_hex(sum, hex);
	assert_string_equal(hex, MILLION_A);
}

static void files_are_read_whole(void **state)
{
	char path[] = "/tmp/trainyard-digest.XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	char chunk[1000];
	memset(chunk, 'a', sizeof(chunk));
	for (int i = 0; i < 1000; i++)
		assert_int_equal(write(fd, chunk, sizeof(chunk)), sizeof(chunk));
	(void)close(fd);
	char hex[DIGEST_HEX_MAX] = "untouched";
	int64_t bytes = -1;
	struct err err = { 0 };
	assert_int_equal(digest_file(path, hex, &bytes, &err), 0);
	assert_string_equal(hex, MILLION_A);
	assert_int_equal(bytes, 1000000);
	assert_int_equal(digest_file(path, hex, NULL, NULL), 0);
	(void)unlink(path);

	bytes = -1;
	assert_int_equal(digest_file(path, hex, &bytes, &err), ERR_IO);
	assert_int_equal(bytes, -1);
	assert_non_null(strstr(err.message, path));
	assert_int_equal(digest_file("/tmp", hex, &bytes, &err), ERR_IO);
}

static void hex_is_strict(void **state)
{
	assert_true(digest_is_hex(ABC));
	assert_false(digest_is_hex(NULL));
	assert_false(digest_is_hex(""));
	assert_false(digest_is_hex(ABC + 1));
	char text[DIGEST_HEX_MAX + 1];
	memcpy(text, ABC, sizeof(ABC));
	text[3] = 'A';
	assert_false(digest_is_hex(text));
	text[3] = 'g';
	assert_false(digest_is_hex(text));
	text[3] = 'a';
	text[64] = '0';
	text[65] = '\0';
	assert_false(digest_is_hex(text));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_vectors),
		cmocka_unit_test(pieces_make_the_whole),
		cmocka_unit_test(files_are_read_whole),
		cmocka_unit_test(hex_is_strict),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
