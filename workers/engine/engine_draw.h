/* SPDX-License-Identifier: Apache-2.0
 * Random numbers for fresh parameters, a block at a time: element i of a tensor is a function of
 * the tensor's key and i alone, the same on every processor. Called by engine_init.c, threads at
 * once. */
#pragma once

#include <stdint.h>

enum { ENGINE_DRAW_BLOCK = 1024 };

/* Elements [block * ENGINE_DRAW_BLOCK, +ENGINE_DRAW_BLOCK): normal with the deviation, or uniform
 * in [-width, width]. */
void engine_draw_normal(uint64_t key, int64_t block, float deviation, float *out);
void engine_draw_uniform(uint64_t key, int64_t block, float width, float *out);
