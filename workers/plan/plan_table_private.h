/* SPDX-License-Identifier: Apache-2.0
 * The parts of the plan's table. Private to workers/plan. */
#pragma once

#include "workers/plan/plan_table.h"

/* Nothing for a plan of one rank. */
void plan_table_ranks(const struct plan *p, struct buf *out);
