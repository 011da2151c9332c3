/* SPDX-License-Identifier: Apache-2.0
 * Forward-only migrations: files NNNN_name.sql of one folder, each applied once in its own
 * transaction under an advisory lock, recorded with its SHA-256 in schema_migrations. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

/* Applies what is missing. Refuses (INTERNAL, naming the file) when an applied file has changed or
 * vanished. */
int migrate_run(
	struct db_conn *conn, const char *folder, int *ret_applied, struct err *err) must_check;
/* 0 when the database is exactly at the last file of the folder; UNAVAILABLE otherwise. Used by
 * /readyz. */
int migrate_check(struct db_conn *conn, const char *folder, struct err *err) must_check;
