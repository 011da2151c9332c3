/* SPDX-License-Identifier: Apache-2.0
 * Tenants: name, residency set, currency. Written by the operators' handlers, read wherever a
 * residency set is tightened. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/page.h"
#include "core/model/residency.h"

struct json_writer;

enum { TENANT_NAME_MAX = 64 }; /* characters */

int tenant_store_insert(struct db_conn *conn, const char *id, const char *name,
	const struct residency_set *residency, struct err *err) must_check;
/* Where the tenant's data may be. NOT_FOUND. */
int tenant_store_residency(
	struct db_conn *conn, const char *id, struct residency_set *ret, struct err *err) must_check;
/* Writes the tenant's object. NOT_FOUND when there is none. */
int tenant_store_write(
	struct db_conn *conn, const char *id, struct json_writer *w, struct err *err) must_check;
int tenant_store_list(struct db_conn *conn, const struct page *page, struct json_writer *w,
	struct err *err) must_check;
