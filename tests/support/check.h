/* SPDX-License-Identifier: Apache-2.0
 * What every cmocka program of tests/unit needs before cmocka.h, and a seeded random source whose
 * seed is printed, so that a failure can be run again (TRAINYARD_TEST_SEED). One thread. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct check_random {
	uint64_t state;
};

static inline struct check_random check_random_start(void)
{
	const char *given = getenv("TRAINYARD_TEST_SEED");
	struct timespec now;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	uint64_t seed =
		given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_nsec + (uint64_t)now.tv_sec;
	(void)printf("TRAINYARD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return (struct check_random){ .state = seed };
}

/* splitmix64 */
static inline uint64_t check_random_bits(struct check_random *r)
{
	uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

/* From min to max, both inclusive. */
static inline int64_t check_random_range(struct check_random *r, int64_t min, int64_t max)
{
	uint64_t span = (uint64_t)max - (uint64_t)min + 1;
	uint64_t bits = check_random_bits(r);
	return (int64_t)((uint64_t)min + (span ? bits % span : bits));
}
