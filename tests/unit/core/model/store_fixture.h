/* SPDX-License-Identifier: Apache-2.0
 * What tests of stores share: a migrated database, a connection, a transaction around every test
 * that is rolled back after it, and rows to refer to. One thread. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/clock.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/db/migrate.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "core/model/file_store.h"
#include "core/model/job_store.h"
#include "core/model/tenant_store.h"

struct store_fixture {
	struct db_pool *pool;
	struct db_conn *conn;
};

/* A failure shows what the code said. */
#define assert_ok(call)                                                     \
	do {                                                                    \
		int _rc = (call);                                                   \
		if (_rc < 0)                                                        \
			fail_msg("%s: %s %s", #call, err_info(_rc)->name, err.message); \
	} while (0)

static inline int store_group_setup(void **state)
{
	struct err err = { 0 };
	struct store_fixture *fx = calloc(1, sizeof(*fx));
	assert_non_null(fx);
	struct db_config config = { .url = getenv("TRAINYARD_TEST_DB_URL"),
		.application_name = "store-test",
		.size = 4,
		.connect_timeout_s = 10,
		.statement_timeout_ms = 20000,
		.lock_timeout_ms = 5000,
		.idle_tx_timeout_ms = 60000 };
	assert_non_null(config.url);
	assert_ok(db_pool_create(&config, &fx->pool, &err));
	assert_ok(db_pool_get(fx->pool, 1000, &fx->conn, &err));
	int applied = 0;
	assert_ok(migrate_run(fx->conn, MIGRATIONS_DIR, &applied, &err));
	*state = fx;
	return 0;
}

static inline int store_group_teardown(void **state)
{
	struct store_fixture *fx = *state;
	db_pool_put(fx->pool, fx->conn);
	db_pool_destroy(fx->pool);
	free(fx);
	return 0;
}

static inline int store_setup(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	assert_ok(db_begin(fx->conn, &err));
	return 0;
}

static inline int store_teardown(void **state)
{
	struct store_fixture *fx = *state;
	db_rollback(fx->conn);
	return 0;
}

#define store_test(fn) cmocka_unit_test_setup_teardown(fn, store_setup, store_teardown)

static inline void store_tenant(
	struct db_conn *conn, const char *region, char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	struct residency_set set = { 0 };
	assert_ok(residency_set_add(&set, region, &err));
	ident_new(clock_system(), "tenant", ret_id);
	assert_ok(tenant_store_insert(conn, ret_id, "Acme", &set, &err));
}

static inline void store_file(
	struct db_conn *conn, const char *tenant, char digit, char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	struct file f = {
		.filename = "bible.txt", .purpose = "fine-tune", .bytes = 7, .processed = true
	};
	memset(f.sha256, digit, sizeof(f.sha256) - 1);
	assert_ok(residency_set_add(&f.residency, "us", &err));
	ident_new(clock_system(), "file", f.id);
	assert_ok(file_store_insert(conn, tenant, &f, &err));
	snprintf(ret_id, IDENT_MAX, "%s", f.id);
}

/* A job of one training file, as `validating_files`. */
static inline void store_job(struct db_conn *conn, const char *tenant, const char *file,
	const char *metadata, char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	struct residency_set set = { 0 };
	assert_ok(residency_set_add(&set, "us", &err));
	ident_new(clock_system(), "job", ret_id);
	struct job_new job = { .id = ret_id,
		.tenant_id = tenant,
		.name = "small",
		.spec_json = "{\"task\":\"language_model\",\"seed\":42}",
		.plan_json = "{\"total_bytes\":1024}",
		.metadata_json = metadata,
		.residency = &set,
		.instance_type = "cpu-dev",
		.device_count = 1,
		.training_files = &file,
		.training_file_count = 1 };
	assert_ok(job_store_insert(conn, &job, &err));
}

/* Text of JSON that a store wrote, parsed; both are freed by the caller. */
struct store_json {
	struct buf text;
	struct json_writer w;
	struct json_doc *doc;
};
static inline void store_json_init(struct store_json *j)
{
	*j = (struct store_json){ 0 };
	buf_init(&j->text, 1024 * 1024);
	json_writer_init(&j->w, &j->text);
}
static inline const struct json_val *store_json_root(struct store_json *j)
{
	struct err err = { 0 };
	assert_int_equal(j->text.failed, 0);
	assert_ok(json_doc_parse(buf_cstr(&j->text), j->text.len, 1024 * 1024, &j->doc, &err));
	return json_doc_root(j->doc);
}
static inline void store_json_finish(struct store_json *j)
{
	json_doc_free(j->doc);
	buf_finish(&j->text);
}
