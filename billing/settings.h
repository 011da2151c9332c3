/* SPDX-License-Identifier: Apache-2.0
 * Settings of trainyard-billing. Loaded once by main, read-only after. */
#pragma once

#include "core/base/settings.h"

#include <stddef.h>
#include <stdint.h>

struct settings_billing {
	char db_url[SETTING_STR_MAX];
	int64_t billing_statement_timeout_ms;
	int64_t billing_lock_timeout_ms;
};

extern const struct setting settings_billing_table[];
extern const size_t settings_billing_count;
