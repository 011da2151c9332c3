/* SPDX-License-Identifier: Apache-2.0
 * Tests server/limits/idempotency.c: two connections stand for two requests. Run by with_pg.sh. */
#include "server/limits/idempotency.h"

#include "core/db/migrate.h"
#include "tests/unit/server/limits/request_fixture.h"

enum { EXPIRED_ROWS = 150, FRESH_ROWS = 3 };

static const struct route create_job = { .operation_id = "createJob" };
static const struct route create_file = { .operation_id = "createFile" };

struct fixture {
	struct db_pool *pool;
	struct db_conn *a, *b;
};

/* A request with its answer and what begin said. */
struct call {
	struct request_fixture in;
	struct response res;
	struct idempotency i;
	struct err err;
	bool replayed;
};

static void call_open(struct call *c, const char *path, const char *key, const char *body)
{
	memset(c, 0, sizeof(*c));
	request_open(&c->in, path);
	response_init(&c->res);
	c->in.req.route = &create_job;
	c->in.req.body = body;
	c->in.req.body_bytes = strlen(body);
	(void)snprintf(c->in.req.principal.tenant_id, IDENT_MAX, "tenant_1");
	(void)snprintf(c->in.req.principal.id, IDENT_MAX, "key_1");
	if (key)
		c->in.data.headers[c->in.data.header_count++] =
			(struct name_value){ "idempotency-key", key };
}

static void call_close(struct call *c)
{
	response_finish(&c->res);
	request_close(&c->in);
}

static int begin(struct call *c, struct db_conn *conn)
{
	return idempotency_begin(&c->in.req, conn, NULL, &c->i, &c->res, &c->replayed, &c->err);
}

static void ok(struct call *c, int rc)
{
	if (rc < 0)
		fail_msg("%s: %s", err_info(rc)->name, c->err.message);
}

/* The effect and the answer of a served request. */
static void answer(struct call *c, struct db_conn *conn, const char *id)
{
	ok(c, db_exec(conn, NULL, &c->err, "insert into effects values ($1)", DB_TEXT(id)));
	response_created(&c->res, "/v1/jobs/%s", id);
	ok(c, buf_str(&c->res.body, id));
	ok(c, idempotency_finish(&c->i, conn, &c->res, NULL, &c->err));
}

/* Serves a request from start to commit; false when it was answered by the record. */
static bool serve(struct call *c, struct db_conn *conn, const char *id)
{
	ok(c, db_begin(conn, &c->err));
	ok(c, begin(c, conn));
	if (!c->replayed)
		answer(c, conn, id);
	ok(c, db_commit(conn, &c->err));
	return !c->replayed;
}

static int refused(struct call *c, struct db_conn *conn)
{
	ok(c, db_begin(conn, &c->err));
	int rc = begin(c, conn);
	db_rollback(conn);
	return rc;
}

static void sql(struct db_conn *conn, const char *text)
{
	struct err err = { 0 };
	if (db_script(conn, text, &err) < 0)
		fail_msg("%s", err.message);
}

static int64_t count(struct db_conn *conn, const char *what)
{
	struct err err = { 0 };
	char text[200];
	cleanup(db_result_freep) struct db_result *r = NULL;
	(void)snprintf(text, sizeof(text), "select count(*) from %s", what);
	assert_int_equal(db_exec(conn, &r, &err, text), 0);
	return db_i64(r, 0, 0);
}

static const char *header_of(const struct response *res, const char *name)
{
	for (int i = 0; i < res->header_count; i++)
		if (strcmp(res->headers[i].name, name) == 0)
			return res->headers[i].value;
	return "";
}

static int set_up_all(void **state)
{
	static struct fixture f;
	struct err err = { 0 };
	int applied = 0;
	struct db_config config = {
		.url = getenv("TRAINYARD_TEST_DB_URL"),
		.application_name = "idempotency-test",
		.size = 2,
		.connect_timeout_s = 10,
		.statement_timeout_ms = 20000,
		.lock_timeout_ms = 5000,
		.idle_tx_timeout_ms = 60000,
	};
	assert_non_null(config.url);
	assert_int_equal(db_pool_create(&config, &f.pool, &err), 0);
	assert_int_equal(db_pool_get(f.pool, 5000, &f.a, &err), 0);
	assert_int_equal(db_pool_get(f.pool, 5000, &f.b, &err), 0);
	assert_int_equal(migrate_run(f.a, MIGRATIONS_DIR, &applied, &err), 0);
	sql(f.a, "create table effects (id text)");
	*state = &f;
	return 0;
}

