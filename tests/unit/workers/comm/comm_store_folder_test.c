/* SPDX-License-Identifier: Apache-2.0
 * Values in a folder: keys, limits, waiting, and a writer in another process. */
#include "tests/unit/workers/comm/comm_fixture.h"

enum { WAIT_MS = 50, VALUES = 200 };

static int open_store(void **state)
{
	static char dir[64];
	struct comm_store *s = NULL;
	snprintf(dir, sizeof(dir), "/tmp/trainyard-comm-XXXXXX");
	if (mkdtemp(dir) == NULL || comm_store_folder_open(dir, &s, NULL) < 0)
		return -1;
	static void *both[2];
	both[0] = s;
	both[1] = dir;
	*state = both;
	return 0;
}

static int close_store(void **state)
{
	void **both = *state;
	comm_store_destroy(both[0]);
	return file_remove_tree(both[1], NULL);
}

static void values_are_kept(void **state)
{
	struct comm_store *s = ((void **)*state)[0];
	struct err err = { 0 };
	char *value = NULL;
	size_t bytes = 0;
	assert_int_equal(comm_store_put(s, "a.b-c_1", "x\0y", 3, &err), 0);
	assert_int_equal(comm_store_get(s, "a.b-c_1", 0, &value, &bytes, &err), 0);
	assert_int_equal(bytes, 3);
	assert_memory_equal(value, "x\0y", 4);
	free(value);
	assert_int_equal(comm_store_put(s, "a.b-c_1", "", 0, &err), 0);
	assert_int_equal(comm_store_get(s, "a.b-c_1", 0, &value, &bytes, &err), 0);
	assert_int_equal(bytes, 0);
	free(value);
}

static void what_is_wrong_is_refused(void **state)
{
	struct comm_store *s = ((void **)*state)[0];
	struct err err = { 0 };
	char long_key[COMM_STORE_KEY_MAX + 1], *value = NULL;
	size_t bytes = 0;
	memset(long_key, 'k', sizeof(long_key));
	long_key[COMM_STORE_KEY_MAX] = '\0';
	const char *const wrong[] = { "", ".hidden", "..", "a/b", "/etc/passwd", "A", "a b", long_key };
	for (size_t n = 0; n < ARRAY_LEN(wrong); n++) {
		assert_int_equal(comm_store_put(s, wrong[n], "x", 1, &err), ERR_INVALID_VALUE);
		assert_int_equal(comm_store_get(s, wrong[n], 0, &value, &bytes, &err), ERR_INVALID_VALUE);
	}
	long_key[COMM_STORE_KEY_MAX - 1] = '\0';
	assert_int_equal(comm_store_put(s, long_key, "x", 1, &err), 0);
	char *large = calloc(1, COMM_STORE_VALUE_MAX + 1);
	assert_non_null(large);
	assert_int_equal(comm_store_put(s, "l", large, COMM_STORE_VALUE_MAX, &err), 0);
	assert_int_equal(comm_store_put(s, "l", large, COMM_STORE_VALUE_MAX + 1, &err), ERR_TOO_LARGE);
	free(large);
	struct comm_store *none = NULL;
	assert_int_equal(comm_store_folder_open("/nowhere/at/all", &none, &err), ERR_IO);
}

static void a_get_waits_as_long_as_told(void **state)
{
	struct comm_store *s = ((void **)*state)[0];
	struct err err = { 0 };
	char *value = NULL;
	size_t bytes = 0;
	int64_t begin = fixture_now_ms();
	assert_int_equal(comm_store_get(s, "later", WAIT_MS, &value, &bytes, &err), ERR_TIMEOUT);
	assert_true(fixture_now_ms() - begin >= WAIT_MS - 1);
	pid_t child = fork();
	if (child == 0) {
		for (int n = 0; n < VALUES; n++) { /* each longer than the last: none is seen half */
			char key[32], text[VALUES + 1];
			memset(text, 'v', sizeof(text));
			snprintf(key, sizeof(key), "later.%d", n);
			if (comm_store_put(s, key, text, (size_t)n, NULL) < 0)
				_exit(1);
		}
		_exit(0);
	}
	for (int n = 0; n < VALUES; n++) {
		char key[32];
		snprintf(key, sizeof(key), "later.%d", n);
		assert_int_equal(comm_store_get(s, key, FIXTURE_DEADLINE_MS, &value, &bytes, &err), 0);
		assert_int_equal(bytes, n);
		free(value);
	}
	int status = 1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(values_are_kept, open_store, close_store),
		cmocka_unit_test_setup_teardown(what_is_wrong_is_refused, open_store, close_store),
		cmocka_unit_test_setup_teardown(a_get_waits_as_long_as_told, open_store, close_store),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
