/* SPDX-License-Identifier: Apache-2.0
 * The table of trainyard-billing's settings; docs/settings.md repeats it. */
#include "billing/settings.h"

#include "core/base/attr.h"

const struct setting settings_billing_table[] = {
	{ .key = "db_url",
		.kind = SETTING_STR,
		.default_value = "dbname=trainyard",
		.offset = offsetof(struct settings_billing, db_url),
		.secret = true,
		.doc = "libpq connection string of the yard's database" },
	{ .key = "billing_statement_timeout_ms",
		.kind = SETTING_I64,
		.default_value = "600000",
		.min = 1000,
		.max = 86400000,
		.offset = offsetof(struct settings_billing, statement_timeout_ms),
		.doc = "longest time of one statement, in milliseconds" },
	{ .key = "billing_lock_timeout_ms",
		.kind = SETTING_I64,
		.default_value = "60000",
		.min = 100,
		.max = 3600000,
		.offset = offsetof(struct settings_billing, lock_timeout_ms),
		.doc = "longest wait for another close of the same tenant, in milliseconds" },
};
const size_t settings_billing_count = ARRAY_LEN(settings_billing_table);