static int tear_down_all(void **state)
{
	struct fixture *f = *state;
	db_pool_put(f->pool, f->a);
	db_pool_put(f->pool, f->b);
	db_pool_destroy(f->pool);
	return 0;
}

static int set_up(void **state)
{
	struct fixture *f = *state;
	sql(f->a, "truncate idempotency_keys, effects");
	return 0;
}

static void without_a_key_nothing_is_kept(void **state)
{
	struct fixture *f = *state;
	for (int i = 1; i <= 2; i++) {
		struct call c;
		call_open(&c, "/v1/jobs", NULL, "{}");
		assert_true(serve(&c, f->a, "job"));
		assert_int_equal(count(f->a, "effects"), i);
		call_close(&c);
	}
	assert_int_equal(count(f->a, "idempotency_keys"), 0);
}

static void keys_that_are_none_are_refused(void **state)
{
	struct fixture *f = *state;
	char longest[IDEMPOTENCY_KEY_MAX + 2];
	memset(longest, 'k', sizeof(longest));
	longest[IDEMPOTENCY_KEY_MAX + 1] = '\0';
	const char *const bad[] = { "", "a\tb", "\xc3\xa4", longest };
	struct call c;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		call_open(&c, "/v1/jobs", bad[i], "{}");
		assert_int_equal(refused(&c, f->a), ERR_INVALID_VALUE);
		assert_string_equal(c.err.param, "Idempotency-Key");
		call_close(&c);
	}
	longest[IDEMPOTENCY_KEY_MAX] = '\0';
	call_open(&c, "/v1/jobs", longest, "{}");
	assert_true(serve(&c, f->a, "job"));
	call_close(&c);
}

static void a_repetition_gets_the_first_answer(void **state)
{
	struct fixture *f = *state;
	struct call first, again;
	call_open(&first, "/v1/jobs", "k", "{\"a\":1}");
	call_open(&again, "/v1/jobs", "k", "{\"a\":1}");
	assert_true(serve(&first, f->a, "job_1"));
	/* What a try before this one left must not be sent too. */
	response_header(&again.res, "Location", "/v1/jobs/wrong");
	ok(&again, buf_str(&again.res.body, "wrong"));
	assert_false(serve(&again, f->b, "job_2"));
	assert_int_equal(again.res.status, 201);
	assert_string_equal(buf_cstr(&again.res.body), "job_1");
	assert_int_equal(again.res.header_count, 2);
	assert_string_equal(header_of(&again.res, "Location"), "/v1/jobs/job_1");
	assert_string_equal(header_of(&again.res, "Idempotent-Replayed"), "true");
	assert_int_equal(count(f->a, "effects"), 1);
	call_close(&first);
	call_close(&again);
}

static void a_secret_is_answered_but_not_kept(void **state)
{
	struct fixture *f = *state;
	struct call first, again;
	call_open(&first, "/v1/keys", "k", "{}");
	call_open(&again, "/v1/keys", "k", "{}");
	ok(&first, db_begin(f->a, &first.err));
	ok(&first, begin(&first, f->a));
	ok(&first, buf_str(&first.res.body, "secret"));
	ok(&first, idempotency_finish(&first.i, f->a, &first.res, "hidden\nline", &first.err));
	ok(&first, db_commit(f->a, &first.err));
	assert_string_equal(buf_cstr(&first.res.body), "secret");
	assert_false(serve(&again, f->b, ""));
	assert_string_equal(buf_cstr(&again.res.body), "hidden\nline");
	assert_string_equal(header_of(&again.res, "Location"), "");
	assert_int_equal(again.res.status, 200);
	call_close(&first);
	call_close(&again);
}

