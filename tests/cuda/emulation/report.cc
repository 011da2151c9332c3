/* SPDX-License-Identifier: Apache-2.0
 * Reports, seed and poison of the emulation (report.h). Any thread. */
#include "tests/cuda/emulation/report.h"

#include <mutex>
#include <random>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

uint64_t emulation_seed(void)
{
	static uint64_t seed;
	static std::once_flag once;
	std::call_once(once, []() {
		const char *given = getenv("TRAINYARD_EMULATION_SEED");
		seed = given != nullptr ? strtoull(given, nullptr, 0) : std::random_device()();
		fprintf(stderr, "emulation: TRAINYARD_EMULATION_SEED=%llu\n", (unsigned long long)seed);
	});
	return seed;
}

uint64_t emulation_random(uint64_t *state)
{
	uint64_t x = *state += 0x9E3779B97F4A7C15u;
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

void emulation_report(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "emulation: %s (TRAINYARD_EMULATION_SEED=%llu repeats it)\n", text,
		(unsigned long long)emulation_seed());
	abort();
}

void emulation_poison(void *to, size_t bytes)
{
	static const uint64_t word = EMULATION_POISON * 0x0001000100010001u;
	unsigned char *p = static_cast<unsigned char *>(to);
	for (; bytes >= sizeof(word); bytes -= sizeof(word), p += sizeof(word))
		memcpy(p, &word, sizeof(word));
	memcpy(p, &word, bytes);
}

int emulation_poison_is(const void *p, size_t bytes)
{
	static const unsigned char pattern[2] = { EMULATION_POISON & 0xFF, EMULATION_POISON >> 8 };
	const unsigned char *x = static_cast<const unsigned char *>(p);
	for (size_t i = 0; i < bytes; i++)
		if (x[i] != pattern[i % 2])
			return 0;
	return 1;
}

#ifdef __SANITIZE_ADDRESS__
void emulation_zone_set(void *zone, size_t bytes)
{
	__asan_poison_memory_region(zone, bytes);
}

void emulation_zone_clear(void *zone, size_t bytes)
{
	__asan_unpoison_memory_region(zone, bytes);
}

int emulation_zone_broken(const void *, size_t)
{
	return 0; /* the access was reported */
}
#else
void emulation_zone_set(void *zone, size_t bytes)
{
	emulation_poison(zone, bytes);
}

void emulation_zone_clear(void *, size_t) {}

int emulation_zone_broken(const void *zone, size_t bytes)
{
	return !emulation_poison_is(zone, bytes);
}
#endif
