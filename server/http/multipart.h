/* SPDX-License-Identifier: Apache-2.0
 * Bodies that go to disk while they arrive: a multipart form's file part, or a whole raw body.
 * Bounded, hashed with SHA-256 on the way, published by the blob store only when complete. Used by
 * the daemon; read by upload handlers. */
#pragma once

#include "core/base/attr.h"
#include "core/crypto/digest.h"

#include <stdint.h>

enum {
	UPLOAD_FIELDS_MAX = 16,
	UPLOAD_FIELD_NAME_MAX = 64,
	UPLOAD_FIELD_VALUE_MAX = 1024,
	UPLOAD_FILENAME_MAX = 256,
};

struct upload_field {
	char name[UPLOAD_FIELD_NAME_MAX];
	char value[UPLOAD_FIELD_VALUE_MAX];
};

/* What arrived, complete. The temporary file is removed with the request unless blob_store_publish
 * took it. */
struct upload {
	struct upload_field
		fields[UPLOAD_FIELDS_MAX]; /* small form fields, in any order around the file */
	int field_count;
	bool has_file;
	char file_field[UPLOAD_FIELD_NAME_MAX];
	char filename[UPLOAD_FILENAME_MAX]; /* base name as the client gave it; never used as a path */
	char temp_path[512];
	int64_t bytes;
	char sha256[DIGEST_HEX_MAX];
};

/* NULL when absent. */
const char *upload_field(const struct upload *u, const char *name);
