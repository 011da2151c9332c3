/* SPDX-License-Identifier: Apache-2.0
 * Time behind one interface, so that tests inject it. Billing and leases use the database's clock,
 * never this one. */
#pragma once

#include "core/base/attr.h"

#include <stdint.h>

/* All functions are thread-safe and cannot fail. */
struct clock {
	int64_t (*wall_us)(const struct clock *c); /* UTC since 1970 */
	int64_t (*mono_us)(const struct clock *c); /* CLOCK_MONOTONIC: durations */
	int64_t (*boot_us)(
		const struct clock *c); /* CLOCK_BOOTTIME: deadlines that hold over suspend */
};

const struct clock *clock_system(void);

/* A clock that only the test moves. */
struct clock_manual {
	struct clock base;
	int64_t wall_us_now;
	int64_t mono_us_now;
};
void clock_manual_init(struct clock_manual *c, int64_t wall_us);
void clock_manual_advance(struct clock_manual *c, int64_t us);

static inline int64_t clock_wall_us(const struct clock *c)
{
	return c->wall_us(c);
}
static inline int64_t clock_mono_us(const struct clock *c)
{
	return c->mono_us(c);
}
static inline int64_t clock_boot_us(const struct clock *c)
{
	return c->boot_us(c);
}

enum { CLOCK_RFC3339_MAX = 32 };
/* "2026-11-30T02:04:01.123Z" (RFC 3339, UTC, milliseconds). */
void clock_rfc3339(int64_t wall_us, char ret_text[static CLOCK_RFC3339_MAX]);
/* Accepts the form above, with 0 to 6 fraction digits and Z or a numeric offset. */
int clock_parse_rfc3339(const char *text, int64_t *ret_wall_us) must_check;
