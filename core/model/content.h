/* SPDX-License-Identifier: Apache-2.0
 * Rows of the content that the blob store holds: locked, marked as in use, forgotten. One rule says
 * when nobody needs a content any more. Called by file, checkpoint and blob handlers and stores. A
 * connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stdint.h>

enum { CONTENT_REUSE_MS = 10 * 60 * 1000 }; /* content stored again is left alone so long */

/* SQL: true of a row b of blobs while a file, an unfinished job's input or base, a model or a
 * checkpoint that is not trimmed has it. */
#define CONTENT_REFERRED                                                                        \
	"(exists (select from files f where f.tenant_id = b.tenant_id and f.sha256 = b.sha256"      \
	"   and f.deleted_at is null)"                                                              \
	" or exists (select from job_files jf join files f on f.id = jf.file_id"                    \
	"   join jobs j on j.id = jf.job_id where f.tenant_id = b.tenant_id"                        \
	"   and f.sha256 = b.sha256 and j.finished_at is null)"                                     \
	" or exists (select from jobs j join checkpoint_files cf"                                   \
	"   on cf.checkpoint_id = j.base_checkpoint_id where j.tenant_id = b.tenant_id"             \
	"   and cf.sha256 = b.sha256 and j.finished_at is null)"                                    \
	" or exists (select from models m join model_files mf on mf.model_id = m.id"                \
	"   where m.tenant_id = b.tenant_id and mf.sha256 = b.sha256)"                              \
	" or exists (select from checkpoints c join checkpoint_files cf on cf.checkpoint_id = c.id" \
	"   where c.tenant_id = b.tenant_id and cf.sha256 = b.sha256 and c.trimmed_at is null))"

/* Holds the content for the rest of the transaction: whoever publishes or removes it waits. */
int content_lock(
	struct db_conn *conn, const char *tenant_id, const char *sha256, struct err *err) must_check;

/* The row of stored content, made or marked as in use, and locked until the transaction ends; the
 * caller publishes the bytes before it commits. */
int content_touch(struct db_conn *conn, const char *tenant_id, const char *sha256, int64_t bytes,
	bool *ret_new, struct err *err) must_check;

/* Forgets the row, under the caller's lock, unless somebody refers to the content or it was stored
 * again within CONTENT_REUSE_MS (its uploader is about to refer to it). When *ret_dropped, the
 * caller removes the bytes before it commits. */
int content_drop(struct db_conn *conn, const char *tenant_id, const char *sha256, bool *ret_dropped,
	struct err *err) must_check;
