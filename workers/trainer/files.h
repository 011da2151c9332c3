/* SPDX-License-Identifier: Apache-2.0
 * Files that survive a crash: written with a running SHA-256, synced, published by rename. Used by
 * the trainer's checkpoint, model and attempt code. No state; any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/crypto/digest.h"

#include <stdint.h>

enum { FILES_PATH_MAX = 1024 };

/* A file being written. Zero-initialise fd to -1 (FILES_OUT_INIT). */
struct files_out {
	int fd;
	struct digest *digest;
	int64_t bytes;
	char path[FILES_PATH_MAX];
};
#define FILES_OUT_INIT \
	{                  \
		.fd = -1       \
	}

/* Creates path (it must not exist), mode 0600. */
int files_out_open(struct files_out *o, const char *path, struct err *err) must_check;
int files_out_write(
	struct files_out *o, const void *data, size_t bytes, struct err *err) must_check;
/* Syncs and closes; tells the hash of what was written. */
int files_out_finish(
	struct files_out *o, char ret_hex[static DIGEST_HEX_MAX], struct err *err) must_check;
/* Closes without syncing; for cleanup(). Fine after finish. */
void files_out_abort(struct files_out *o);

/* "<dir>/<name>", or INVALID_VALUE when it does not fit. */
int files_join(char ret_path[static FILES_PATH_MAX], const char *dir, const char *name,
	struct err *err) must_check;
/* Makes one directory, mode 0700; one that exists is fine. */
int files_mkdir(const char *path, struct err *err) must_check;
/* Removes a file or a whole folder, following no link; one that is missing is fine. */
int files_remove_tree(const char *path, struct err *err) must_check;
int files_sync_dir(const char *path, struct err *err) must_check;
/* Reads a regular file of at most max_bytes. The text is malloc'ed and NUL-terminated. */
int files_read(const char *path, int64_t max_bytes, char **ret_text, size_t *ret_bytes,
	struct err *err) must_check;
