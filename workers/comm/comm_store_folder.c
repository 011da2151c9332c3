/* SPDX-License-Identifier: Apache-2.0
 * A store in a folder: a file a key, written beside it and renamed. Nothing is synced: the values
 * live as long as the processes that need them. */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "workers/comm/comm_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	POLL_MS = 2, /* between two looks */
	TEMPORARY_MAX = 64,
	FILE_MODE = 0600,
};

struct folder {
	struct comm_store base;
	char dir[FILE_PATH_MAX];
	atomic_int writes; /* two threads never share a temporary file */
};

static int write_new(const char *path, const void *value, size_t bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be made", path);
	if (file_write_fd(fd, value, bytes) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be written", path);
	return 0;
}

static int folder_put(
	struct comm_store *s, const char *key, const void *value, size_t bytes, struct err *err)
{
	struct folder *f = (struct folder *)s;
	char temporary[FILE_PATH_MAX], path[FILE_PATH_MAX], name[TEMPORARY_MAX];
	/* No key begins with a point. */
	snprintf(name, sizeof(name), ".%ld.%d", (long)getpid(), atomic_fetch_add(&f->writes, 1));
	int rc = file_join(temporary, f->dir, name, err);
	if (rc == 0)
		rc = file_join(path, f->dir, key, err);
	if (rc == 0)
		rc = write_new(temporary, value, bytes, err);
	if (rc == 0 && rename(temporary, path) < 0)
		rc = err_errno(err, ERR_IO, errno, "%s cannot be named", path);
	if (rc < 0)
		(void)unlink(temporary);
	return rc;
}

static int folder_get(struct comm_store *s, const char *key, int64_t wait_ms, char **ret_value,
	size_t *ret_bytes, struct err *err)
{
	struct folder *f = (struct folder *)s;
	char path[FILE_PATH_MAX];
	int rc = file_join(path, f->dir, key, err);
	if (rc < 0)
		return rc;
	const struct clock *clock = clock_system();
	int64_t end_us = clock_mono_us(clock) + wait_ms * 1000;
	while (!file_exists(path)) {
		if (clock_mono_us(clock) >= end_us)
			return err_set(
				err, ERR_TIMEOUT, NULL, "%s had no value after %lld ms", key, (long long)wait_ms);
		nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * 1000000L }, NULL);
	}
	return file_read(path, COMM_STORE_VALUE_MAX, ret_value, ret_bytes, err);
}

static void folder_destroy(struct comm_store *s)
{
	free(s);
}

int comm_store_folder_open(const char *dir, struct comm_store **ret, struct err *err)
{
	static const struct comm_store_ops ops = {
		.put = folder_put,
		.get = folder_get,
		.destroy = folder_destroy,
	};
	if (strlen(dir) >= FILE_PATH_MAX - COMM_STORE_KEY_MAX || access(dir, W_OK | X_OK) < 0)
		return err_set(err, ERR_IO, NULL, "%.300s is not a folder that can be written", dir);
	struct folder *f = calloc(1, sizeof(*f));
	if (f == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a store");
	f->base.ops = &ops;
	memcpy(f->dir, dir, strlen(dir) + 1);
	*ret = &f->base;
	return 0;
}
