/* SPDX-License-Identifier: Apache-2.0
 * What the files of core/db share: the bodies of connection and result. Included by this folder's
 * .c files only; with libpq-fe.h, which no other room includes. */
#pragma once

#include "core/db/db.h"

#include <libpq-fe.h>

enum {
	DB_PARAMS_MAX = 64,
	DB_STATEMENTS_MAX = 256, /* prepared per connection; later texts are sent unprepared */
	DB_STATEMENT_SLOTS = 512,
	/* How much longer than the server's own timeout a silent server is waited for. */
	DB_DEADLINE_GRACE_MS = 400,
};

/* Prepared statements by SQL text: open addressing, never more than half full. The statement's
 * name is its slot's number. */
struct db_statements {
	char *sql[DB_STATEMENT_SLOTS];
	uint64_t hash[DB_STATEMENT_SLOTS];
	int count;
};

struct db_conn {
	PGconn *pg; /* NULL while closed */
	const struct db_config *config;
	int64_t deadline_ms; /* how long one answer may take */
	bool broken;         /* closed when it goes back to the pool */
	bool has_locks;      /* session advisory locks: closed too, which releases them */
	struct db_statements statements;
};

struct db_result {
	PGresult *pg;
};

/* connect.c */
int db_conn_open(struct db_conn *conn, struct err *err) must_check;
void db_conn_close(struct db_conn *conn);
/* Looks at an idle connection without a round trip. */
bool db_conn_is_alive(struct db_conn *conn);
/* Waits for the socket; ERR_DATABASE after the deadline (CLOCK_MONOTONIC). */
int db_conn_poll(PGconn *pg, short events, int64_t deadline_us, struct err *err) must_check;

/* error.c: what a failed result or connection means. */
int db_error_result(struct db_conn *conn, const PGresult *result, struct err *err);
int db_error_conn(struct db_conn *conn, struct err *err);

static inline void db_pgresult_clearp(PGresult **result)
{
	PQclear(*result);
	*result = NULL;
}
