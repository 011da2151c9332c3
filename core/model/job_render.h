/* SPDX-License-Identifier: Apache-2.0
 * A job's JSON, as the API shows it: the resolved spec and all that has become of it. Called by the
 * job handlers, for one job and for lists. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/model/page.h"

struct json_writer;

/* NULL members do not filter. */
struct job_filter {
	const char *status;
	const char *instance_type;
	const char *metadata_json; /* an object: jobs that have all its pairs */
};

/* Of its attempts the last 100 are shown. NOT_FOUND when the tenant has no such job. */
int job_render_one(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err) must_check;
int job_render_list(struct db_conn *conn, const char *tenant_id, const struct job_filter *filter,
	const struct page *page, struct json_writer *w, struct err *err) must_check;
