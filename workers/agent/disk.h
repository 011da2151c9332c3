/* SPDX-License-Identifier: Apache-2.0
 * The agent's files: read, written by rename, removed. No state; any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/json/writer.h"

#include <stdbool.h>
#include <stdint.h>

enum { DISK_PATH_MAX = 1024 };

int disk_join(char ret_path[static DISK_PATH_MAX], const char *dir, const char *name,
	struct err *err) must_check;
bool disk_exists(const char *path);
/* A plain name inside a folder: no slash, not hidden, not empty. */
bool disk_name_ok(const char *name);
/* One folder, mode 0700; one that exists is fine. */
int disk_mkdir(const char *path, struct err *err) must_check;
/* A file or a whole folder, following no link; one that is missing is fine. */
int disk_remove_tree(const char *path, struct err *err) must_check;
/* At most max_bytes of a regular file; malloc'ed, NUL-terminated. */
int disk_read(const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes,
	struct err *err) must_check;
/* Whole or not at all, also after a crash: temporary file, sync, rename, sync of the folder. */
int disk_write_atomic(
	const char *dir, const char *name, const char *text, size_t bytes, struct err *err) must_check;
/* Appends the last lines of a text file to the open JSON array; a file that cannot be read has
 * none. */
void disk_tail(const char *path, int lines, struct json_writer *w);
