/* SPDX-License-Identifier: Apache-2.0
 * Small files and folders: read within a bound, written whole or not at all, made, synced, removed.
 * No state; any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FILE_PATH_MAX = 1024 };

/* "<dir>/<name>", or INVALID_VALUE when it does not fit. */
int file_join(char ret_path[static FILE_PATH_MAX], const char *dir, const char *name,
	struct err *err) must_check;
bool file_exists(const char *path);
/* One folder, mode 0700; one that exists is fine. */
int file_mkdir(const char *path, struct err *err) must_check;
/* A file or a whole folder, following no link; one that is missing is fine. */
int file_remove_tree(const char *path, struct err *err) must_check;
/* Makes durable which names the folder holds. */
int file_sync_dir(const char *path, struct err *err) must_check;

/* A regular file of at most max_bytes (TOO_LARGE); malloc'ed, NUL-terminated. One that says it has
 * no bytes, as those of /proc do, is read up to 4096. */
int file_read(const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes,
	struct err *err) must_check;
/* Up to max_bytes from where the descriptor stands; fewer only at the end. Negative: ERR_IO, errno
 * says why. */
int file_read_fd(int fd, void *into, size_t max_bytes, size_t *ret_bytes) must_check;
/* All the bytes. Negative: ERR_IO, errno says why. */
int file_write_fd(int fd, const void *data, size_t bytes) must_check;
/* Whole or not at all, also after a crash: temporary file, sync, rename, sync of the folder. */
int file_write_atomic(
	const char *dir, const char *name, const void *data, size_t bytes, struct err *err) must_check;
