/* SPDX-License-Identifier: Apache-2.0
 * Running statements on one connection: prepared once by their text, sent without blocking, and
 * answered before a deadline, so that a server that froze cannot hold a thread. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/db/db_private.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	NAME_MAX_BYTES = 16,
	PARAM_TEXT_MAX = NUM_F64_MAX,
};

/* Parameters in libpq's form. Numbers are written into text. */
struct wire_params {
	const char *values[DB_PARAMS_MAX];
	int lengths[DB_PARAMS_MAX];
	int formats[DB_PARAMS_MAX];
	char text[DB_PARAMS_MAX][PARAM_TEXT_MAX];
};

static void fill_params(struct wire_params *w, const struct db_param *params, int count)
{
	assert(count >= 0 && count <= DB_PARAMS_MAX);
	for (int i = 0; i < count; i++) {
		const struct db_param *p = &params[i];
		w->lengths[i] = 0;
		w->formats[i] = 0;
		w->values[i] = w->text[i];
		switch (p->kind) {
		case DB_KIND_NULL: w->values[i] = NULL; break;
		case DB_KIND_TEXT: w->values[i] = p->text; break;
		case DB_KIND_I64: (void)snprintf(w->text[i], PARAM_TEXT_MAX, "%" PRId64, p->i64); break;
		case DB_KIND_F64: num_format_f64(p->f64, w->text[i]); break;
		case DB_KIND_BOOL: w->values[i] = p->i64 ? "t" : "f"; break;
		case DB_KIND_BYTES:
			assert(p->bytes_len <= INT32_MAX);
			w->values[i] = p->bytes ? p->bytes : "";
			w->lengths[i] = (int)p->bytes_len;
			w->formats[i] = 1;
			break;
		}
	}
}

/* The connection cannot be trusted any more: an answer may still be under way. */
static int give_up(struct db_conn *conn, int code)
{
	conn->broken = true;
	return code;
}

static int flush(struct db_conn *conn, int64_t deadline_us, struct err *err)
{
	for (;;) {
		int left = PQflush(conn->pg);
		if (left == 0)
			return 0;
		if (left < 0)
			return db_error_conn(conn, err);
		int r = db_conn_poll(conn->pg, POLLIN | POLLOUT, deadline_us, err);
		if (r < 0)
			return give_up(conn, r);
		if (PQconsumeInput(conn->pg) == 0)
			return db_error_conn(conn, err);
	}
}

static int wait_result(struct db_conn *conn, int64_t deadline_us, PGresult **ret, struct err *err)
{
	while (PQisBusy(conn->pg)) {
		int r = db_conn_poll(conn->pg, POLLIN, deadline_us, err);
		if (r < 0)
			return give_up(conn, r);
		if (PQconsumeInput(conn->pg) == 0)
			return db_error_conn(conn, err);
	}
	*ret = PQgetResult(conn->pg);
	return 0;
}

/* Takes every result of what was sent. The last good one is returned; the first bad one is the
 * error. */
static int collect(struct db_conn *conn, int sent, PGresult **ret, struct err *err)
{
	if (!sent)
		return db_error_conn(conn, err);
	int64_t deadline_us = clock_mono_us(clock_system()) + conn->deadline_ms * 1000;
	int code = flush(conn, deadline_us, err);
	if (code < 0)
		return code;

	cleanup(db_pgresult_clearp) PGresult *last = NULL;
	for (;;) {
		PGresult *result = NULL;
		int r = wait_result(conn, deadline_us, &result, err);
		if (r < 0)
			return r;
		if (!result)
			break;
		ExecStatusType status = PQresultStatus(result);
		if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ||
			status == PGRES_EMPTY_QUERY) {
			db_pgresult_clearp(&last);
			last = result;
			continue;
		}
		if (status == PGRES_FATAL_ERROR || status == PGRES_NONFATAL_ERROR) {
			if (code == 0)
				code = db_error_result(conn, result, err);
			PQclear(result);
			continue;
		}
		/* COPY and pipelines are never sent by us; waiting for their end would not end. */
		PQclear(result);
		return give_up(
			conn, err_set(err, ERR_INTERNAL, NULL, "the statement's result kind is not supported"));
	}
	if (code < 0)
		return code;
	if (!last)
		return db_error_conn(conn, err);
	*ret = take_ptr(last);
	return 0;
}

static int check_usable(struct db_conn *conn, struct err *err)
{
	if (conn->pg && !conn->broken && PQstatus(conn->pg) == CONNECTION_OK)
		return 0;
	conn->broken = true;
	return err_set(err, ERR_DATABASE, NULL, "the database connection was lost");
}

