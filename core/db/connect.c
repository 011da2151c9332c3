/* SPDX-License-Identifier: Apache-2.0
 * Opening, checking and closing one connection, never waiting longer than the deadline (name
 * resolution, inside libpq, excepted). A connection belongs to one thread. */
#include "core/base/clock.h"
#include "core/db/db_private.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTIONS_MAX = 1024,
	CONNECT_PARAMS_MAX = 16,
	DRAIN_READS_MAX = 8,
};

static void ignore_notice(void *arg, const char *message) {}

int db_conn_poll(PGconn *pg, short events, int64_t deadline_us, struct err *err)
{
	const struct clock *clock = clock_system();
	for (;;) {
		int64_t left_us = deadline_us - clock_mono_us(clock);
		if (left_us <= 0)
			return err_set(
				err, ERR_DATABASE, NULL, "the database did not answer within its deadline");
		struct pollfd p = { .fd = PQsocket(pg), .events = events };
		if (p.fd < 0)
			return err_set(err, ERR_DATABASE, NULL, "the database connection was lost");
		int64_t left_ms = left_us / 1000 + 1;
		int n = poll(&p, 1, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return err_errno(err, ERR_DATABASE, errno, "waiting for the database");
	}
}

static int write_options(
	const struct db_config *c, const char *from_url, char ret[static OPTIONS_MAX], struct err *err)
{
	/* The text formats that the readers of results expect are set too. Compiling a plan (jit) takes
	 * seconds, more than any statement of ours runs. */
	int len = snprintf(ret, OPTIONS_MAX,
		"%s%s-c statement_timeout=%d -c lock_timeout=%d -c idle_in_transaction_session_timeout=%d "
		"-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex "
		"-c extra_float_digits=1 -c jit=off",
		from_url ? from_url : "", from_url ? " " : "", c->statement_timeout_ms, c->lock_timeout_ms,
		c->idle_tx_timeout_ms);
	if (len < 0 || len >= OPTIONS_MAX)
		return err_set(err, ERR_DATABASE, NULL, "the database URL's options are too long");
	return 0;
}

static void conninfo_freep(PQconninfoOption **options)
{
	PQconninfoFree(*options);
}

/* Starts connecting: the URL first, so that what follows wins over it. */
static PGconn *start(const struct db_config *c, struct err *err)
{
	cleanup(conninfo_freep) PQconninfoOption *parsed = PQconninfoParse(c->url, NULL);
	const char *from_url = NULL;
	for (PQconninfoOption *o = parsed; o && o->keyword; o++) {
		if (strcmp(o->keyword, "options") == 0)
			from_url = o->val;
	}
	char options[OPTIONS_MAX];
	if (write_options(c, from_url, options, err) < 0)
		return NULL;

	const char *keys[CONNECT_PARAMS_MAX];
	const char *values[CONNECT_PARAMS_MAX];
	const char *const pairs[][2] = {
		{ "dbname", c->url },
		{ "application_name", c->application_name },
		{ "client_encoding", "UTF8" },
		{ "keepalives", "1" },
		{ "keepalives_idle", "10" },
		{ "keepalives_interval", "5" },
		{ "keepalives_count", "3" },
		{ "tcp_user_timeout", "15000" },
		{ "options", options },
		{ NULL, NULL },
	};
	static_assert(ARRAY_LEN(pairs) <= CONNECT_PARAMS_MAX, "room for all pairs");
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		keys[i] = pairs[i][0];
		values[i] = pairs[i][1];
	}
	PGconn *pg = PQconnectStartParams(keys, values, 1);
	if (!pg)
		(void)err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	return pg;
}

static int finish_connecting(struct db_conn *conn, int64_t deadline_us, struct err *err)
{
	/* libpq asks to begin as if it had said "writing". */
	PostgresPollingStatusType want = PGRES_POLLING_WRITING;
	while (PQstatus(conn->pg) != CONNECTION_BAD && want != PGRES_POLLING_OK) {
		if (want == PGRES_POLLING_FAILED)
			break;
		short events = want == PGRES_POLLING_READING ? POLLIN : POLLOUT;
		int r = db_conn_poll(conn->pg, events, deadline_us, err);
		if (r < 0)
			return r;
		want = PQconnectPoll(conn->pg);
	}
	if (want != PGRES_POLLING_OK || PQstatus(conn->pg) != CONNECTION_OK)
		return db_error_conn(conn, err);
	if (PQsetnonblocking(conn->pg, 1) != 0)
		return db_error_conn(conn, err);
	(void)PQsetNoticeProcessor(conn->pg, ignore_notice, NULL);
	return 0;
}

int db_conn_open(struct db_conn *conn, struct err *err)
{
	const struct db_config *c = conn->config;
	int64_t deadline_us =
		clock_mono_us(clock_system()) + (int64_t)c->connect_timeout_s * 1000 * 1000;
	assert(!conn->pg);
	conn->pg = start(c, err);
	if (!conn->pg)
		return ERR_DATABASE;
	int r = finish_connecting(conn, deadline_us, err);
	if (r < 0) {
		db_conn_close(conn);
		return r;
	}
	conn->deadline_ms = (int64_t)c->statement_timeout_ms + DB_DEADLINE_GRACE_MS;
	return 0;
}

void db_conn_close(struct db_conn *conn)
{
	PQfinish(conn->pg);
	conn->pg = NULL;
	conn->broken = false;
	conn->has_locks = false;
	for (int i = 0; i < DB_STATEMENT_SLOTS; i++)
		free(conn->statements.sql[i]);
	memset(&conn->statements, 0, sizeof(conn->statements));
}

bool db_conn_is_alive(struct db_conn *conn)
{
	if (!conn->pg || conn->broken || PQstatus(conn->pg) != CONNECTION_OK)
		return false;
	/* A server that stopped has sent its farewell and then the end: reads until silence or end. */
	for (int i = 0; i < DRAIN_READS_MAX; i++) {
		struct pollfd p = { .fd = PQsocket(conn->pg), .events = POLLIN };
		int n = poll(&p, 1, 0);
		if (n == 0)
			return true;
		if (n < 0 || PQconsumeInput(conn->pg) == 0 || PQstatus(conn->pg) != CONNECTION_OK)
			return false;
		(void)PQisBusy(conn->pg); /* takes notices and parameter reports out of the buffer */
	}
	return false;
}
