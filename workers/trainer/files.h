/* SPDX-License-Identifier: Apache-2.0
 * Files that survive a crash, in two halves: writing, which is quick and may read memory that soon
 * changes, and sealing, which hashes and syncs what was written. Used by the trainer's checkpoint
 * and model code. No state; any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/crypto/digest.h"

#include <stdbool.h>
#include <stdint.h>

/* A file being written. Zero-initialise fd to -1 (FILES_OUT_INIT). */
struct files_out {
	int fd;
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
/* Closes; nothing is on the disk for sure before files_seal. */
int files_out_close(struct files_out *o, struct err *err) must_check;
/* For cleanup(). Fine after close. */
void files_out_abort(struct files_out *o);

/* A new file with these bytes. */
int files_write(const char *path, const void *data, size_t bytes, struct err *err) must_check;
/* Syncs a written file and tells its hash and size. */
int files_seal(const char *path, char ret_hex[static DIGEST_HEX_MAX], int64_t *ret_bytes,
	struct err *err) must_check;

/* A lock that the kernel ties to this process: a restarted agent sees by it who trains, and two
 * trainings never share a folder. Makes the file; the descriptor stays open for good. An error with
 * *ret_busy set: another process has it. */
int files_lock(const char *path, bool *ret_busy, struct err *err) must_check;