static void a_key_in_flight_is_busy(void **state)
{
	struct fixture *f = *state;
	struct call first, same, other_key, other_tenant;
	call_open(&first, "/v1/jobs", "k", "{}");
	call_open(&same, "/v1/jobs", "k", "{}");
	call_open(&other_key, "/v1/jobs", "l", "{}");
	call_open(&other_tenant, "/v1/jobs", "k", "{}");
	(void)snprintf(other_tenant.in.req.principal.tenant_id, IDENT_MAX, "tenant_2");
	ok(&first, db_begin(f->a, &first.err));
	ok(&first, begin(&first, f->a));
	assert_int_equal(refused(&same, f->b), ERR_IDEMPOTENCY_BUSY);
	assert_int_equal(same.err.retry_after_s, 1);
	assert_true(serve(&other_key, f->b, "job_2"));
	assert_true(serve(&other_tenant, f->b, "job_3"));
	answer(&first, f->a, "job_1");
	assert_int_equal(refused(&same, f->b), ERR_IDEMPOTENCY_BUSY);
	ok(&first, db_commit(f->a, &first.err));
	assert_false(serve(&same, f->b, "job_4"));
	assert_string_equal(buf_cstr(&same.res.body), "job_1");
	call_close(&first);
	call_close(&same);
	call_close(&other_key);
	call_close(&other_tenant);
}

static void a_key_serves_one_request_only(void **state)
{
	static const struct {
		const char *path, *body;
		const struct route *route;
	} other[] = {
		{ "/v1/jobs", "{\"a\":2}", &create_job },
		{ "/v1/jobs/2", "{\"a\":1}", &create_job },
		{ "/v1/jobs", "{\"a\":1}", &create_file },
		{ "/v1/jobs", "", &create_job },
	};
	struct fixture *f = *state;
	struct call c;
	call_open(&c, "/v1/jobs", "k", "{\"a\":1}");
	assert_true(serve(&c, f->a, "job_1"));
	call_close(&c);
	for (size_t i = 0; i < ARRAY_LEN(other); i++) {
		call_open(&c, other[i].path, "k", other[i].body);
		c.in.req.route = other[i].route;
		assert_int_equal(refused(&c, f->b), ERR_IDEMPOTENCY_REUSE);
		assert_non_null(strstr(c.err.message, "createJob"));
		assert_false(c.replayed);
		call_close(&c);
	}
	assert_int_equal(count(f->a, "effects"), 1);
}

/* Uploads: what must be equal is a digest that the handler names, not the body. */
static void content_stands_for_the_body(void **state)
{
	struct fixture *f = *state;
	struct call c;
	static const char *const contents[] = { "x", "x", "y" };
	static const int codes[] = { 0, 0, ERR_IDEMPOTENCY_REUSE };
	for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
		call_open(&c, "/v1/files", "k", i == 0 ? "one" : "another");
		ok(&c, db_begin(f->a, &c.err));
		assert_int_equal(
			idempotency_begin(&c.in.req, f->a, contents[i], &c.i, &c.res, &c.replayed, &c.err),
			codes[i]);
		assert_int_equal(c.replayed, i == 1);
		if (i == 0)
			answer(&c, f->a, "file_1");
		ok(&c, db_commit(f->a, &c.err));
		call_close(&c);
	}
}

static void operators_own_keys_by_themselves(void **state)
{
	struct fixture *f = *state;
	struct call one, two, again;
	struct call *const calls[] = { &one, &two, &again };
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		call_open(calls[i], "/v1/tenants", "k", "{}");
		calls[i]->in.req.principal.tenant_id[0] = '\0';
	}
	(void)snprintf(two.in.req.principal.id, IDENT_MAX, "key_2");
	assert_true(serve(&one, f->a, "tenant_1"));
	assert_true(serve(&two, f->a, "tenant_2"));
	assert_false(serve(&again, f->a, "tenant_3"));
	for (size_t i = 0; i < ARRAY_LEN(calls); i++)
		call_close(calls[i]);
}

/* The backend ends with everything written but not committed: neither effect nor record is there,
 * and the repetition is served. */
