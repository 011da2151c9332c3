/* SPDX-License-Identifier: Apache-2.0
 * What the agent's tests share: a temporary folder that leaves with the test. */
#pragma once

#include "tests/support/check.h"

#include "core/base/err.h"
#include "core/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE_FN static __attribute__((unused))

FIXTURE_FN int fixture_setup(void **state)
{
	char *dir = strdup("/tmp/agent_test_XXXXXX");
	assert_non_null(mkdtemp(dir));
	*state = dir;
	return 0;
}

FIXTURE_FN int fixture_teardown(void **state)
{
	struct err err = { 0 };
	int rc = file_remove_tree(*state, &err);
	free(*state);
	return rc;
}

/* "<dir>/<name>"; the text lives until the fourth next call. */
FIXTURE_FN const char *fixture_path(void **state, const char *name)
{
	static char paths[4][200];
	static int next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/%s", (const char *)*state, name);
	return path;
}

FIXTURE_FN void fixture_write(const char *path, const void *bytes, size_t count)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, count), count);
	close(fd);
}
