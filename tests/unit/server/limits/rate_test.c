/* SPDX-License-Identifier: Apache-2.0
 * Token buckets on a clock that only the test moves. */
#include "server/limits/rate.h"
#include "tests/support/check.h"

#include <stdio.h>

enum { PER_S = 10, BURST = 20, US_PER_S = 1000000 };

static int take(struct limiter *l, const char *key, int times, struct rate_verdict *v)
{
	int allowed = 0;
	for (int i = 0; i < times; i++) {
		limiter_take(l, key, v);
		allowed += v->allowed;
	}
	return allowed;
}

static void bursts_then_refills(void **state)
{
	(void)state;
	struct clock_manual clock;
	struct limiter *l;
	struct rate_verdict v;
	clock_manual_init(&clock, 0);
	assert_int_equal(limiter_create(&clock.base, PER_S, BURST, &l), 0);
	assert_int_equal(take(l, "a", 30, &v), BURST);
	assert_false(v.allowed);
	assert_int_equal(v.limit, BURST);
	assert_int_equal(v.remaining, 0);
	assert_int_equal(v.retry_after_s, 1);
	assert_int_equal(v.reset_s, 2);
	assert_int_equal(take(l, "b", 1, &v), 1);
	assert_int_equal(v.remaining, BURST - 1);
	clock_manual_advance(&clock, US_PER_S / PER_S - 1);
	assert_int_equal(take(l, "a", 1, &v), 0);
	clock_manual_advance(&clock, 2);
	assert_int_equal(take(l, "a", 2, &v), 1);
	clock_manual_advance(&clock, 100LL * US_PER_S);
	assert_int_equal(take(l, "a", 30, &v), BURST);
	limiter_destroy(l);
}

static void many_tenants_cost_no_more_memory(void **state)
{
	(void)state;
	struct clock_manual clock;
	struct limiter *l;
	struct rate_verdict v;
	clock_manual_init(&clock, 0);
	assert_int_equal(limiter_create(&clock.base, PER_S, BURST, &l), 0);
	for (int i = 0; i < 3 * RATE_BUCKETS_MAX; i++) {
		char key[RATE_KEY_MAX];
		(void)snprintf(key, sizeof(key), "tenant_%d", i);
		assert_int_equal(take(l, key, BURST + 1, &v), BURST);
		clock_manual_advance(&clock, 1);
	}
	limiter_destroy(l);
}

static void zero_is_no_limit(void **state)
{
	(void)state;
	struct clock_manual clock;
	struct limiter *l;
	struct rate_verdict v;
	clock_manual_init(&clock, 0);
	assert_int_equal(limiter_create(&clock.base, 0, 1, &l), 0);
	assert_int_equal(take(l, "a", 1000, &v), 1000);
	assert_int_equal(v.limit, 0);
	limiter_destroy(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bursts_then_refills),
		cmocka_unit_test(many_tenants_cost_no_more_memory),
		cmocka_unit_test(zero_is_no_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
