/* SPDX-License-Identifier: Apache-2.0
 * Files that survive a crash. */
#include "workers/trainer/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int files_out_open(struct files_out *o, const char *path, struct err *err)
{
	snprintf(o->path, sizeof(o->path), "%s", path);
	o->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (o->fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be created", path);
	return 0;
}

int files_out_write(struct files_out *o, const void *data, size_t bytes, struct err *err)
{
	if (file_write_fd(o->fd, data, bytes) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be written", o->path);
	return 0;
}

int files_out_close(struct files_out *o, struct err *err)
{
	int fd = o->fd;
	o->fd = -1;
	if (close(fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be closed", o->path);
	return 0;
}

void files_out_abort(struct files_out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
}

int files_write(const char *path, const void *data, size_t bytes, struct err *err)
{
	cleanup(files_out_abort) struct files_out out = FILES_OUT_INIT;
	int rc = files_out_open(&out, path, err);
	if (rc == 0)
		rc = files_out_write(&out, data, bytes, err);
	return rc < 0 ? rc : files_out_close(&out, err);
}

int files_seal(
	const char *path, char ret_hex[static DIGEST_HEX_MAX], int64_t *ret_bytes, struct err *err)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (fsync(fd) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be synced", path);
	return digest_file(path, ret_hex, ret_bytes, err);
}

int files_lock(const char *path, bool *ret_busy, struct err *err)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be opened", path);
	if (fcntl(fd, F_SETLK, &l) < 0) {
		*ret_busy = errno == EACCES || errno == EAGAIN;
		int rc = err_errno(err, ERR_IO, errno, "%s cannot be locked", path);
		close(fd);
		return rc;
	}
	return 0;
}
