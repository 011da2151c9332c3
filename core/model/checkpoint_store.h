/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints and finished models: rows over content that the blob store holds already, the
 * trimming of old checkpoints, and the dropping of content that nothing refers to any more.
 * Called by attempt_message.c and the scheduler. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/attempt.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	CHECKPOINT_STORE_DROPS_MAX = 4, /* checkpoints whose content one call drops */
};

/* files_json: [{"name","sha256","bytes"}], checked by the caller; every content must be stored for
 * the tenant with this length (INVALID_VALUE otherwise). A step that this attempt has recorded
 * already is left as it is. Resets the job's count of barren failures when the step is new to the
 * job. */
int checkpoint_store_insert(struct db_conn *conn, const struct attempt *a, int64_t step,
	const char *files_json, const char *metrics_json, char ret_id[static IDENT_MAX],
	int64_t *ret_bytes, struct err *err) must_check;

/* Marks what is past the newest `keep` as trimmed; never the one that a live attempt resumes
 * from. */
int checkpoint_store_trim(
	struct db_conn *conn, const char *job_id, int64_t keep, struct err *err) must_check;

/* Removes content of trimmed checkpoints that no file, model or other checkpoint refers to: its
 * row, and through `remove` its bytes, before the caller commits. Whoever stores content again
 * touches its row first (content_touch), so it is either kept or stored anew. */
typedef int (*checkpoint_remove_fn)(
	void *ctx, const char *tenant_id, const char *sha256, struct err *err);
int checkpoint_store_drop(struct db_conn *conn, checkpoint_remove_fn remove, void *ctx,
	int *ret_dropped, struct err *err) must_check;

/* The finished model of a job, from content that is stored as above. */
int checkpoint_store_insert_model(struct db_conn *conn, const struct attempt *a,
	const char *files_json, const char *metrics_json, char ret_id[static IDENT_MAX],
	struct err *err) must_check;
