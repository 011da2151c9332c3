/* SPDX-License-Identifier: Apache-2.0
 * Scratch files: what a data set derives from its files is written to one that has no name, then
 * mapped, so that it takes no more memory than the page cache gives. Called by the formats while a
 * set is opened. */
#include "core/base/file.h"
#include "workers/engine/data/data_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_unlinked(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd;
	char path[FILE_PATH_MAX];
	struct err err = { 0 };
	if (file_join(path, dir, "data_XXXXXX", &err)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	return fd;
}

int data_scratch_open(struct data_scratch *s, const struct data_source *source, struct err *err)
{
	const char *dir = source->scratch_dir;
	if (!dir)
		dir = secure_getenv("TMPDIR");
	if (!dir || !*dir)
		dir = "/tmp";
	int fd = open_unlinked(dir);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "no scratch file can be made in %s", dir);
	*s = (struct data_scratch){ .fd = fd, .param = source->param };
	return 0;
}

int data_scratch_write(
	struct data_scratch *s, int64_t offset, const void *bytes, size_t count, struct err *err)
{
	const char *p = bytes;
	int64_t end;
	if (__builtin_add_overflow(offset, count, &end) || end > DATA_SCRATCH_MAX_BYTES)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"what is derived from the data (its tokens, rows or images) has more than %lld bytes",
			(long long)DATA_SCRATCH_MAX_BYTES);
	while (count > 0) {
		ssize_t n = pwrite(s->fd, p, count, offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_errno(err, ERR_IO, errno, "the scratch file of the data cannot be written");
		p += n;
		count -= (size_t)n;
		offset += n;
	}
	return 0;
}

int data_scratch_map(struct data_scratch *s, int64_t size, struct err *err)
{
	if (size > 0) {
		void *mem = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, s->fd, 0);
		if (mem == MAP_FAILED)
			return err_errno(err, ERR_IO, errno, "the scratch file of the data cannot be mapped");
		s->bytes = mem;
		s->size = size;
	}
	closep(&s->fd);
	s->fd = -1;
	return 0;
}

void data_scratch_close(struct data_scratch *s)
{
	if (s->bytes) {
		/* munmap takes no const; nothing is written. */
		union {
			const unsigned char *in;
			void *out;
		} p = { .in = s->bytes };
		munmap(p.out, (size_t)s->size);
	}
	if (s->fd > 0)
		close(s->fd);
	*s = (struct data_scratch){ .fd = -1 };
}

int data_writer_open(struct data_writer *w, struct data_scratch *s, int64_t offset, struct err *err)
{
	*w = (struct data_writer){ .scratch = s, .offset = offset };
	w->buffer = malloc(DATA_WRITER_BYTES);
	if (!w->buffer)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to write the data's scratch file");
	return 0;
}

int data_writer_flush(struct data_writer *w, struct err *err)
{
	int rc = data_scratch_write(w->scratch, w->offset, w->buffer, w->used, err);
	if (rc)
		return rc;
	w->offset += (int64_t)w->used;
	w->used = 0;
	return 0;
}

int data_writer_put(struct data_writer *w, const void *bytes, size_t count, struct err *err)
{
	if (count > DATA_WRITER_BYTES - w->used) {
		int rc = data_writer_flush(w, err);
		if (rc)
			return rc;
	}
	if (count >= DATA_WRITER_BYTES) {
		int rc = data_scratch_write(w->scratch, w->offset, bytes, count, err);
		if (rc)
			return rc;
		w->offset += (int64_t)count;
		return 0;
	}
	memcpy(w->buffer + w->used, bytes, count);
	w->used += count;
	return 0;
}

int64_t data_writer_at(const struct data_writer *w)
{
	return w->offset + (int64_t)w->used;
}

void data_writer_close(struct data_writer *w)
{
	free(w->buffer);
	*w = (struct data_writer){ 0 };
}
