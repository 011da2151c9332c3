/* SPDX-License-Identifier: Apache-2.0
 * PostgreSQL: a bounded pool of connections, prepared statements with parameters only,
 * transactions. The only user of libpq. A connection belongs to one thread at a time; the pool is
 * thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct db_pool;
struct db_conn;
struct db_result;

struct db_config {
	const char *url; /* libpq connection string */
	const char *application_name;
	int size; /* connections at most; opened on first use */
	/* 0 or less takes a default: nothing waits for ever. A server that stays silent is given up
	 * 400 ms after statement_timeout_ms. Name resolution alone has no deadline. */
	int connect_timeout_s;
	int statement_timeout_ms;
	int lock_timeout_ms;
	int idle_tx_timeout_ms;
};

int db_pool_create(
	const struct db_config *config, struct db_pool **ret, struct err *err) must_check;
void db_pool_destroy(struct db_pool *pool); /* all connections must be back */

/* Waits up to wait_ms for a free connection (OVERLOADED), reconnects a broken one (DATABASE, within
 * a bounded time). */
int db_pool_get(
	struct db_pool *pool, int wait_ms, struct db_conn **ret, struct err *err) must_check;
/* NULL accepted. A connection inside a transaction is rolled back; a broken one is closed. */
void db_pool_put(struct db_pool *pool, struct db_conn *conn);

/* Parameters, always sent as text or bytes apart from the SQL. */
enum db_kind { DB_KIND_NULL, DB_KIND_TEXT, DB_KIND_I64, DB_KIND_F64, DB_KIND_BOOL, DB_KIND_BYTES };
struct db_param {
	enum db_kind kind;
	const char *text;
	int64_t i64;
	double f64;
	const void *bytes;
	size_t bytes_len;
};
/* A function, so that an array may be passed without a warning about its address. NULL is null. */
static inline struct db_param db_text(const char *s)
{
	return (struct db_param){ .kind = s ? DB_KIND_TEXT : DB_KIND_NULL, .text = s };
}
#define DB_TEXT(s) db_text(s)
#define DB_I64(v) ((struct db_param){ .kind = DB_KIND_I64, .i64 = (v) })
#define DB_F64(v) ((struct db_param){ .kind = DB_KIND_F64, .f64 = (v) })
#define DB_BOOL(v) ((struct db_param){ .kind = DB_KIND_BOOL, .i64 = (v) })
#define DB_BYTES(p, n) ((struct db_param){ .kind = DB_KIND_BYTES, .bytes = (p), .bytes_len = (n) })
#define DB_NULL ((struct db_param){ .kind = DB_KIND_NULL })

/* Runs one statement (prepared once per connection and SQL text). ret may be NULL when no rows are
 * wanted. db_exec(conn, &result, &err, "SELECT name FROM tenants WHERE id = $1", DB_TEXT(id))
 * Errors: DATABASE (connection, timeout), DB_CONFLICT (40001, 40P01, 55P03), DB_UNIQUE (23505,
 * 23P01), INVALID_VALUE (22021: not UTF-8), INTERNAL (any other, with SQLSTATE and the server's
 * text). err->param is the violated constraint's name, "" when there is none: for the code that
 * turns it into a field's path, not for customers. */
#define db_exec(conn, ret, err, sql, ...)                                               \
	db_exec_params((conn), (ret), (err), (sql),                                         \
		(const struct db_param[]){ __VA_ARGS__ __VA_OPT__(, ) DB_NULL },                \
		(int)(sizeof((const struct db_param[]){ __VA_ARGS__ __VA_OPT__(, ) DB_NULL }) / \
			sizeof(struct db_param)) -                                                  \
			1)
int db_exec_params(struct db_conn *conn, struct db_result **ret, struct err *err, const char *sql,
	const struct db_param *params, int count) must_check;
/* Several statements without parameters, in one go (migrations). */
int db_script(struct db_conn *conn, const char *sql, struct err *err) must_check;

/* Results: text inside, freed by db_result_free(p). Row and column must exist (asserted). */
void db_result_free(struct db_result *r);
void db_result_freep(struct db_result **r);
int db_rows(const struct db_result *r);
int64_t db_affected(const struct db_result *r);
bool db_is_null(const struct db_result *r, int row, int col);
const char *db_str(const struct db_result *r, int row, int col); /* NULL for SQL null */
int64_t db_i64(const struct db_result *r, int row, int col);     /* 0 for SQL null */
double db_f64(const struct db_result *r, int row, int col);
bool db_bool(const struct db_result *r, int row, int col);
/* bytea: malloc'ed copy. */
int db_bytes(
	const struct db_result *r, int row, int col, unsigned char **ret, size_t *ret_len) must_check;

int db_begin(struct db_conn *conn, struct err *err) must_check;
int db_commit(struct db_conn *conn, struct err *err) must_check;
void db_rollback(struct db_conn *conn); /* no-op outside a transaction */

/* Runs fn in a transaction on a pooled connection; repeats it (at most DB_TX_TRIES) on DB_CONFLICT.
 * fn must be repeatable: it writes its outputs anew each time. */
enum { DB_TX_TRIES = 5 };
typedef int (*db_tx_fn)(struct db_conn *conn, void *ctx, struct err *err);
int db_tx(struct db_pool *pool, int wait_ms, db_tx_fn fn, void *ctx, struct err *err) must_check;

/* Session advisory lock, for leadership. ret_got is false when another session has it. */
int db_try_lock(struct db_conn *conn, int64_t key, bool *ret_got, struct err *err) must_check;
