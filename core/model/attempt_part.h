/* SPDX-License-Identifier: Apache-2.0
 * The machines of an attempt: one as a rule, several for a gang. Called by attempt.c and the stores
 * beside it, inside the caller's transaction. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"

#include <stdint.h>

enum { ATTEMPT_PARTS_MAX = 64 };

/* SQL: attempt a is agent's (an expression), as its first machine or a further one. */
#define ATTEMPT_PART_IS_OF(a, agent)                                                               \
	"(" a ".agent_id = " agent " or exists (select from attempt_parts ap where ap.attempt_id = " a \
	".id and ap.agent_id = " agent " and not ap.released))"
/* SQL: one of attempt a's leases is over. */
#define ATTEMPT_PART_EXPIRED(a)                                                      \
	"(" a ".lease_until < yard_now() or exists (select from attempt_parts ap where " \
	"ap.attempt_id = " a ".id and not ap.released and ap.lease_until < yard_now()))"

/* A further machine, 1 and up. */
int attempt_part_insert(struct db_conn *conn, const char *attempt_id, int part,
	const char *agent_id, int64_t lease_ms, struct err *err) must_check;
/* The machine's number among those of the attempt, and the last message of its own that was
 * applied. LEASE_LOST when it has no part in it. */
int attempt_part_find(struct db_conn *conn, const char *attempt_id, const char *agent_id,
	int64_t *ret_part, int64_t *ret_report_seq, struct err *err) must_check;
int attempt_part_flush(struct db_conn *conn, const char *attempt_id, int64_t part,
	int64_t report_seq, struct err *err) must_check;
/* The list of each of the attempt's machines has changed. */
int attempt_part_notify(struct db_conn *conn, const char *attempt_id, struct err *err) must_check;
/* The attempt is over: its further machines are free of it, and what its ranks said is gone. */
int attempt_part_release(struct db_conn *conn, const char *attempt_id, struct err *err) must_check;
