/* SPDX-License-Identifier: Apache-2.0
 * Invoices on a real database: periods, lines, content, guards, planted faults. Run by with_pg.sh.
 */
#include "core/model/invoice_store.h"
#include "tests/support/check.h"
#include "tests/unit/core/model/money_fixture.h"

static int64_t at(const char *text)
{
	int64_t us = 0;
	assert_int_equal(clock_parse_rfc3339(text, &us), 0);
	return us;
}

/* Drafts and finalizes; false when there was no usage. */
static bool close_one(struct db_conn *conn, const char *from, const char *to, bool all_earlier,
	char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	struct invoice_period period = { at(from), at(to) };
	bool found = false;
	ident_new(clock_system(), "inv", ret_id);
	assert_ok(invoice_store_lock(conn, "tenant_a", &err));
	assert_ok(invoice_store_draft(conn, ret_id, "tenant_a", &period, all_earlier, &found, &err));
	if (found)
		assert_ok(invoice_store_finalize(conn, ret_id, &err));
	return found;
}

static int differences(struct db_conn *conn, const char *id, const char *must_say)
{
	struct err err = { 0 };
	cleanup(invoice_finish) struct invoice invoice = { 0 };
	assert_ok(invoice_store_load(conn, NULL, id, &invoice, &err));
	cleanup(buf_finish) struct buf text;
	buf_init(&text, 65536);
	int count = -1;
	assert_int_equal(invoice_check(&invoice, &text, &count), 0);
	if (must_say && !strstr(buf_cstr(&text), must_say))
		fail_msg("\"%s\" is not in: %s", must_say, buf_cstr(&text));
	return count;
}

static void fill(struct db_conn *conn)
{
	money_yard(conn);
	money_tile(conn, "dev_0", "idle", NULL, "2025-01-31T23:00:00Z");
	money_tile(conn, "dev_0", "billed", "att_1", "2025-02-01T00:03:00.123Z");
	money_tile(conn, "dev_0", "lost", "att_1", "2025-02-01T00:04:00Z");
	money_tile(conn, "dev_1", "billed", "att_2", "2025-01-16T00:00:00Z");
	money_tile(conn, "dev_1", "billed", "att_3", "2025-01-16T01:00:00Z");
}

static void a_month_end_makes_two_invoices(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	char january[IDENT_MAX], february[IDENT_MAX], none[IDENT_MAX];
	assert_true(close_one(fx->conn, "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z", true, january));
	assert_true(
		close_one(fx->conn, "2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z", true, february));
	assert_false(close_one(fx->conn, "2025-03-01T00:00:00Z", "2025-04-01T00:00:00Z", true, none));
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoices"), 2);

	cleanup(invoice_finish) struct invoice i = { 0 };
	assert_ok(invoice_store_load(fx->conn, "tenant_a", january, &i, &err));
	assert_int_equal(i.line_count, 2);
	assert_string_equal(i.lines[0].job_id, "job_1");
	assert_int_equal(i.lines[0].quantity_ms, 3600000);
	assert_int_equal(i.lines[0].amount_minor, 36);
	assert_string_equal(
		i.lines[0].description, "mnist: training on cpu-dev at 0.36 USD per device-hour");
	assert_string_equal(
		i.lines[1].description, "job_2: training on cpu-dev at 0.36 USD per device-hour");
	assert_int_equal(i.lines[1].quantity_ms, 86400000);
	assert_int_equal(i.lines[1].amount_minor, 864);
	assert_int_equal(i.total_minor, 900);
	assert_int_equal(differences(fx->conn, january, NULL), 0);
	assert_int_equal(differences(fx->conn, february, NULL), 0);

	cleanup(invoice_finish) struct invoice f = { 0 };
	assert_ok(invoice_store_load(fx->conn, "tenant_a", february, &f, &err));
	assert_int_equal(f.line_count, 1);
	assert_int_equal(f.lines[0].quantity_ms, 180123);
	assert_int_equal(f.total_minor, 2);
	assert_int_equal(invoice_store_load(fx->conn, "tenant_b", january, &f, &err), ERR_NOT_FOUND);
}

