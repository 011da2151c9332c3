/* SPDX-License-Identifier: Apache-2.0
 * All ranks of a job as processes of this machine, without an agent: the parent starts them, ends
 * those that are left when one has failed, and tells how it went. Called by cmd_run before it has
 * threads. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

enum {
	RUN_RANKS_PARENT = -1,
	RUN_RANKS_GRACE_S = 10, /* for the ranks that are left when one has failed */
};

/* Forks count ranks. In each of them *ret_rank is its number. In the parent it returns when all
 * have ended, with RUN_RANKS_PARENT and an exit status: 0, or that of the rank that failed first
 * (128 and the signal that ended it), as a shell has it. SIGINT and SIGTERM go to all of them. */
int run_ranks_start(int count, int *ret_rank, int *ret_status, struct err *err) must_check;
