/* SPDX-License-Identifier: Apache-2.0
 * Which elements of a whole tensor a rank of the tensor axis keeps: every period of the row-major
 * whole has a run of them. Columns of a matrix are a run in each row, rows are one run, the queries
 * of some heads inside [queries, keys, values] three. Pure. Used wherever a parameter is more than
 * an array: fresh values, dropout's masks, checkpoints. */
#pragma once

#include <stdint.h>

/* Local element i is the whole's element i / run * period + first + i % run. run > 0. */
struct plan_cut {
	int64_t first, run, period;
};

/* All of it. */
static inline struct plan_cut plan_cut_none(int64_t count)
{
	int64_t run = count > 0 ? count : 1;
	return (struct plan_cut){ 0, run, run };
}

static inline int64_t plan_cut_at(const struct plan_cut *c, int64_t i)
{
	return i / c->run * c->period + c->first + i % c->run;
}

/* The end of the run that local element i is in. */
static inline int64_t plan_cut_run_end(const struct plan_cut *c, int64_t i)
{
	return (i / c->run + 1) * c->run;
}
