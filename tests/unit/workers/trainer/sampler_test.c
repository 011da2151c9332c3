/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/sampler.c: frequencies are the softmax's, top-k cuts, seeds repeat. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/sampler.h"

#include <math.h>

enum { COUNT = 6, DRAWS = 20000 };
static const float logits[COUNT] = { 0, 1, 3, 2, -1, 2 };

static int32_t pick(const struct sampler *s, int64_t place)
{
	float copy[COUNT];
	memcpy(copy, logits, sizeof(copy));
	return sampler_pick(s, place, copy, COUNT);
}

static void draws(const struct sampler *s, double share[COUNT])
{
	memset(share, 0, sizeof(*share) * COUNT);
	for (int64_t i = 0; i < DRAWS; i++)
		share[pick(s, i)] += 1.0 / DRAWS;
}

static void frequencies_are_the_softmax(void **state)
{
	static const double temperatures[] = { 1, 0.5, 2 };
	(void)state;
	for (size_t t = 0; t < ARRAY_LEN(temperatures); t++) {
		struct sampler s = { .temperature = temperatures[t], .seed = 5 };
		double share[COUNT], sum = 0;
		draws(&s, share);
		for (int i = 0; i < COUNT; i++)
			sum += exp((double)logits[i] / temperatures[t]);
		for (int i = 0; i < COUNT; i++) {
			double p = exp((double)logits[i] / temperatures[t]) / sum;
			/* five standard deviations */
			assert_true(fabs(share[i] - p) < 5 * sqrt(p * (1 - p) / DRAWS));
		}
	}
}

static void top_k_keeps_the_largest_only(void **state)
{
	static const bool kept[COUNT + 1][COUNT] = {
		{ true, true, true, true, true, true }, /* 0: all */
		{ false, false, true },
		{ false, false, true, true }, /* of equal ones the first */
		{ false, false, true, true, false, true },
		{ false, true, true, true, false, true },
		{ true, true, true, true, false, true },
		{ true, true, true, true, true, true },
	};
	(void)state;
	for (int k = 0; k <= COUNT; k++) {
		struct sampler s = { .temperature = 2, .top_k = k, .seed = 1 };
		double share[COUNT];
		draws(&s, share);
		for (int i = 0; i < COUNT; i++)
			if ((share[i] > 0) != kept[k][i])
				fail_msg("k %d: token %d", k, i);
	}
}

static void the_same_seed_gives_the_same_tokens(void **state)
{
	struct sampler a = { .temperature = 1, .seed = 9 }, b = { .temperature = 1, .seed = 10 };
	int same = 0;
	(void)state;
	for (int64_t i = 0; i < 200; i++) {
		assert_int_equal(pick(&a, i), pick(&a, i));
		same += pick(&a, i) == pick(&b, i);
	}
	assert_true(same < 200);
	struct sampler greedy = { .temperature = 0, .seed = 9 };
	assert_int_equal(pick(&greedy, 3), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frequencies_are_the_softmax),
		cmocka_unit_test(top_k_keeps_the_largest_only),
		cmocka_unit_test(the_same_seed_gives_the_same_tokens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
