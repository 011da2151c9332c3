/* SPDX-License-Identifier: Apache-2.0
 * The rows of attempts: placed, locked behind their fence, kept alive, listed for a poll. Called
 * by the scheduler and the agents' handlers. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/json/writer.h"
#include "core/model/attempt.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	ATTEMPT_STORE_BEATS_MAX = 256, /* of one report */
	ATTEMPT_STORE_EXPIRED_MAX = 100,
	ATTEMPT_STORE_TOKEN_MAX = 65,
};

/* Locks the job and the attempt, in this order. LEASE_LOST when no live attempt has this id,
 * epoch and agent. */
int attempt_store_lock(struct db_conn *conn, const struct attempt_fence *fence, struct attempt *ret,
	struct err *err) must_check;
/* The same for an attempt whose lease is over; LEASE_LOST when it is not over, or has ended. */
int attempt_store_lock_expired(
	struct db_conn *conn, const char *attempt_id, struct attempt *ret, struct err *err) must_check;
/* Writes report_seq and last_step of a live attempt back. */
int attempt_store_flush(struct db_conn *conn, const struct attempt *a, struct err *err) must_check;

/* Ids of attempts whose lease is over, oldest first, at most ATTEMPT_STORE_EXPIRED_MAX. */
int attempt_store_expired(struct db_conn *conn, struct db_result **ret, struct err *err) must_check;

struct attempt_beat {
	char attempt_id[IDENT_MAX];
	int64_t epoch;
	bool alive;        /* out: false = lost */
	int64_t acked_seq; /* out, when alive */
};
/* Extends the leases of all of them in one statement and says which are lost. */
int attempt_store_beat(struct db_conn *conn, const char *agent_id, struct attempt_beat *beats,
	int count, struct err *err) must_check;

struct attempt_placed {
	char attempt_id[IDENT_MAX];
	int64_t number;
};
/* Devices of one machine. */
struct attempt_place {
	const char *agent_id;
	int64_t devices; /* 0, where it is the only one: as many as the job wants */
};
/* The same on one machine or several, whose devices are as many as the job wants, or fewer that it
 * can do with (elastic.h): ranks go from one to the next. */
int attempt_store_place_parts(struct db_conn *conn, const char *job_id,
	const struct attempt_place *places, int count, struct attempt_placed *ret,
	struct err *err) must_check;
/* Places a queued job on an agent: takes as many idle devices of its type as it wants, decides
 * residency (a row), writes the attempt, its event and the agent's version. DB_CONFLICT when the
 * job or the devices are not free any more, RESIDENCY when the rule refuses the agent's region. */
int attempt_store_place(struct db_conn *conn, const char *job_id, const char *agent_id,
	struct attempt_placed *ret, struct err *err) must_check;

/* What a poll returns: {"version":…,"attempts":[…]}. */
int attempt_store_write_poll(
	struct db_conn *conn, const char *agent_id, struct json_writer *w, struct err *err) must_check;

/* What a blob request needs to know. */
struct attempt_capability {
	char tenant_id[IDENT_MAX];
	char job_id[IDENT_MAX];
	char region[32];     /* the agent's */
	char residency[300]; /* the job's, as the array's text */
	bool serves;         /* the content belongs to the job's files, checkpoints or base */
};
/* LEASE_LOST unless fence and token are those of a live attempt. */
int attempt_store_capability(struct db_conn *conn, const struct attempt_fence *fence,
	const char *token, const char *sha256, struct attempt_capability *ret,
	struct err *err) must_check;
