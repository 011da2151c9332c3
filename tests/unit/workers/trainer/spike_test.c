/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/spike.c: noise and falls are calm, a loss that stays up is told once and
 * ends the job. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/spike.h"

#include <math.h>

struct count {
	int warned, failed;
	int64_t failed_at; /* steps after the first of `loss` */
};

static void feed(struct spike *s, struct count *c, double loss, int64_t steps)
{
	for (int64_t i = 1; i <= steps; i++) {
		double limit;
		enum spike_verdict v = spike_step(s, loss, &limit);
		c->warned += v == SPIKE_WARN;
		if (v == SPIKE_FAIL && c->failed++ == 0)
			c->failed_at = i;
	}
}

/* From 10.8 down to 3 in 300 steps, with noise of a batch. */
static void descend(struct spike *s, struct count *c, struct check_random *random)
{
	for (int i = 0; i < 300; i++) {
		double loss = 3 + 7.8 * exp(-i / 60.0);
		feed(s, c, loss * (0.9 + 0.002 * (double)check_random_range(random, 0, 100)), 1);
	}
}

static void a_training_that_learns_is_calm(void **state)
{
	struct check_random random = check_random_start();
	struct spike s = { 0 };
	struct count c = { 0 };
	(void)state;
	descend(&s, &c, &random);
	feed(&s, &c, 3, 500);
	assert_int_equal(c.warned + c.failed, 0);
}

static void a_loss_that_came_apart_is_told_and_then_fails(void **state)
{
	struct check_random random = check_random_start();
	struct spike s = { 0 };
	struct count c = { 0 };
	(void)state;
	descend(&s, &c, &random);
	feed(&s, &c, 7.5, 500); /* where a language model falls back to */
	assert_int_equal(c.warned, 1);
	assert_int_equal(c.failed_at, SPIKE_FAIL_STEPS);
}

static void spikes_that_pass_are_survived(void **state)
{
	struct check_random random = check_random_start();
	struct spike s = { 0 };
	struct count c = { 0 };
	(void)state;
	descend(&s, &c, &random);
	for (int i = 0; i < 10; i++) {
		feed(&s, &c, 9, SPIKE_FAIL_STEPS - 1);
		feed(&s, &c, 3.1, 1);
	}
	assert_int_equal(c.failed, 0);
	assert_int_equal(c.warned, 10); /* once for each */
}

/* Many times a tiny loss is still a tiny loss. */
static void small_losses_may_jump(void **state)
{
	struct spike s = { 0 };
	struct count c = { 0 };
	(void)state;
	feed(&s, &c, 2.3, 20);
	feed(&s, &c, 0.01, 200);
	feed(&s, &c, 0.5, 500);
	assert_int_equal(c.warned + c.failed, 0);
	feed(&s, &c, 2.0, SPIKE_FAIL_STEPS);
	assert_int_equal(c.failed, 1);
}

static void nothing_is_judged_before_there_is_a_measure(void **state)
{
	struct spike s = { 0 };
	struct count c = { 0 };
	double limit = -1;
	(void)state;
	feed(&s, &c, 1, SPIKE_WINDOW - 1);
	assert_int_equal(spike_step(&s, 100, &limit), SPIKE_CALM);
	assert_true(limit == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_training_that_learns_is_calm),
		cmocka_unit_test(a_loss_that_came_apart_is_told_and_then_fails),
		cmocka_unit_test(spikes_that_pass_are_survived),
		cmocka_unit_test(small_losses_may_jump),
		cmocka_unit_test(nothing_is_judged_before_there_is_a_measure),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
