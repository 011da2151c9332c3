/* SPDX-License-Identifier: Apache-2.0
 * Uploaded files: a row each, their content in the blob store by tenant and SHA-256. Written by the
 * file handlers; read by jobs_create. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/crypto/digest.h"
#include "core/db/db.h"
#include "core/model/page.h"
#include "core/model/residency.h"

#include <stdbool.h>
#include <stdint.h>

struct json_writer;

enum {
	FILE_NAME_MAX = 256, /* bytes */
	FILE_PURPOSE_MAX = 32,
};

struct file {
	char id[IDENT_MAX];
	char filename[FILE_NAME_MAX];
	char purpose[FILE_PURPOSE_MAX + 1];
	int64_t bytes;
	char sha256[DIGEST_HEX_MAX];
	bool processed;
	struct residency_set residency;
};

/* The content's row (known content is fine) and the file's. */
int file_store_insert(struct db_conn *conn, const char *tenant_id, const struct file *file,
	struct err *err) must_check;

/* NOT_FOUND when the tenant has no such file, or not any more. file_store_hold keeps it from being
 * deleted for the rest of the transaction: for jobs that will need it. */
int file_store_get(struct db_conn *conn, const char *tenant_id, const char *id, struct file *ret,
	struct err *err) must_check;
int file_store_hold(struct db_conn *conn, const char *tenant_id, const char *id, struct file *ret,
	struct err *err) must_check;

/* OpenAI's file object. */
int file_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err) must_check;
/* purpose may be NULL. */
int file_store_list(struct db_conn *conn, const char *tenant_id, const char *purpose,
	const struct page *page, struct json_writer *w, struct err *err) must_check;

/* Marks the file as deleted. NOT_FOUND; CONFLICT while a job that is not finished uses it. */
int file_store_delete(
	struct db_conn *conn, const char *tenant_id, const char *id, struct err *err) must_check;
