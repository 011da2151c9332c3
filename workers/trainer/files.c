/* SPDX-License-Identifier: Apache-2.0
 * Files that survive a crash. */
#include "workers/trainer/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REMOVE_OPEN_FDS = 16 };

int files_out_open(struct files_out *o, const char *path, struct err *err)
{
	o->bytes = 0;
	snprintf(o->path, sizeof(o->path), "%s", path);
	o->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (o->fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be created", path);
	int rc = digest_create(&o->digest);
	if (rc < 0)
		return err_set(err, rc, NULL, "no memory for a digest");
	return 0;
}

int files_out_write(struct files_out *o, const void *data, size_t bytes, struct err *err)
{
	const char *p = data;
	size_t left = bytes;
	while (left > 0) {
		ssize_t n = write(o->fd, p, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(err, ERR_IO, errno, "%s cannot be written", o->path);
		p += n;
		left -= (size_t)n;
	}
	int rc = digest_update(o->digest, data, bytes);
	if (rc < 0)
		return err_set(err, rc, NULL, "%s cannot be hashed", o->path);
	o->bytes += (int64_t)bytes;
	return 0;
}

int files_out_finish(struct files_out *o, char ret_hex[static DIGEST_HEX_MAX], struct err *err)
{
	unsigned char sum[DIGEST_BYTES];
	int rc = digest_final(o->digest, sum);
	if (rc < 0)
		return err_set(err, rc, NULL, "%s cannot be hashed", o->path);
	if (fsync(o->fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be synced", o->path);
	int fd = o->fd;
	o->fd = -1;
	if (close(fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be closed", o->path);
	digest_to_hex(sum, ret_hex);
	files_out_abort(o);
	return 0;
}

void files_out_abort(struct files_out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
	digest_destroy(o->digest);
	o->digest = NULL;
}

int files_join(
	char ret_path[static FILES_PATH_MAX], const char *dir, const char *name, struct err *err)
{
	int n = snprintf(ret_path, FILES_PATH_MAX, "%s/%s", dir, name);
	if (n < 0 || n >= FILES_PATH_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "the path %s/%s is too long", dir, name);
	return 0;
}

int files_mkdir(const char *path, struct err *err)
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

int files_remove_tree(const char *path, struct err *err)
{
	if (nftw(path, remove_one, REMOVE_OPEN_FDS, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "%s cannot be removed", path);
	return 0;
}

int files_sync_dir(const char *path, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be opened", path);
	if (fsync(fd) < 0)
		return err_errno(err, ERR_IO, errno, "the folder %s cannot be synced", path);
	return 0;
}

int files_read(
	const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be examined", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, ERR_IO, NULL, "%s is not a regular file", path);
	if (st.st_size > max_bytes)
		return err_set(err, ERR_TOO_LARGE, NULL, "%s has %lld bytes; at most %lld are read", path,
			(long long)st.st_size, (long long)max_bytes);
	cleanup(freep) char *text = malloc((size_t)st.st_size + 1);
	if (text == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read %s", path);
	size_t have = 0;
	while (have < (size_t)st.st_size) {
		ssize_t n = read(fd, text + have, (size_t)st.st_size - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(err, ERR_IO, errno, "%s cannot be read", path);
		if (n == 0)
			return err_set(err, ERR_IO, NULL, "%s became shorter while it was read", path);
		have += (size_t)n;
	}
	text[have] = '\0';
	*ret_text = take_ptr(text);
	*ret_bytes = have;
	return 0;
}
