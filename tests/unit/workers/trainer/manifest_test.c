/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/manifest.c: only a folder whose files are exactly as listed is good. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "core/base/file.h"
#include "workers/trainer/manifest.h"

static const char *make_folder(struct fixture *f)
{
	const char *dir = fixture_path(f, "ckpt");
	struct err err = { 0 };
	struct manifest m = { .step = 7 };
	char path[200];
	assert_int_equal(file_remove_tree(dir, &err), 0);
	assert_int_equal(file_mkdir(dir, &err), 0);
	for (int i = 0; i < 2; i++) {
		const char *name = i == 0 ? "a.bin" : "b.bin";
		assert_int_equal(manifest_add(&m, name, &err), 0);
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		fixture_write(path, i == 0 ? "hello" : "", i == 0 ? 5 : 0);
	}
	assert_int_equal(manifest_seal(&m, dir, &err), 0);
	assert_int_equal(m.files[0].bytes, 5);
	return dir;
}

static void refuses(struct fixture *f, const char *file, const char *content, size_t bytes)
{
	struct err err = { 0 };
	struct manifest m = { .step = -1 };
	char path[200];
	const char *dir = make_folder(f);
	assert_int_equal(manifest_verify(dir, &m, &err), 0);
	assert_int_equal(m.step, 7);
	assert_int_equal(m.count, 2);
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (content == NULL)
		assert_int_equal(unlink(path), 0);
	else
		fixture_write(path, content, bytes);
	m.step = -1;
	assert_int_equal(manifest_verify(dir, &m, &err), ERR_INVALID_DATA);
	assert_int_equal(m.step, -1);
	assert_non_null(strstr(err.message, file));
}

static void torn_and_changed_files_are_refused(void **state)
{
	refuses(*state, "a.bin", "hell", 4);
	refuses(*state, "a.bin", "hello!", 6);
	refuses(*state, "a.bin", "hellO", 5);
	refuses(*state, "b.bin", "x", 1);
	refuses(*state, "a.bin", NULL, 0);
	refuses(*state, "manifest.json", NULL, 0);
	refuses(*state, "manifest.json", "", 0);
	refuses(*state, "manifest.json", "{}", 2);
}

static void a_link_is_no_file(void **state)
{
	struct err err = { 0 };
	struct manifest m;
	char path[200];
	const char *dir = make_folder(*state);
	snprintf(path, sizeof(path), "%s/b.bin", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/dev/null", path), 0);
	assert_int_equal(manifest_verify(dir, &m, &err), ERR_INVALID_DATA);
}

/* Each of them is there, with the bytes and the hash that are claimed. */
static void names_that_lead_away_are_refused(void **state)
{
	static const char *const names[] = { "../outside", "sub/file", ".hidden", "./file", "",
		"manifest.json" };
	char hash[DIGEST_HEX_MAX];
	assert_int_equal(digest_hex_of("", 0, hash), 0);
	fixture_write(fixture_path(*state, "outside"), "", 0);
	for (size_t i = 0; i < ARRAY_LEN(names) + 1; i++) {
		struct err err = { 0 };
		struct manifest m;
		char text[400], path[200];
		const char *name = i < ARRAY_LEN(names) ? names[i] : "file";
		const char *dir = make_folder(*state);
		snprintf(path, sizeof(path), "%s/sub", dir);
		assert_int_equal(file_mkdir(path, &err), 0);
		static const char *const made[] = { "sub/file", ".hidden", "file" };
		for (size_t k = 0; k < ARRAY_LEN(made); k++) {
			snprintf(path, sizeof(path), "%s/%s", dir, made[k]);
			fixture_write(path, "", 0);
		}
		snprintf(path, sizeof(path), "%s/manifest.json", dir);
		int n = snprintf(text, sizeof(text),
			"{\"format\":1,\"step\":1,\"files\":[{\"name\":\"%s\",\"sha256\":\"%s\",\"bytes\":0}]}",
			name, hash);
		fixture_write(path, text, (size_t)n);
		int expected = i < ARRAY_LEN(names) ? ERR_INVALID_DATA : 0;
		if (manifest_verify(dir, &m, &err) != expected)
			fail_msg("the name \"%s\": %s", name, err.message);
	}
}

static void the_list_has_an_end(void **state)
{
	static struct manifest m;
	struct err err = { 0 };
	(void)state;
	for (int i = 0; i < MANIFEST_FILES_MAX; i++)
		assert_int_equal(manifest_add(&m, "x", &err), 0);
	assert_int_equal(manifest_add(&m, "x", &err), ERR_TOO_LARGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(torn_and_changed_files_are_refused),
		cmocka_unit_test(a_link_is_no_file),
		cmocka_unit_test(names_that_lead_away_are_refused),
		cmocka_unit_test(the_list_has_an_end),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
