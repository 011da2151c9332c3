/* SPDX-License-Identifier: Apache-2.0
 * A file that survives a crash: written with a running SHA-256 and synced. Used by the trainer's
 * checkpoint and model code. No state; any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/crypto/digest.h"

#include <stdint.h>

/* A file being written. Zero-initialise fd to -1 (FILES_OUT_INIT). */
struct files_out {
	int fd;
	struct digest *digest;
	int64_t bytes;
	char path[FILE_PATH_MAX];
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
