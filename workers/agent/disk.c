/* SPDX-License-Identifier: Apache-2.0
 * The agent's files. */
#include "workers/agent/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	REMOVE_OPEN_FDS = 16,
	PROC_FILE_MAX = 4096,
	TAIL_BYTES = 16 * 1024,
	TAIL_LINE_MAX = 400, /* bytes of one line that are told */
};

int disk_join(
	char ret_path[static DISK_PATH_MAX], const char *dir, const char *name, struct err *err)
{
	int n = snprintf(ret_path, DISK_PATH_MAX, "%s/%s", dir, name);
	if (n < 0 || n >= DISK_PATH_MAX)
		return err_set(
			err, ERR_INVALID_VALUE, NULL, "the path %.300s/%.100s is too long", dir, name);
	return 0;
}

bool disk_exists(const char *path)
{
	return access(path, F_OK) == 0;
}

bool disk_name_ok(const char *name)
{
	return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= 200;
}

int disk_mkdir(const char *path, struct err *err)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
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

int disk_remove_tree(const char *path, struct err *err)
{
	if (nftw(path, remove_one, REMOVE_OPEN_FDS, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "%s cannot be removed", path);
	return 0;
}

/* Up to max_bytes from an open file's present position. */
static int read_fd(int fd, char *into, size_t max_bytes, size_t *ret_bytes)
{
	size_t have = 0;
	while (have < max_bytes) {
		ssize_t n = read(fd, into + have, max_bytes - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		have += (size_t)n;
	}
	*ret_bytes = have;
	return 0;
}

int disk_read(
	const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (!S_ISREG(st.st_mode) || st.st_size > max_bytes)
		return err_set(err, ERR_TOO_LARGE, NULL, "%s is no file of at most %lld bytes", path,
			(long long)max_bytes);
	/* Files of /proc say that they have no bytes. */
	size_t room = st.st_size > 0 ? (size_t)st.st_size : PROC_FILE_MAX;
	cleanup(freep) char *text = malloc(room + 1);
	size_t bytes = 0;
	if (text == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read %s", path);
	int rc = read_fd(fd, text, room, &bytes);
	if (rc < 0)
		return err_errno(err, ERR_IO, -rc, "%s cannot be read", path);
	text[bytes] = '\0';
	*ret_text = take_ptr(text);
	*ret_bytes = bytes;
	return 0;
}

static int write_all(int fd, const char *text, size_t bytes)
{
	while (bytes > 0) {
		ssize_t n = write(fd, text, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		text += n;
		bytes -= (size_t)n;
	}
	return fsync(fd);
}

int disk_write_atomic(
	const char *dir, const char *name, const char *text, size_t bytes, struct err *err)
{
	cleanup(closep) int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char hidden[256];
	if (folder < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be opened", dir);
	snprintf(hidden, sizeof(hidden), ".%s.new", name);
	cleanup(closep) int fd =
		openat(folder, hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || write_all(fd, text, bytes) < 0)
		return err_errno(err, ERR_IO, errno, "%s/%s cannot be written", dir, name);
	if (renameat(folder, hidden, folder, name) < 0 || fsync(folder) < 0)
		return err_errno(err, ERR_IO, errno, "%s/%s cannot be published", dir, name);
	return 0;
}

void disk_tail(const char *path, int lines, struct json_writer *w)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	cleanup(freep) char *text = malloc(TAIL_BYTES + 1);
	struct stat st;
	size_t bytes = 0;
	if (fd < 0 || text == NULL || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	if (st.st_size > TAIL_BYTES && lseek(fd, st.st_size - TAIL_BYTES, SEEK_SET) < 0)
		return;
	if (read_fd(fd, text, TAIL_BYTES, &bytes) < 0)
		return;
	text[bytes] = '\0';
	while (bytes > 0 && text[bytes - 1] == '\n')
		text[--bytes] = '\0';
	char *from = text + bytes;
	for (int found = 0; from > text; from--)
		if (from[-1] == '\n' && ++found == lines)
			break;
	while (bytes > 0 && from != NULL && *from != '\0') {
		size_t length = strcspn(from, "\n");
		json_put_strn(w, from, length < TAIL_LINE_MAX ? length : TAIL_LINE_MAX);
		from += length + (from[length] == '\n');
	}
}
