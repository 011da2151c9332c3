/* SPDX-License-Identifier: Apache-2.0
 * Files that survive a crash. */
#include "workers/trainer/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

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
	if (file_write_fd(o->fd, data, bytes) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be written", o->path);
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
