/* SPDX-License-Identifier: Apache-2.0
 * How the emulation reports a misuse, its seed, and the poison of fresh memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Prints "emulation: ...", the seed and how to repeat it, and aborts. */
[[noreturn]] void emulation_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* TRAINYARD_EMULATION_SEED, or a fresh one; printed once. */
uint64_t emulation_seed(void);
/* splitmix64 */
uint64_t emulation_random(uint64_t *state);

/* NaN in fp64, fp32, fp16 and bf16, -917519 in int32. */
enum { EMULATION_POISON = 0xFFF1 };
void emulation_poison(void *to, size_t bytes);
int emulation_poison_is(const void *p, size_t bytes);

/* Red zones: no access under ASan, otherwise poison that emulation_zone_broken looks at. */
void emulation_zone_set(void *zone, size_t bytes);
void emulation_zone_clear(void *zone, size_t bytes);
int emulation_zone_broken(const void *zone, size_t bytes);