/* The check sums can be recomputed by anybody from the documented text. */
static void the_content_is_canonical(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	char id[IDENT_MAX];
	assert_true(close_one(fx->conn, "2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z", false, id));
	cleanup(invoice_finish) struct invoice i = { 0 };
	assert_ok(invoice_store_load(fx->conn, NULL, id, &i, &err));
	char segment[256], segments_sha256[DIGEST_HEX_MAX], finalized[CLOCK_RFC3339_MAX];
	int len = snprintf(segment, sizeof(segment),
		"%lld dev_0 2025-02-01T00:00:00.000Z 2025-02-01T00:03:00.123Z\n",
		(long long)money_i64(fx->conn,
			"select id from segments where"
			" lower(period) = '2025-02-01Z' and state = 'billed'"));
	assert_int_equal(digest_hex_of(segment, (size_t)len, segments_sha256), 0);
	clock_rfc3339(i.finalized_us, finalized);
	char want[2048];
	(void)snprintf(want, sizeof(want),
		"{\"currency\":\"USD\",\"finalized_at\":\"%s\",\"format\":1,\"id\":\"%s\",\"lines\":["
		"{\"amount\":\"0.02\",\"description\":\"mnist: training on cpu-dev at 0.36 USD per "
		"device-hour\",\"instance_type\":\"cpu-dev\",\"job_id\":\"job_1\",\"line\":1,"
		"\"price_id\":\"price_cpu-dev_2025-01-01\",\"price_per_device_hour\":\"0.36\","
		"\"quantity_ms\":180123,\"segment_count\":1,\"segments_sha256\":\"%s\","
		"\"usage_end\":\"2025-02-01T00:03:00.123Z\",\"usage_start\":\"2025-02-01T00:00:00.000Z\"}],"
		"\"period_end\":\"2025-03-01T00:00:00.000Z\",\"period_start\":\"2025-02-01T00:00:00.000Z\","
		"\"tenant_id\":\"tenant_a\",\"total\":\"0.02\"}",
		finalized, id, segments_sha256);
	assert_string_equal(i.content, want);
	char sha256[DIGEST_HEX_MAX];
	assert_int_equal(digest_hex_of(want, strlen(want), sha256), 0);
	assert_string_equal(i.content_sha256, sha256);
}

/* Explicit periods leave earlier ones alone; time decided after its period was closed comes with
 * the next invoice, once. */
static void late_segments_come_with_the_next(void **state)
{
	struct store_fixture *fx = *state;
	money_yard(fx->conn);
	money_tile(fx->conn, "dev_0", "billed", "att_1", "2025-01-15T01:00:00Z");
	money_tile(fx->conn, "dev_0", "idle", NULL, "2025-01-20T00:00:00Z");
	money_tile(fx->conn, "dev_0", "billed", "att_1", "2025-01-20T00:30:00Z");
	char id[IDENT_MAX], next[IDENT_MAX], last[IDENT_MAX];
	assert_true(close_one(fx->conn, "2025-01-18T00:00:00Z", "2025-01-21T00:00:00Z", false, id));
	assert_int_equal(money_i64(fx->conn, "select quantity_ms from invoice_lines"), 1800000);
	/* dev_1 trained from the 15th to the 21st; a part ended in the invoiced period, the rest not.
	 */
	money_tile(fx->conn, "dev_1", "billed", "att_2", "2025-01-19T00:00:00Z");
	money_tile(fx->conn, "dev_1", "billed", "att_2", "2025-01-21T06:00:00Z");
	assert_true(close_one(fx->conn, "2025-01-21T00:00:00Z", "2025-01-22T00:00:00Z", false, next));
	assert_int_equal(money_i64(fx->conn,
						 "select sum(quantity_ms) from invoice_lines"
						 " where job_id = 'job_2'"),
		INT64_C(6) * 86400000 + 6 * 3600000);
	assert_int_equal(differences(fx->conn, next, NULL), 0);
	/* The first hour belonged to a period that nobody closed: only a close of everything takes it.
	 */
	assert_true(close_one(fx->conn, "2025-01-22T00:00:00Z", "2025-01-23T00:00:00Z", true, last));
	assert_int_equal(money_i64(fx->conn,
						 "select count(*) from segments s where state = 'billed'"
						 " and not exists (select from invoice_segments i"
						 " where i.segment_id = s.id)"),
		0);
	assert_int_equal(money_i64(fx->conn, "select count(*) from invoice_segments"), 4);
}

