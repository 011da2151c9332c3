/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/settings.c. */
#include "core/base/settings.h"
#include "tests/support/check.h"

#include <unistd.h>

struct sample {
	char url[SETTING_STR_MAX];
	int64_t pool_size;
	bool verbose;
	char token[SETTING_STR_MAX];
};

static const struct setting TABLE[] = {
	{ "test_url", SETTING_STR, "postgres://", 0, 0, offsetof(struct sample, url), false, "Where." },
	{ "test_pool_size", SETTING_I64, "8", 1, 64, offsetof(struct sample, pool_size), false,
		"Connections." },
	{ "test_verbose", SETTING_BOOL, "false", 0, 0, offsetof(struct sample, verbose), false,
		"More lines." },
	{ "test_token", SETTING_STR, NULL, 0, 0, offsetof(struct sample, token), true, "Secret." },
};

static char file_path[64];

static const char *write_file(const char *text)
{
	(void)snprintf(file_path, sizeof(file_path), "/tmp/trainyard-settings.%d", (int)getpid());
	FILE *f = fopen(file_path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	return file_path;
}

static int clear(void **state)
{
	(void)unlink(file_path);
	(void)unsetenv("TRAINYARD_TEST_URL");
	(void)unsetenv("TRAINYARD_TEST_POOL_SIZE");
	(void)unsetenv("TRAINYARD_TEST_VERBOSE");
	(void)unsetenv("TRAINYARD_TEST_TOKEN");
	return 0;
}

static int load(
	const char *file, const char *const *given, struct sample *s, int *rest, struct err *err)
{
	char *argv[8] = { NULL };
	int argc = 0;
	for (; given[argc]; argc++) {
		argv[argc] = strdup(given[argc]);
		assert_non_null(argv[argc]);
	}
	int r = settings_load(TABLE, ARRAY_LEN(TABLE), file, argc, argv, s, rest, err);
	for (int i = 0; i < argc; i++)
		free(argv[i]);
	return r;
}

static void later_sources_win(void **state)
{
	struct sample s = { 0 };
	struct err err = { 0 };
	int rest = -1;
	const char *const none[] = { "program", NULL };
	(void)setenv("TRAINYARD_TEST_TOKEN", "t", 1);
	assert_int_equal(load(NULL, none, &s, &rest, &err), 0);
	assert_string_equal(s.url, "postgres://");
	assert_int_equal(s.pool_size, 8);
	assert_false(s.verbose);
	assert_int_equal(rest, 1);

	const char *file =
		write_file("# comment\n\n  test_pool_size =  9 \r\ntest_verbose=on\ntest_url = file = x");
	assert_int_equal(load(file, none, &s, &rest, &err), 0);
	assert_string_equal(s.url, "file = x");
	assert_int_equal(s.pool_size, 9);
	assert_true(s.verbose);

	(void)setenv("TRAINYARD_TEST_POOL_SIZE", "10", 1);
	assert_int_equal(load(file, none, &s, &rest, &err), 0);
	assert_int_equal(s.pool_size, 10);

	const char *const args[] = { "program", "--test_pool_size=11", "--test-verbose=no", "run",
		"--x=1", NULL };
	assert_int_equal(load(file, args, &s, &rest, &err), 0);
	assert_int_equal(s.pool_size, 11);
	assert_false(s.verbose);
	assert_int_equal(rest, 3);
}

static void errors_name_key_source_and_line(void **state)
{
	static const struct {
		const char *file, *env, *arg;
		int code;
		const char *words[4];
	} cases[] = {
		{ "test_token=t\ntest_pool_size = 65\n", NULL, NULL, ERR_INVALID_VALUE,
			{ "test_pool_size", "line 2", "65", "1 to 64" } },
		{ "\nnonsense\n", NULL, NULL, ERR_INVALID_VALUE, { "line 2" } },
		{ "a=1\n", NULL, NULL, ERR_UNKNOWN_FIELD, { "line 1", "no such setting" } },
		{ "test_url=1\ntest_url=2\n", NULL, NULL, ERR_INVALID_VALUE, { "line 2", "before" } },
		{ NULL, "many", NULL, ERR_INVALID_VALUE,
			{ "environment TRAINYARD_TEST_POOL_SIZE", "many", "test_pool_size" } },
		{ NULL, NULL, "--test_verbose=maybe", ERR_INVALID_VALUE,
			{ "argument 1", "maybe", "test_verbose" } },
		{ NULL, NULL, NULL, ERR_MISSING_FIELD,
			{ "test_token", "TRAINYARD_TEST_TOKEN", "--test_token=" } },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct sample s = { 0 };
		struct err err = { 0 };
		int rest;
		const char *const argv[] = { "program", cases[i].arg, NULL };
		(void)unsetenv("TRAINYARD_TEST_POOL_SIZE");
		if (cases[i].env)
			(void)setenv("TRAINYARD_TEST_POOL_SIZE", cases[i].env, 1);
		const char *file = cases[i].file ? write_file(cases[i].file) : NULL;
		assert_int_equal(load(file, argv, &s, &rest, &err), cases[i].code);
		for (size_t k = 0; k < 4 && cases[i].words[k]; k++) {
			if (!strstr(err.message, cases[i].words[k]))
				fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].words[k]);
		}
	}
}

static void missing_file_and_long_values(void **state)
{
	struct sample s = { 0 };
	struct err err = { 0 };
	int rest;
	const char *const none[] = { "program", NULL };
	assert_int_equal(load("/nonexistent/x", none, &s, &rest, &err), ERR_IO);
	assert_non_null(strstr(err.message, "/nonexistent/x"));
	char value[SETTING_STR_MAX + 1] = { 0 };
	memset(value, 'x', SETTING_STR_MAX);
	(void)setenv("TRAINYARD_TEST_TOKEN", value, 1);
	assert_int_equal(load(NULL, none, &s, &rest, &err), ERR_INVALID_VALUE);
	assert_null(strstr(err.message, "xxxx"));
	value[SETTING_STR_MAX - 1] = '\0';
	(void)setenv("TRAINYARD_TEST_TOKEN", value, 1);
	assert_int_equal(load(NULL, none, &s, &rest, &err), 0);
	assert_string_equal(s.token, value);
}

static void the_table_prints(void **state)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 10000);
	assert_int_equal(settings_print(TABLE, ARRAY_LEN(TABLE), &out), 0);
	assert_string_equal(buf_cstr(&out),
		"| Key | Environment | Default | Meaning |\n|---|---|---|---|\n"
		"| `test_url` | `TRAINYARD_TEST_URL` | `postgres://` | Where. |\n"
		"| `test_pool_size` | `TRAINYARD_TEST_POOL_SIZE` | `8` | Connections. (1 to 64) |\n"
		"| `test_verbose` | `TRAINYARD_TEST_VERBOSE` | `false` | More lines. |\n"
		"| `test_token` | `TRAINYARD_TEST_TOKEN` | required | Secret. |\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(later_sources_win, clear),
		cmocka_unit_test_teardown(errors_name_key_source_and_line, clear),
		cmocka_unit_test_teardown(missing_file_and_long_values, clear),
		cmocka_unit_test(the_table_prints),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
