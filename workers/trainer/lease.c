/* SPDX-License-Identifier: Apache-2.0
 * The lease's watchdog. It takes no lock and allocates nothing, so nothing can hold it up. */
#include "workers/trainer/lease.h"

#include <errno.h>
#include <time.h>

enum { LEASE_LOOK_MS = 50 };

static void *watch(void *arg)
{
	struct lease *l = arg;
	const struct timespec pause = { .tv_nsec = LEASE_LOOK_MS * 1000000L };
	while (!atomic_load(&l->leave)) {
		if (lease_remaining_us(l) <= 0) {
			l->on_expired();
			return NULL;
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

int lease_start(struct lease *l, const struct clock *clock, int64_t until_us,
	void (*on_expired)(void), struct err *err)
{
	l->clock = clock;
	l->on_expired = on_expired;
	atomic_init(&l->until_us, until_us);
	atomic_init(&l->leave, false);
	int rc = pthread_create(&l->thread, NULL, watch, l);
	if (rc != 0)
		return err_errno(err, ERR_NO_MEMORY, rc, "the lease's watchdog cannot be started");
	return 0;
}

void lease_stop(struct lease *l)
{
	atomic_store(&l->leave, true);
	pthread_join(l->thread, NULL);
}

void lease_extend(struct lease *l, int64_t until_us)
{
	atomic_store(&l->until_us, until_us);
}

int64_t lease_remaining_us(const struct lease *l)
{
	return atomic_load(&l->until_us) - clock_boot_us(l->clock);
}
