/* SPDX-License-Identifier: Apache-2.0
 * The table of trainyard-billing's settings; docs/settings.md repeats it. */
#include "billing/settings.h"

#include "core/base/attr.h"

#define SECRET(...) SETTING_ROW_SECRET(struct settings_billing, __VA_ARGS__)
#define I64(...) SETTING_ROW_I64(struct settings_billing, __VA_ARGS__)

const struct setting settings_billing_table[] = {
	SECRET(db_url, "dbname=trainyard", "libpq connection string of the yard's database"),
	I64(billing_statement_timeout_ms, "600000", 1000, 86400000,
		"longest time of one statement, in milliseconds"),
	I64(billing_lock_timeout_ms, "60000", 100, 3600000,
		"longest wait for another close of the same tenant, in milliseconds"),
};
const size_t settings_billing_count = ARRAY_LEN(settings_billing_table);