static void a_crash_before_commit_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	struct call first, again;
	call_open(&first, "/v1/jobs", "k", "{}");
	call_open(&again, "/v1/jobs", "k", "{}");
	ok(&first, db_begin(f->a, &first.err));
	ok(&first, begin(&first, f->a));
	answer(&first, f->a, "job_1");
	cleanup(db_result_freep) struct db_result *r = NULL;
	ok(&first, db_exec(f->a, &r, &first.err, "select pg_backend_pid()"));
	ok(&again,
		db_exec(f->b, NULL, &again.err, "select pg_terminate_backend($1::int, 10000)",
			DB_I64(db_i64(r, 0, 0))));
	assert_true(db_commit(f->a, &first.err) < 0);
	assert_int_equal(count(f->b, "effects"), 0);
	assert_int_equal(count(f->b, "idempotency_keys"), 0);
	assert_true(serve(&again, f->b, "job_2"));
	assert_int_equal(count(f->b, "effects"), 1);
	call_close(&first);
	call_close(&again);
	db_pool_put(f->pool, f->a);
	struct err err = { 0 };
	assert_int_equal(db_pool_get(f->pool, 5000, &f->a, &err), 0);
}

static void an_expired_record_counts_no_more(void **state)
{
	struct fixture *f = *state;
	struct call first, young, other;
	call_open(&first, "/v1/jobs", "k", "{}");
	call_open(&young, "/v1/jobs", "k", "{}");
	call_open(&other, "/v1/jobs", "k", "{\"other\":1}");
	assert_true(serve(&first, f->a, "job_1"));
	sql(f->a,
		"update idempotency_keys set created_at = yard_now() - interval '23 hours 59 minutes'");
	assert_false(serve(&young, f->a, "job_2"));
	sql(f->a, "update idempotency_keys set created_at = yard_now() - interval '24 hours 1 minute'");
	assert_true(serve(&other, f->a, "job_3"));
	assert_int_equal(count(f->a, "idempotency_keys"), 1);
	assert_int_equal(count(f->a, "idempotency_keys where response like '%job_3'"), 1);
	call_close(&first);
	call_close(&young);
	call_close(&other);
}

static void expired_records_are_removed_a_few_at_a_time(void **state)
{
	struct fixture *f = *state;
	char text[400];
	(void)snprintf(text, sizeof(text),
		"insert into idempotency_keys (owner, key, operation, body_sha256, status, response,"
		" created_at) select 'tenant_9', n, 'o', 'x', 201, E'\\n', yard_now() -"
		" case when n <= %d then interval '25 hours' else interval '1 hour' end"
		" from generate_series(1, %d) n",
		EXPIRED_ROWS, EXPIRED_ROWS + FRESH_ROWS);
	sql(f->a, text);
	static const int left[] = { EXPIRED_ROWS - IDEMPOTENCY_PURGE_MAX, 0, 0 };
	for (int i = 0; i < (int)ARRAY_LEN(left); i++) {
		struct call c;
		char key[8];
		(void)snprintf(key, sizeof(key), "k%d", i);
		call_open(&c, "/v1/jobs", key, "{}");
		assert_true(serve(&c, f->a, "job"));
		assert_int_equal(
			count(f->a, "idempotency_keys where owner = 'tenant_9'"), left[i] + FRESH_ROWS);
		call_close(&c);
	}
}

#define keys_test(fn) cmocka_unit_test_setup(fn, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		keys_test(without_a_key_nothing_is_kept),
		keys_test(keys_that_are_none_are_refused),
		keys_test(a_repetition_gets_the_first_answer),
		keys_test(a_secret_is_answered_but_not_kept),
		keys_test(a_key_in_flight_is_busy),
		keys_test(a_key_serves_one_request_only),
		keys_test(content_stands_for_the_body),
		keys_test(operators_own_keys_by_themselves),
		keys_test(a_crash_before_commit_leaves_nothing),
		keys_test(an_expired_record_counts_no_more),
		keys_test(expired_records_are_removed_a_few_at_a_time),
	};
	return cmocka_run_group_tests(tests, set_up_all, tear_down_all);
}
