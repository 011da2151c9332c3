/* SPDX-License-Identifier: Apache-2.0
 * What `model.base` of a new job may name: a checkpoint, a finished model, or the job that left it,
 * always of the same tenant. Called by jobs_create. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/residency.h"
#include "core/spec/spec_json.h"

struct base {
	char checkpoint_id[IDENT_MAX]; /* one of the two, the other is "" */
	char model_id[IDENT_MAX];
	struct residency_set residency;
	struct spec_base spec;
};

/* Reads it; it is not dropped for the rest of the transaction, and the job that is inserted in it
 * keeps it from then on. Errors are at $.model.base: NOT_FOUND for what the tenant does not have,
 * CONFLICT for a job that has no model (yet) and a checkpoint that was trimmed, INVALID_VALUE for
 * what holds no weights to start from (adapters alone). */
int base_store_hold(struct db_conn *conn, const char *tenant_id, const char *id, struct base *ret,
	struct err *err) must_check;
