/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/lease.c with a clock that only the test moves. */
#include "tests/support/check.h"

#include "workers/trainer/lease.h"

#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>

static sem_t expired; /* the callback has no argument: it ends the process in the program */

static void on_expired(void)
{
	sem_post(&expired);
}

/* A clock that two threads may use. */
static _Atomic int64_t boot_us_now;

static int64_t boot_us(const struct clock *c)
{
	(void)c;
	return atomic_load(&boot_us_now);
}

static const struct clock test_clock = {
	.wall_us = boot_us, .mono_us = boot_us, .boot_us = boot_us
};

static void it_expires_at_the_deadline_and_not_before(void **state)
{
	struct err err = { 0 };
	struct lease l;
	(void)state;
	sem_init(&expired, 0, 0);
	atomic_store(&boot_us_now, 1000);
	assert_int_equal(lease_start(&l, &test_clock, 5000, on_expired, &err), 0);
	assert_int_equal(lease_remaining_us(&l), 4000);
	atomic_store(&boot_us_now, 4999);
	poll(NULL, 0, 200); /* several looks of the watchdog; it must do nothing */
	assert_int_not_equal(sem_trywait(&expired), 0);
	lease_extend(&l, 9000);
	atomic_store(&boot_us_now, 8999);
	poll(NULL, 0, 200);
	assert_int_not_equal(sem_trywait(&expired), 0);
	atomic_store(&boot_us_now, 9000);
	assert_int_equal(sem_wait(&expired), 0);
	lease_stop(&l);
}

static void it_can_be_shortened(void **state)
{
	struct err err = { 0 };
	struct lease l;
	(void)state;
	sem_init(&expired, 0, 0);
	atomic_store(&boot_us_now, 1000);
	assert_int_equal(lease_start(&l, &test_clock, INT64_MAX, on_expired, &err), 0);
	lease_extend(&l, 1000);
	assert_int_equal(sem_wait(&expired), 0);
	lease_stop(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_expires_at_the_deadline_and_not_before),
		cmocka_unit_test(it_can_be_shortened),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
