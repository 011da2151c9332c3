/* SPDX-License-Identifier: Apache-2.0
 * A folder of files that appears whole or not at all: it is made under a hidden name, every file is
 * synced and hashed, the manifest is written last, and one rename publishes it. A crash leaves a
 * hidden folder, which the next folder_begin of that name removes. Used for checkpoints and models;
 * one thread at a time. Other ranks may write files of their own into the hidden folder. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "workers/trainer/manifest.h"

struct folder {
	char parent[FILE_PATH_MAX];
	char hidden[FILE_PATH_MAX]; /* where files are written */
	char path[FILE_PATH_MAX];   /* what it will be */
	struct manifest manifest;
};

/* Makes <parent>/<hidden>, empty, for what will be <parent>/<name>. */
int folder_begin(struct folder *f, const char *parent, const char *hidden, const char *name,
	int64_t step, struct err *err) must_check;
/* Only says where that is: another rank makes the folder, and publishes it. */
int folder_place(struct folder *f, const char *parent, const char *hidden, const char *name,
	int64_t step, struct err *err) must_check;
/* Lists the file and tells where to write it. */
int folder_add(struct folder *f, const char *name, char ret_path[static FILE_PATH_MAX],
	struct err *err) must_check;
/* A whole small file. */
int folder_add_bytes(
	struct folder *f, const char *name, const void *data, size_t bytes, struct err *err) must_check;
/* The same; TOO_LARGE when the text did not fit its buffer. */
int folder_add_text(
	struct folder *f, const char *name, const struct buf *text, struct err *err) must_check;
/* Seals and renames; a folder of that name, from whatever run, makes way. */
int folder_publish(struct folder *f, struct err *err) must_check;
/* Removes <parent>/<name>: at once from its name, then file by file under a hidden one, which a
 * kill may leave and the next call removes. */
int folder_retire(const char *parent, const char *name, struct err *err) must_check;
/* "/a/b/model" -> "/a/b" and "model"; "model" -> "." and "model". */
int folder_split(const char *path, char ret_parent[static FILE_PATH_MAX], const char **ret_name,
	struct err *err) must_check;
