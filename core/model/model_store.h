/* SPDX-License-Identifier: Apache-2.0
 * Reading what jobs have left: finished models, checkpoints and their files. Written by the
 * attempt's reports. Called by the customers' handlers; one thread per connection. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/crypto/digest.h"
#include "core/db/db.h"
#include "core/model/page.h"

#include <stdint.h>

struct json_writer;
struct preset; /* core/spec/preset.h */

enum {
	MODEL_FILE_NAME_MAX = 200,
	MODEL_FILES_LIST_MAX = 1000,
};

struct model_file {
	char sha256[DIGEST_HEX_MAX];
	int64_t bytes;
};

/* The object of a finished model, or of a preset of the catalogue, whose id is its name. NOT_FOUND
 * when the tenant has no such model. */
int model_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err) must_check;
/* Finished models, newest first, and behind the last of them the catalogue's presets. after_preset
 * (NULL = none) goes on behind that one. */
int model_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	const struct preset *after_preset, struct json_writer *w, struct err *err) must_check;

/* The list object of a model's files. NOT_FOUND when the tenant has no such model. */
int model_store_list_files(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err) must_check;
/* Where one file's content is. NOT_FOUND when the tenant has no such model or it no such file. */
int model_store_file(struct db_conn *conn, const char *tenant_id, const char *id, const char *name,
	struct model_file *ret, struct err *err) must_check;

/* The list object of a job's checkpoints, newest first. NOT_FOUND when the tenant has no such job.
 */
int model_store_list_checkpoints(struct db_conn *conn, const char *tenant_id, const char *job_id,
	const struct page *page, struct json_writer *w, struct err *err) must_check;
