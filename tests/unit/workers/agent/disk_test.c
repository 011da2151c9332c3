/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/disk.c, and cache.c on top of it. */
#include "tests/unit/workers/agent/agent_fixture.h"

#include "core/base/file.h"
#include "core/crypto/digest.h"
#include "workers/agent/cache.h"
#include "workers/agent/disk.h"

static void names_that_lead_away_are_refused(void **state)
{
	static const char *const bad[] = { "", ".", "..", ".x", "a/b", "/a", "../a" };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(disk_name_ok(bad[i]));
	assert_true(disk_name_ok("model.safetensors"));
}

static void expect_tail(void **state, const char *content, int lines, const char *expected)
{
	struct json_writer w;
	cleanup(buf_finish) struct buf out;
	fixture_write(fixture_path(state, "log"), content, strlen(content));
	buf_init(&out, 1 << 20);
	json_writer_init(&w, &out);
	json_begin_array(&w);
	disk_tail(fixture_path(state, "log"), lines, &w);
	json_end_array(&w);
	assert_string_equal(buf_cstr(&out), expected);
}

static void the_tail_is_the_last_lines(void **state)
{
	expect_tail(state, "", 3, "[]");
	expect_tail(state, "\n\n", 3, "[]");
	expect_tail(state, "one", 3, "[\"one\"]");
	expect_tail(state, "one\ntwo\nthree\nfour\n", 2, "[\"three\",\"four\"]");
	expect_tail(state, "one\n\ntwo\n\n\n", 3, "[\"one\",\"\",\"two\"]");
	char big[40000];
	memset(big, 'x', sizeof(big));
	memcpy(big + sizeof(big) - 5, "\nend", 5);
	struct json_writer w;
	cleanup(buf_finish) struct buf out;
	fixture_write(fixture_path(state, "log"), big, sizeof(big) - 1);
	buf_init(&out, 1 << 20);
	json_writer_init(&w, &out);
	json_begin_array(&w);
	disk_tail(fixture_path(state, "log"), 5, &w);
	json_end_array(&w);
	assert_true(out.len < 1000);
	assert_string_equal(out.data + out.len - 7, ",\"end\"]");
}

static bool busy_job(void *ctx, const char *job_id)
{
	(void)ctx;
	return strcmp(job_id, "job_busy") == 0;
}

static void the_cache_trusts_only_the_hash(void **state)
{
	struct err err = { 0 };
	char hex[DIGEST_HEX_MAX], path[FILE_PATH_MAX];
	const char *dir = *state;
	assert_int_equal(digest_hex_of("hello", 5, hex), 0);
	assert_int_equal(cache_init(dir, &err), 0);
	assert_int_equal(cache_path(dir, "job_1", hex, path, &err), 0);
	assert_false(cache_good(path, hex, 5));
	fixture_write(path, "hello", 5);
	assert_true(cache_good(path, hex, 5));
	assert_false(cache_good(path, hex, 6));
	fixture_write(path, "hellO", 5);
	assert_false(cache_good(path, hex, 5));
	assert_true(cache_path(dir, "../job", hex, path, &err) < 0);
	/* Somebody made room. */
	assert_int_equal(file_remove_tree(fixture_path(state, "cache"), &err), 0);
	assert_int_equal(cache_path(dir, "job_1", hex, path, &err), 0);
	assert_true(file_exists(fixture_path(state, "cache/job_1")));
}

static void the_sweep_spares_what_is_in_use_or_young(void **state)
{
	struct err err = { 0 };
	char path[FILE_PATH_MAX];
	const char *dir = *state;
	assert_int_equal(cache_init(dir, &err), 0);
	assert_int_equal(cache_path(dir, "job_busy", "x", path, &err), 0);
	assert_int_equal(cache_path(dir, "job_idle", "x", path, &err), 0);
	fixture_write(path, "x", 1);
	cache_sweep(dir, 3600, busy_job, NULL);
	assert_true(file_exists(fixture_path(state, "cache/job_idle/x")));
	cache_sweep(dir, 0, busy_job, NULL);
	assert_false(file_exists(fixture_path(state, "cache/job_idle")));
	assert_true(file_exists(fixture_path(state, "cache/job_busy")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_that_lead_away_are_refused),
		cmocka_unit_test(the_tail_is_the_last_lines),
		cmocka_unit_test(the_cache_trusts_only_the_hash),
		cmocka_unit_test(the_sweep_spares_what_is_in_use_or_young),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
