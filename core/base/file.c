/* SPDX-License-Identifier: Apache-2.0
 * Small files and folders. */
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	REMOVE_OPEN_FDS = 16,
	NAME_BYTES_MAX = 256,
	SIZELESS_MAX = 4096, /* read of a file that does not tell its size */
	DIR_MODE = 0700,
	FILE_MODE = 0600,
};

int file_join(
	char ret_path[static FILE_PATH_MAX], const char *dir, const char *name, struct err *err)
{
	int n = snprintf(ret_path, FILE_PATH_MAX, "%s/%s", dir, name);
	if (n < 0 || n >= FILE_PATH_MAX)
		return err_set(
			err, ERR_INVALID_VALUE, NULL, "the path %.300s/%.100s is too long", dir, name);
	return 0;
}

bool file_exists(const char *path)
{
	return access(path, F_OK) == 0;
}

int file_mkdir(const char *path, struct err *err)
{
	if (mkdir(path, DIR_MODE) < 0 && errno != EEXIST)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be made", path);
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

int file_remove_tree(const char *path, struct err *err)
{
	if (nftw(path, remove_one, REMOVE_OPEN_FDS, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "%s cannot be removed", path);
	return 0;
}

int file_sync_dir(const char *path, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be opened", path);
	if (fsync(fd) < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be synced", path);
	return 0;
}

int file_read_fd(int fd, void *into, size_t max_bytes, size_t *ret_bytes)
{
	size_t have = 0;
	while (have < max_bytes) {
		ssize_t n = read(fd, (char *)into + have, max_bytes - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ERR_IO;
		if (n == 0)
			break;
		have += (size_t)n;
	}
	*ret_bytes = have;
	return 0;
}

/* Opened without waiting for the other end of what turns out to be a pipe. */
static int open_regular(
	const char *path, int64_t max_bytes, int *ret_fd, size_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, ERR_IO, NULL, "%s is not a regular file", path);
	if (st.st_size > max_bytes)
		return err_set(err, ERR_TOO_LARGE, NULL, "%s has %lld bytes; at most %lld are read", path,
			(long long)st.st_size, (long long)max_bytes);
	*ret_bytes = (size_t)st.st_size;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

int file_read(
	const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = -1;
	size_t size = 0, have = 0;
	int rc = open_regular(path, max_bytes, &fd, &size, err);
	if (rc < 0)
		return rc;
	size_t room = size > 0 ? size : max_bytes < SIZELESS_MAX ? (size_t)max_bytes : SIZELESS_MAX;
	cleanup(freep) char *text = malloc(room + 1);
	if (!text)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read %s", path);
	if (file_read_fd(fd, text, room, &have) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be read", path);
	if (have < size)
		return err_set(err, ERR_IO, NULL, "%s became shorter while it was read", path);
	text[have] = '\0';
	*ret_text = take_ptr(text);
	*ret_bytes = have;
	return 0;
}

int file_write_fd(int fd, const void *data, size_t bytes)
{
	const char *at = data;
	while (bytes > 0) {
		ssize_t n = write(fd, at, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ERR_IO;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int file_write_atomic(
	const char *dir, const char *name, const void *data, size_t bytes, struct err *err)
{
	char hidden[NAME_BYTES_MAX];
	int n = snprintf(hidden, sizeof(hidden), ".%s.new", name);
	if (n < 0 || n >= (int)sizeof(hidden))
		return err_set(err, ERR_INVALID_VALUE, NULL, "the name %.100s is too long", name);
	cleanup(closep) int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be opened", dir);
	cleanup(closep) int fd =
		openat(folder, hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
	if (fd < 0 || file_write_fd(fd, data, bytes) < 0 || fsync(fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s/%s cannot be written", dir, name);
	if (renameat(folder, hidden, folder, name) < 0 || fsync(folder) < 0)
		return err_errno(err, ERR_IO, errno, "%s/%s cannot be published", dir, name);
	return 0;
}