static void expect_period(struct db_conn *conn, const char *from, const char *to,
	const char *want_from, const char *want_to)
{
	struct err err = { 0 };
	struct invoice_period period = { 0 };
	int64_t end = 0;
	bool found = false;
	assert_ok(invoice_store_next_period(conn, "tenant_a", from ? at(from) : INVOICE_UNSET,
		to ? at(to) : INVOICE_UNSET, &period, &end, &found, &err));
	assert_int_equal(found, want_from != NULL);
	if (!found)
		return;
	char text[CLOCK_RFC3339_MAX];
	clock_rfc3339(period.from_us, text);
	assert_string_equal(text, want_from);
	clock_rfc3339(period.to_us, text);
	assert_string_equal(text, want_to);
}

static void periods_are_found(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	money_yard(fx->conn);
	struct db_conn *c = fx->conn;
	expect_period(
		c, NULL, "2025-01-20T00:00:00Z", "2025-01-01T00:00:00.000Z", "2025-01-20T00:00:00.000Z");
	expect_period(
		c, NULL, "2025-02-20T00:00:00Z", "2025-01-01T00:00:00.000Z", "2025-02-01T00:00:00.000Z");
	/* Local midnight is not a month end. */
	expect_period(c, "2025-01-31T20:00:00-05:00", "2025-02-01T06:00:00Z",
		"2025-02-01T01:00:00.000Z", "2025-02-01T06:00:00.000Z");
	money_sql(c,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_1', 'tenant_a', 'draft', '[2025-01-10Z,2025-01-20Z)', 'USD', 0),"
		" ('inv_2', 'tenant_a', 'draft', '[2025-01-20Z,2025-01-25Z)', 'USD', 0),"
		" ('inv_3', 'tenant_b', 'draft', '[2025-01-01Z,2025-02-01Z)', 'USD', 0)");
	expect_period(
		c, NULL, "2025-02-20T00:00:00Z", "2025-01-25T00:00:00.000Z", "2025-02-01T00:00:00.000Z");
	expect_period(c, "2025-01-05T00:00:00Z", "2025-01-30T00:00:00Z", "2025-01-05T00:00:00.000Z",
		"2025-01-10T00:00:00.000Z");
	expect_period(c, "2025-01-12T00:00:00Z", "2025-01-30T00:00:00Z", "2025-01-25T00:00:00.000Z",
		"2025-01-30T00:00:00.000Z");
	expect_period(c, "2025-01-12T00:00:00Z", "2025-01-24T00:00:00Z", NULL, NULL);
	expect_period(c, NULL, "2025-01-25T00:00:00Z", NULL, NULL);
	struct invoice_period period;
	int64_t end;
	bool found;
	assert_int_equal(invoice_store_next_period(c, "tenant_a", INVOICE_UNSET,
						 at("9000-01-01T00:00:00Z"), &period, &end, &found, &err),
		ERR_INVALID_VALUE);
	assert_int_equal(invoice_store_next_period(
						 c, "tenant_x", INVOICE_UNSET, INVOICE_UNSET, &period, &end, &found, &err),
		ERR_NOT_FOUND);
	assert_int_equal(invoice_store_lock(c, "tenant_x", &err), ERR_NOT_FOUND);
}

