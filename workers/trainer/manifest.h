/* SPDX-License-Identifier: Apache-2.0
 * manifest.json of a checkpoint or model folder: name, SHA-256 and bytes of each of its files. A
 * folder without a manifest, or whose files differ from it, is not a checkpoint. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/crypto/digest.h"

#include <stdint.h>

enum {
	MANIFEST_FILES_MAX = 319, /* with the manifest, what an agent uploads for one folder */
	MANIFEST_NAME_MAX = 128,
	MANIFEST_BYTES_MAX = 128 * 1024,
};
#define MANIFEST_NAME "manifest.json"

struct manifest_file {
	char name[MANIFEST_NAME_MAX];
	char sha256[DIGEST_HEX_MAX];
	int64_t bytes;
};

struct manifest {
	int64_t step;
	int count;
	struct manifest_file files[MANIFEST_FILES_MAX];
};

/* One more file of the folder; its hash and size come with manifest_seal. */
int manifest_add(struct manifest *m, const char *name, struct err *err) must_check;
/* One that its writer has sealed already (manifest_seal_file). */
int manifest_add_sealed(
	struct manifest *m, const struct manifest_file *file, struct err *err) must_check;
/* Syncs the file and fills in its hash and size. */
int manifest_seal_file(struct manifest_file *f, const char *dir, struct err *err) must_check;
/* Seals every file that is not yet, then writes manifest.json and syncs it. */
int manifest_seal(struct manifest *m, const char *dir, struct err *err) must_check;
/* Writes manifest.json into the folder and syncs it. */
int manifest_write(const struct manifest *m, const char *dir, struct err *err) must_check;
/* Reads manifest.json alone. INVALID_DATA when it is missing or not one. */
int manifest_read(const char *dir, struct manifest *ret, struct err *err) must_check;
/* Compares one file with its entry. */
int manifest_check_file(const char *dir, const struct manifest_file *f, struct err *err) must_check;
/* The file's entry, NULL when there is none. */
const struct manifest_file *manifest_find(const struct manifest *m, const char *name);
/* Reads manifest.json and compares every file with it: kind, bytes and hash. INVALID_DATA names
 * the file that is missing, torn or changed. */
int manifest_verify(const char *dir, struct manifest *ret, struct err *err) must_check;