static uint64_t hash_text(const char *text)
{
	uint64_t hash = 14695981039346656037u; /* FNV-1a; the texts are our own */
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 1099511628211u;
	return hash;
}

static int prepare_in(
	struct db_conn *conn, int slot, uint64_t hash, const char *sql, struct err *err)
{
	cleanup(freep) char *copy = strdup(sql);
	if (!copy)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	char name[NAME_MAX_BYTES];
	(void)snprintf(name, sizeof(name), "s%d", slot);
	cleanup(db_pgresult_clearp) PGresult *result = NULL;
	int r = collect(conn, PQsendPrepare(conn->pg, name, sql, 0, NULL), &result, err);
	if (r < 0)
		return r;
	conn->statements.sql[slot] = take_ptr(copy);
	conn->statements.hash[slot] = hash;
	conn->statements.count++;
	return 0;
}

/* The slot of the prepared statement, or -1 when the table is full. */
static int find_or_prepare(struct db_conn *conn, const char *sql, int *ret_slot, struct err *err)
{
	struct db_statements *s = &conn->statements;
	uint64_t hash = hash_text(sql);
	int slot = (int)(hash % DB_STATEMENT_SLOTS);
	while (s->sql[slot]) {
		if (s->hash[slot] == hash && strcmp(s->sql[slot], sql) == 0) {
			*ret_slot = slot;
			return 0;
		}
		slot = (slot + 1) % DB_STATEMENT_SLOTS;
	}
	if (s->count >= DB_STATEMENTS_MAX) {
		*ret_slot = -1;
		return 0;
	}
	int r = prepare_in(conn, slot, hash, sql, err);
	if (r < 0)
		return r;
	*ret_slot = slot;
	return 0;
}

static int run(struct db_conn *conn, PGresult **ret, const char *sql, const struct db_param *params,
	int count, struct err *err)
{
	struct wire_params w;
	fill_params(&w, params, count);
	int slot = -1;
	int r = find_or_prepare(conn, sql, &slot, err);
	if (r < 0)
		return r;
	if (slot < 0)
		return collect(conn,
			PQsendQueryParams(conn->pg, sql, count, NULL, w.values, w.lengths, w.formats, 0), ret,
			err);
	char name[NAME_MAX_BYTES];
	(void)snprintf(name, sizeof(name), "s%d", slot);
	return collect(conn,
		PQsendQueryPrepared(conn->pg, name, count, w.values, w.lengths, w.formats, 0), ret, err);
}

int db_exec_params(struct db_conn *conn, struct db_result **ret, struct err *err, const char *sql,
	const struct db_param *params, int count)
{
	int r = check_usable(conn, err);
	if (r < 0)
		return r;
	cleanup(db_pgresult_clearp) PGresult *pg = NULL;
	r = run(conn, &pg, sql, params, count, err);
	if (r < 0 || !ret)
		return r;
	struct db_result *result = calloc(1, sizeof(*result));
	if (!result)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	result->pg = take_ptr(pg);
	*ret = result;
	return 0;
}

int db_script(struct db_conn *conn, const char *sql, struct err *err)
{
	int r = check_usable(conn, err);
	if (r < 0)
		return r;
	cleanup(db_pgresult_clearp) PGresult *result = NULL;
	return collect(conn, PQsendQuery(conn->pg, sql), &result, err);
}

int db_begin(struct db_conn *conn, struct err *err)
{
	return db_script(conn, "BEGIN", err);
}

int db_commit(struct db_conn *conn, struct err *err)
{
	/* COMMIT of a failed transaction is answered as a success that says ROLLBACK. */
	if (conn->pg && PQtransactionStatus(conn->pg) != PQTRANS_INTRANS) {
		int r = check_usable(conn, err);
		return r < 0 ? r : err_set(err, ERR_INTERNAL, NULL, "there is no transaction to commit");
	}
	return db_script(conn, "COMMIT", err);
}

void db_rollback(struct db_conn *conn)
{
	if (!conn->pg || conn->broken)
		return;
	PGTransactionStatusType status = PQtransactionStatus(conn->pg);
	if (status != PQTRANS_INTRANS && status != PQTRANS_INERROR)
		return;
	if (db_script(conn, "ROLLBACK", NULL) < 0)
		conn->broken = true;
}

int db_try_lock(struct db_conn *conn, int64_t key, bool *ret_got, struct err *err)
{
	cleanup(db_result_freep) struct db_result *result = NULL;
	int r = db_exec(conn, &result, err, "SELECT pg_try_advisory_lock($1)", DB_I64(key));
	if (r < 0)
		return r;
	bool got = db_bool(result, 0, 0);
	conn->has_locks = conn->has_locks || got;
	*ret_got = got;
	return 0;
}