static void the_database_guards_what_is_final(void **state)
{
	struct store_fixture *fx = *state;
	struct db_conn *c = fx->conn;
	fill(c);
	char id[IDENT_MAX];
	assert_true(close_one(c, "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z", true, id));
	static const char *const never[] = {
		"update invoices set total_minor = total_minor - 1",
		"update invoices set content = content || ' '",
		"update invoices set content_sha256 = repeat('0', 64)",
		"update invoices set period = '[2025-01-01Z,2025-01-02Z)'",
		"update invoices set tenant_id = 'tenant_b'",
		"update invoices set finalized_at = finalized_at + interval '1 s'",
		"update invoices set status = 'draft'",
		"delete from invoices",
		"update invoice_lines set amount_minor = 0",
		"update invoice_lines set description = ''",
		"delete from invoice_segments",
		"update invoice_segments set line = 3 - line",
		"insert into invoice_lines select invoice_id, 9, job_id, instance_type, price_id, 1, 0, ''"
		" from invoice_lines where line = 1",
		"insert into invoice_segments select s.id, i.id, 1 from segments s, invoices i"
		" where s.job_id = 'job_3'",
	};
	for (size_t i = 0; i < ARRAY_LEN(never); i++)
		assert_refused(c, never[i], "23000");
	assert_refused(c, "delete from invoice_lines", "23503");
	assert_refused(c,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_2', 'tenant_b', 'draft', '[2025-01-31Z,2025-02-05Z)', 'USD', 0);"
		"insert into invoice_lines select 'inv_2', 9, job_id, instance_type, price_id, 1, 0, ''"
		" from invoice_lines where line = 1;"
		"update invoice_lines set invoice_id = (select min(id) from invoices) where line = 9",
		"23000");
	assert_refused(c, "update segments set period = '[2025-01-01Z,2025-01-02Z)'", "P0001");
	assert_refused(c, "delete from segments", "P0001");
	assert_refused(c,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_2', 'tenant_a', 'draft', '[2025-01-31 23:59:59.999Z,2025-02-05Z)', 'USD', 0)",
		"23P01");
	assert_refused(c,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_2', 'tenant_b', 'finalized', '[2025-01-31Z,2025-02-05Z)', 'USD', 0)",
		"23514");
	assert_int_equal(differences(c, id, NULL), 0);
	/* A void invoice gives its segments back, and keeps its content. */
	money_sql(c, "update invoices set status = 'void'; delete from invoice_segments");
	assert_int_equal(differences(c, id, NULL), 0);
	assert_true(close_one(c, "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z", true, id));
	assert_int_equal(differences(c, id, NULL), 0);
}

static void only_six_moves_are_allowed(void **state)
{
	struct store_fixture *fx = *state;
	static const char *const words[] = { "draft", "finalized", "paid", "void", "uncollectible" };
	static const char *const allowed[] = { "draft>finalized", "finalized>paid", "finalized>void",
		"finalized>uncollectible", "uncollectible>paid", "uncollectible>void" };
	money_yard(fx->conn);
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		for (size_t j = 0; j < ARRAY_LEN(words); j++) {
			char move[64], sql[256];
			(void)snprintf(move, sizeof(move), "%s>%s", words[i], words[j]);
			bool ok = i == j;
			for (size_t k = 0; k < ARRAY_LEN(allowed); k++)
				ok = ok || strcmp(move, allowed[k]) == 0;
			money_sql(fx->conn,
				"savepoint moves; insert into invoices (id, tenant_id, status, period, currency,"
				" total_minor, content, content_sha256, finalized_at) values ('inv_1', 'tenant_a',"
				" '%s', '[2025-01-01Z,2025-01-02Z)', 'USD', 0, '{}', '', yard_now())",
				words[i]);
			(void)snprintf(sql, sizeof(sql), "update invoices set status = '%s'", words[j]);
			assert_refused(fx->conn, sql, ok ? "" : "23000");
			money_sql(fx->conn, "rollback to savepoint moves");
		}
	}
}

