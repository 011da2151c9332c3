/* SPDX-License-Identifier: Apache-2.0
 * What the tests of core/db share: pools on the private cluster that with_pg.sh started. */
#pragma once

#include "core/db/db.h"
#include "tests/support/check.h"

#define FIXTURE_OK(call) fixture_ok((call), &err, __FILE__, __LINE__)

static inline void fixture_ok(int r, const struct err *err, const char *file, int line)
{
	if (r < 0) {
		(void)fprintf(stderr, "%s: %s\n", err_info(r)->name, err->message);
		_fail(file, line);
	}
}

static inline struct db_config fixture_config(int size)
{
	const char *url = getenv("TRAINYARD_TEST_DB_URL");
	if (!url)
		fail_msg("TRAINYARD_TEST_DB_URL is not set: run this through tests/support/with_pg.sh");
	return (struct db_config){
		.url = url,
		.application_name = "unit-test",
		.size = size,
		.connect_timeout_s = 5,
		.statement_timeout_ms = 5000,
		.lock_timeout_ms = 2000,
		.idle_tx_timeout_ms = 20000,
	};
}

static inline struct db_pool *fixture_pool(const struct db_config *config)
{
	struct db_pool *pool = NULL;
	struct err err = { 0 };
	FIXTURE_OK(db_pool_create(config, &pool, &err));
	return pool;
}

static inline struct db_conn *fixture_get(struct db_pool *pool)
{
	struct db_conn *conn = NULL;
	struct err err = { 0 };
	FIXTURE_OK(db_pool_get(pool, 1000, &conn, &err));
	return conn;
}

static inline int64_t fixture_i64(struct db_conn *conn, const char *sql)
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	FIXTURE_OK(db_exec(conn, &r, &err, sql));
	assert_int_equal(db_rows(r), 1);
	return db_i64(r, 0, 0);
}

static inline void fixture_script(struct db_conn *conn, const char *sql)
{
	struct err err = { 0 };
	FIXTURE_OK(db_script(conn, sql, &err));
}
