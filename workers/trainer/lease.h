/* SPDX-License-Identifier: Apache-2.0
 * The lease's watchdog: a thread of its own that ends the process when the lease has run out on the
 * boot clock, whatever the other threads are doing. lease_extend may be called by any thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lease {
	const struct clock *clock;
	void (*on_expired)(void); /* called once, on the watchdog's thread; ends the process */
	_Atomic int64_t until_us; /* boot clock */
	_Atomic bool leave;
	pthread_t thread;
};

/* Starts the watchdog. Borrows clock. */
int lease_start(struct lease *l, const struct clock *clock, int64_t until_us,
	void (*on_expired)(void), struct err *err) must_check;
void lease_stop(struct lease *l);
/* Moves the deadline, forward or back. */
void lease_extend(struct lease *l, int64_t until_us);
int64_t lease_remaining_us(const struct lease *l);