/* What a person with the keys to the database could do is found by the check. */
static void planted_faults_are_found(void **state)
{
	struct store_fixture *fx = *state;
	struct db_conn *c = fx->conn;
	fill(c);
	char id[IDENT_MAX];
	assert_true(close_one(c, "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z", true, id));
	money_sql(c,
		"alter table invoices disable trigger user;"
		"alter table invoice_lines disable trigger user;"
		"alter table invoice_segments disable trigger user;"
		"alter table prices disable trigger user;"
		"alter table segments disable trigger user;");
	static const struct {
		const char *sql;
		const char *says;
	} faults[] = {
		{ "update invoice_lines set amount_minor = 37 where line = 1",
			"line 1 says 37 minor units, its segments cost 36" },
		{ "update invoice_lines set quantity_ms = 3600001 where line = 1",
			"line 1 says 3600001 ms, its segments have 3600000" },
		{ "update invoice_lines set amount_minor = 37 where line = 1;"
		  "update invoices set total_minor = 901",
			"line 1 says 37" },
		{ "update invoices set total_minor = 899", "its lines add up to 900" },
		{ "update invoices set content = replace(content, '9.00', '8.00')",
			"its content has the check sum" },
		{ "update invoices set content = replace(content, '9.00', '8.00'), content_sha256 ="
		  " encode(sha256(convert_to(replace(content, '9.00', '8.00'), 'UTF8')), 'hex')",
			"is not what lines and segments give" },
		{ "update invoice_lines set description = 'other' where line = 2",
			"is not what lines and segments give" },
		{ "delete from invoice_segments where line = 1", "line 1 has no segments" },
		{ "update invoice_segments set line = 1", "line 2 has no segments" },
		{ "insert into invoice_segments select s.id, i.id, 1 from segments s, invoices i"
		  " where s.job_id = 'job_3'",
			"line 1 has 1 segments that are not billed to its job" },
		{ "update prices set micros_per_hour = 360001 where instance_type = 'cpu-dev'",
			"is not what lines and segments give" },
		{ "update segments set period = tstzrange(lower(period), upper(period) - interval '1 ms')"
		  " where job_id = 'job_1' and state = 'billed' and upper(period) = '2025-02-01Z'",
			"line 1 says 3600000 ms, its segments have 3599999" },
		{ "update invoices set content = null, status = 'draft';"
		  "alter table invoices drop constraint invoices_check;"
		  "update invoices set status = 'finalized'",
			"has no content" },
	};
	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		money_sql(c, "savepoint fault");
		money_sql(c, "%s", faults[i].sql);
		assert_true(differences(c, id, faults[i].says) > 0);
		money_sql(c, "rollback to savepoint fault");
	}
	assert_int_equal(differences(c, id, NULL), 0);
}

