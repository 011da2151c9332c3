/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/file.c in a temporary folder. */
#include "core/base/file.h"
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int setup(void **state)
{
	char *dir = strdup("/tmp/file_test_XXXXXX");
	assert_non_null(mkdtemp(dir));
	*state = dir;
	return 0;
}

static int teardown(void **state)
{
	struct err err = { 0 };
	int r = file_remove_tree(*state, &err);
	free(*state);
	return r;
}

/* "<dir>/<name>"; the text lives until the fourth next call. */
static const char *in(void **state, const char *name)
{
	static char paths[4][FILE_PATH_MAX];
	static int next;
	char *path = paths[next++ % 4];
	assert_int_equal(file_join(path, *state, name, NULL), 0);
	return path;
}

static void put(const char *path, const char *text)
{
	cleanup(closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(file_write_fd(fd, text, strlen(text)), 0);
}

static void a_path_that_does_not_fit_is_refused(void **state)
{
	char path[FILE_PATH_MAX] = "kept", name[FILE_PATH_MAX];
	struct err err = { 0 };
	memset(name, 'a', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(file_join(path, "/x", name, &err), ERR_INVALID_VALUE);
	name[FILE_PATH_MAX - 1 - strlen("/x/")] = '\0';
	assert_int_equal(file_join(path, "/x", name, &err), 0);
	assert_int_equal(strlen(path), FILE_PATH_MAX - 1);
}

static void folders_are_made_once_and_only_for_us(void **state)
{
	struct err err = { 0 };
	struct stat st;
	for (int i = 0; i < 2; i++)
		assert_int_equal(file_mkdir(in(state, "made"), &err), 0);
	assert_int_equal(stat(in(state, "made"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(file_mkdir(in(state, "absent/deep"), &err), ERR_IO);
	assert_int_equal(file_sync_dir(in(state, "made"), &err), 0);
	assert_int_equal(file_sync_dir(in(state, "absent"), &err), ERR_IO);
}

static void a_removed_folder_takes_no_link_target_along(void **state)
{
	struct err err = { 0 };
	assert_int_equal(file_mkdir(in(state, "keep"), &err), 0);
	put(in(state, "keep/file"), "x");
	assert_int_equal(file_mkdir(in(state, "gone"), &err), 0);
	assert_int_equal(file_mkdir(in(state, "gone/deep"), &err), 0);
	put(in(state, "gone/deep/file"), "x");
	assert_int_equal(symlink(in(state, "keep"), in(state, "gone/link")), 0);
	assert_int_equal(file_remove_tree(in(state, "gone"), &err), 0);
	assert_false(file_exists(in(state, "gone")));
	assert_true(file_exists(in(state, "keep/file")));
	assert_int_equal(file_remove_tree(in(state, "gone"), &err), 0);
	assert_int_equal(file_remove_tree(in(state, "keep/file"), &err), 0);
	assert_false(file_exists(in(state, "keep/file")));
}

static void reading_is_bounded(void **state)
{
	struct err err = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	put(in(state, "ten"), "0123456789");
	assert_int_equal(file_read(in(state, "ten"), 9, &text, &bytes, &err), ERR_TOO_LARGE);
	assert_null(text);
	assert_int_equal(file_read(in(state, "ten"), 10, &text, &bytes, &err), 0);
	assert_string_equal(text, "0123456789");
	assert_int_equal(bytes, 10);
	free(text);
	put(in(state, "none"), "");
	assert_int_equal(file_read(in(state, "none"), 10, &text, &bytes, &err), 0);
	assert_string_equal(text, "");
	assert_int_equal(bytes, 0);
	free(text);
	assert_int_equal(file_read("/proc/sys/kernel/random/boot_id", 100, &text, &bytes, &err), 0);
	assert_true(bytes >= 36);
	free(text);
	assert_int_equal(file_read("/proc/sys/kernel/random/boot_id", 8, &text, &bytes, &err), 0);
	assert_int_equal(bytes, 8);
	free(text);
}

static void only_regular_files_are_read(void **state)
{
	struct err err = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	assert_int_equal(file_read(*state, 100, &text, &bytes, &err), ERR_IO);
	/* Nobody writes into the pipe: an open that waited would wait for ever. */
	assert_int_equal(mkfifo(in(state, "pipe"), 0600), 0);
	assert_int_equal(file_read(in(state, "pipe"), 100, &text, &bytes, &err), ERR_IO);
	assert_int_equal(file_read(in(state, "absent"), 100, &text, &bytes, &err), ERR_IO);
	assert_non_null(strstr(err.message, "absent"));
	assert_null(text);
}

static void a_descriptor_is_read_to_the_end_or_the_bound(void **state)
{
	int ends[2];
	char into[16];
	size_t bytes = 0;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(file_write_fd(ends[1], "abc", 3), 0);
	assert_int_equal(file_read_fd(ends[0], into, 2, &bytes), 0);
	assert_int_equal(bytes, 2);
	(void)close(ends[1]);
	assert_int_equal(file_read_fd(ends[0], into, sizeof(into), &bytes), 0);
	assert_int_equal(bytes, 1);
	assert_int_equal(into[0], 'c');
	(void)close(ends[0]);
	errno = 0;
	assert_int_equal(file_read_fd(-1, into, sizeof(into), &bytes), ERR_IO);
	assert_int_equal(errno, EBADF);
	assert_int_equal(file_write_fd(-1, "x", 1), ERR_IO);
}

static void a_written_file_replaces_the_old_one_whole(void **state)
{
	struct err err = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	for (int i = 0; i < 2; i++) {
		const char *content = i == 0 ? "a longer first text" : "second";
		assert_int_equal(file_write_atomic(*state, "file", content, strlen(content), &err), 0);
		assert_int_equal(file_read(in(state, "file"), 100, &text, &bytes, &err), 0);
		assert_string_equal(text, content);
		free(text);
	}
	assert_false(file_exists(in(state, ".file.new")));
	/* The name is taken by a folder: the write fails and the folder stays. */
	assert_int_equal(file_mkdir(in(state, "taken"), &err), 0);
	assert_int_equal(file_write_atomic(*state, "taken", "x", 1, &err), ERR_IO);
	assert_int_equal(file_sync_dir(in(state, "taken"), &err), 0);
	/* Nor does it follow a link that somebody put in its way. */
	put(in(state, "target"), "kept");
	assert_int_equal(symlink(in(state, "target"), in(state, ".led.new")), 0);
	assert_int_equal(file_write_atomic(*state, "led", "x", 1, &err), ERR_IO);
	assert_int_equal(file_read(in(state, "target"), 100, &text, &bytes, &err), 0);
	assert_string_equal(text, "kept");
	free(text);
	assert_int_equal(file_write_atomic(in(state, "absent"), "file", "x", 1, &err), ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_that_does_not_fit_is_refused),
		cmocka_unit_test(folders_are_made_once_and_only_for_us),
		cmocka_unit_test(a_removed_folder_takes_no_link_target_along),
		cmocka_unit_test(reading_is_bounded),
		cmocka_unit_test(only_regular_files_are_read),
		cmocka_unit_test(a_descriptor_is_read_to_the_end_or_the_bound),
		cmocka_unit_test(a_written_file_replaces_the_old_one_whole),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
