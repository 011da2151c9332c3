/* SPDX-License-Identifier: Apache-2.0
 * A plan as text for people: sizes, memory by kind, FLOPs with the convention named, and the
 * operations that take longest at assumed rates. Used by `trainyard-trainer plan`. Pure. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "workers/plan/plan.h"

/* Rates of the table's estimates: two cores of a server's processor. */
enum {
	PLAN_TABLE_GFLOPS_F32 = 350,
	PLAN_TABLE_GFLOPS_16BIT = 700,
	PLAN_TABLE_GBYTES = 20, /* a second */
};

/* Appends the tables; failures stay in the buffer (buf.h). NO_MEMORY otherwise. */
int plan_table_write(const struct plan *p, struct buf *out, struct err *err) must_check;