/* Whatever the tiling and the moments of closing, each billed millisecond is on one invoice. */
static void every_instant_is_invoiced_once(void **state)
{
	struct store_fixture *fx = *state;
	struct check_random random = check_random_start();
	struct err err = { 0 };
	money_yard(fx->conn);
	static const char *const states[] = { "billed", "billed", "lost", "unbilled", "idle" };
	static const char *const attempts[] = { "att_1", "att_2", "att_3" };
	int64_t now[2] = { at("2025-01-15T00:00:00Z"), at("2025-01-15T00:00:00Z") };
	for (int round = 0; round < 120; round++) {
		int device = (int)check_random_range(&random, 0, 1);
		/* Up to six days, so that month ends fall inside; often a few milliseconds. */
		int64_t ms = check_random_range(&random, 1, round % 3 ? 100 : 6 * 86400000);
		now[device] += ms * 1000;
		char until[CLOCK_RFC3339_MAX];
		clock_rfc3339(now[device], until);
		const char *word = states[check_random_range(&random, 0, 4)];
		money_tile(fx->conn, device ? "dev_1" : "dev_0", word,
			strcmp(word, "idle") == 0 ? NULL : attempts[check_random_range(&random, 0, 2)], until);
		if (check_random_range(&random, 0, 9) > 0)
			continue;
		/* Closes up to the slower device, month by month, as the program does. */
		int64_t from = INVOICE_UNSET, to = now[now[0] > now[1]], end = 0;
		bool period_found = true;
		while (period_found) {
			struct invoice_period period;
			char id[IDENT_MAX];
			bool usage_found = false;
			assert_ok(invoice_store_next_period(
				fx->conn, "tenant_a", from, to, &period, &end, &period_found, &err));
			if (!period_found)
				break;
			ident_new(clock_system(), "inv", id);
			assert_ok(
				invoice_store_draft(fx->conn, id, "tenant_a", &period, true, &usage_found, &err));
			if (usage_found) {
				assert_ok(invoice_store_finalize(fx->conn, id, &err));
				assert_int_equal(differences(fx->conn, id, NULL), 0);
			}
			from = period.to_us;
			to = end;
		}
	}
	char id[IDENT_MAX];
	(void)close_one(fx->conn, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", true, id);
	assert_int_equal(money_i64(fx->conn,
						 "select coalesce(sum(quantity_ms), 0)"
						 " from invoice_lines"),
		money_i64(fx->conn,
			"select coalesce(sum((extract(epoch from upper(period) - lower(period)) * 1000)"
			"::bigint), 0)::bigint from segments where state = 'billed' and tenant_id = "
			"'tenant_a'"));
}

static void the_api_shows_them(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	fill(fx->conn);
	char ids[3][IDENT_MAX];
	static const char *const bounds[] = { "2025-01-15T00:00:00Z", "2025-01-16T12:00:00Z",
		"2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z" };
	for (int i = 0; i < 3; i++)
		assert_true(close_one(fx->conn, bounds[i], bounds[i + 1], true, ids[i]));
	money_sql(fx->conn,
		"insert into invoices (id, tenant_id, status, period, currency, total_minor) values"
		" ('inv_zdraft', 'tenant_a', 'draft', '[2025-04-01Z,2025-04-02Z)', 'USD', 0)");
	struct store_json j;
	store_json_init(&j);
	struct page page = { .limit = 2 };
	assert_ok(invoice_store_list(fx->conn, "tenant_a", &page, &j.w, &err));
	const struct json_val *list = store_json_root(&j);
	assert_int_equal(json_array_len(json_get(list, "data")), 2);
	assert_true(json_bool_or(json_get(list, "has_more"), false));
	const struct json_val *newest = json_array_at(json_get(list, "data"), 0);
	assert_int_equal(json_i64_or(json_get(newest, "line_count"), 0), 1);
	store_json_finish(&j);

	store_json_init(&j);
	assert_ok(invoice_store_write(fx->conn, "tenant_a", ids[1], &j.w, &err));
	const struct json_val *i = store_json_root(&j);
	const struct json_val *check = json_get(i, "check"),
						  *line = json_array_at(json_get(i, "lines"), 0);
	assert_true(json_bool_or(json_get(check, "ok"), false));
	assert_string_equal(
		json_str_or(json_get(check, "lines_total"), ""), json_str_or(json_get(i, "total"), "-"));
	assert_int_equal(json_i64_or(json_get(line, "segment_count"), 0), 1);
	assert_int_equal(json_array_len(json_get(line, "segment_ids")), 1);
	store_json_finish(&j);

	store_json_init(&j);
	assert_int_equal(invoice_store_write(fx->conn, "tenant_b", ids[1], &j.w, &err), ERR_NOT_FOUND);
	assert_int_equal(
		invoice_store_write(fx->conn, "tenant_a", "inv_zdraft", &j.w, &err), ERR_NOT_FOUND);
	store_json_finish(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_month_end_makes_two_invoices),
		store_test(the_content_is_canonical),
		store_test(late_segments_come_with_the_next),
		store_test(periods_are_found),
		store_test(the_database_guards_what_is_final),
		store_test(only_six_moves_are_allowed),
		store_test(planted_faults_are_found),
		store_test(every_instant_is_invoiced_once),
		store_test(the_api_shows_them),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}
