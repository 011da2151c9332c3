/* SPDX-License-Identifier: Apache-2.0
 * The machines of an attempt on several, when it has ended: each keeps its devices until its agent
 * has told that nothing of the attempt is left there, or its lease is over. Called by attempt.c,
 * the agents' report and the scheduler. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/model/attempt.h"

#include <stdbool.h>

enum { ATTEMPT_LEAVE_MAX = 100 }; /* machines freed by one call; the next frees more */

/* With the attempt locked, before its parts are released: the time so far is closed like
 * segment_release's; the devices of the machine that told the end, and of those whose lease is
 * over, are free, the others are stopping. *ret_alone: there is one machine, nothing was done. */
int attempt_leave_begin(struct db_conn *conn, const struct attempt *a, bool told,
	enum segment_state closed_as, const char *reason, bool *ret_alone, struct err *err) must_check;

/* The agent's list of what it still has (a text[] of attempts' ids): its devices of other ended
 * attempts are free. In a transaction of the caller's. *ret_freed: attempts. */
int attempt_leave_told(struct db_conn *conn, const char *agent_id, const char *still_has,
	int *ret_freed, struct err *err) must_check;
/* The same for machines whose lease is over. */
int attempt_leave_lapsed(struct db_conn *conn, int *ret_freed, struct err *err) must_check;

/* The first rank of a machine whose lease is over, ATTEMPT_NO_NUMBER when there is one machine
 * only: which it was needs no saying. */
int attempt_leave_lost_rank(
	struct db_conn *conn, const struct attempt *a, int64_t *ret_rank, struct err *err) must_check;
