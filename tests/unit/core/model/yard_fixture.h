/* SPDX-License-Identifier: Apache-2.0
 * What tests of machines and attempts share: agents with devices, queued jobs, attempts placed and
 * reported about as the handlers do it. One thread (the connection's). */
#pragma once

#include "tests/unit/core/model/store_fixture.h"

#include "core/model/agent_store.h"
#include "core/model/attempt_message.h"
#include "core/model/attempt_store.h"
#include "core/model/checkpoint_store.h"
#include "core/model/content.h"
#include "core/model/device_store.h"
#include "core/model/job.h"

#include "tests/support/check.h"

#define SHA_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

struct yard_agent {
	char key[IDENT_MAX], id[IDENT_MAX];
	struct device_listed devices[DEVICE_STORE_MAX];
	int count;
};

static inline void yard_key(struct db_conn *conn, const char *region, char ret[static IDENT_MAX])
{
	struct err err = { 0 };
	ident_new(clock_system(), "key", ret);
	assert_ok(db_exec(conn, NULL, &err,
		"insert into api_keys (id, role, name, secret_hash, redacted, agent_region)"
		" values ($1, 'agent', 'agent', sha256($1::text::bytea), '', $2)",
		DB_TEXT(ret), DB_TEXT(region)));
}

static inline int yard_register(
	struct db_conn *conn, struct yard_agent *g, const char *region, struct err *err)
{
	struct agent_machine m = { .key_id = g->key,
		.key_region = region,
		.region = region,
		.name = "agent-1",
		.instance_type = "cpu-dev",
		.boot_id = "boot",
		.engine_build = "0.1.0",
		.rates_json = "{}" };
	int rc = agent_store_register(conn, &m, g->id, err);
	return rc < 0 ? rc : device_store_sync(conn, g->id, g->devices, g->count, err);
}

static inline void yard_agent(
	struct db_conn *conn, const char *region, int devices, struct yard_agent *ret)
{
	struct err err = { 0 };
	*ret = (struct yard_agent){ .count = devices };
	for (int i = 0; i < devices; i++)
		ret->devices[i] =
			(struct device_listed){ .index = i, .name = "cpu", .memory_bytes = 1 << 30 };
	yard_key(conn, region, ret->key);
	assert_ok(yard_register(conn, ret, region, &err));
}

static inline void yard_job(struct db_conn *conn, const char *tenant, const char *file,
	int device_count, char ret_id[static IDENT_MAX])
{
	struct err err = { 0 };
	store_job(conn, tenant, file, NULL, ret_id);
	assert_ok(db_exec(conn, NULL, &err,
		"update jobs set device_count = $2, spec = spec || '{\"checkpoint\":{\"keep\":2}}'"
		" where id = $1",
		DB_TEXT(ret_id), DB_I64(device_count)));
	assert_ok(job_move(conn, ret_id, JOB_QUEUED, NULL, NULL, &err));
}

/* A placed attempt and where its reports stand. */
struct yard_attempt {
	char id[IDENT_MAX], job[IDENT_MAX], agent[IDENT_MAX];
	int64_t epoch, seq;
};

static inline void yard_place(
	struct db_conn *conn, const char *job, const char *agent, struct yard_attempt *ret)
{
	struct err err = { 0 };
	struct attempt_placed placed;
	assert_ok(attempt_store_place(conn, job, agent, &placed, &err));
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(
		conn, &r, &err, "select epoch from attempts where id = $1", DB_TEXT(placed.attempt_id)));
	*ret = (struct yard_attempt){ .epoch = db_i64(r, 0, 0) };
	snprintf(ret->id, IDENT_MAX, "%s", placed.attempt_id);
	snprintf(ret->job, IDENT_MAX, "%s", job);
	snprintf(ret->agent, IDENT_MAX, "%s", agent);
}

/* One message, as a report applies it: skipped when it was applied before. */
static inline int yard_send(struct db_conn *conn, const struct yard_attempt *y, int64_t seq,
	const char *json, struct err *err)
{
	struct attempt a;
	struct attempt_fence fence = { .attempt_id = y->id, .epoch = y->epoch, .agent_id = y->agent };
	int rc = attempt_store_lock(conn, &fence, &a, err);
	if (rc < 0 || seq <= a.report_seq)
		return rc;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	rc = json_doc_parse(json, strlen(json), JSON_BYTES_MAX, &doc, err);
	if (rc == 0)
		rc = attempt_message_apply(conn, &a, json_doc_root(doc), seq, "$", err);
	return rc < 0 || a.status == ATTEMPT_ENDED ? rc : attempt_store_flush(conn, &a, err);
}

static inline void yard_say(struct db_conn *conn, struct yard_attempt *y, const char *json)
{
	struct err err = { 0 };
	assert_ok(yard_send(conn, y, ++y->seq, json, &err));
}

static inline void yard_train(struct db_conn *conn, struct yard_attempt *y)
{
	yard_say(conn, y, "{\"t\":\"starting\"}");
	yard_say(conn, y, "{\"t\":\"training\",\"steps\":1000,\"plan\":{},\"memory_bytes\":4096}");
}

/* Content that is stored, by a number. */
static inline void yard_blob(
	struct db_conn *conn, const char *tenant, int64_t number, char ret_sha[static 65])
{
	struct err err = { 0 };
	bool is_new;
	snprintf(ret_sha, 65, "%064llx", (unsigned long long)number);
	assert_ok(content_touch(conn, tenant, ret_sha, 7, &is_new, &err));
}

static inline void yard_checkpoint(
	struct db_conn *conn, const char *tenant, struct yard_attempt *y, int64_t step)
{
	char sha[65], json[400];
	yard_blob(conn, tenant, step, sha);
	snprintf(json, sizeof(json),
		"{\"t\":\"checkpoint\",\"step\":%lld,\"metrics\":{\"loss\":1.5},"
		"\"files\":[{\"name\":\"w.safetensors\",\"sha256\":\"%s\",\"bytes\":7}]}",
		(long long)step, sha);
	yard_say(conn, y, json);
}

static inline void yard_succeed(struct db_conn *conn, const char *tenant, struct yard_attempt *y)
{
	char sha[65], json[400];
	yard_blob(conn, tenant, 999999, sha);
	snprintf(json, sizeof(json),
		"{\"t\":\"end\",\"outcome\":\"succeeded\",\"step\":1000,\"metrics\":{\"accuracy\":0.99},"
		"\"files\":[{\"name\":\"model.safetensors\",\"sha256\":\"%s\",\"bytes\":7}]}",
		sha);
	yard_say(conn, y, json);
}

/* The lease runs out, as the scheduler finds it. */
static inline void yard_expire(struct db_conn *conn, const struct yard_attempt *y)
{
	struct err err = { 0 };
	struct attempt a;
	struct attempt_end end = { .outcome = ATTEMPT_LOST,
		.reason = "agent_lost",
		.message = "gone",
		.rank = ATTEMPT_NO_NUMBER,
		.exit_code = ATTEMPT_NO_NUMBER,
		.signal = ATTEMPT_NO_NUMBER };
	assert_ok(db_exec(conn, NULL, &err,
		"update attempts set lease_until = yard_now() - interval '1 ms' where id = $1",
		DB_TEXT(y->id)));
	assert_ok(attempt_store_lock_expired(conn, y->id, &a, &err));
	assert_ok(attempt_end(conn, &a, &end, &err));
}

/* One text of one row. */
static inline void yard_text(
	struct db_conn *conn, const char *sql, const char *id, char ret[static 400])
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(conn, &r, &err, sql, DB_TEXT(id)));
	snprintf(ret, 400, "%s", db_rows(r) == 0 || db_is_null(r, 0, 0) ? "" : db_str(r, 0, 0));
}
#define assert_text(conn, id, expected, sql)    \
	do {                                        \
		char _text[400];                        \
		yard_text((conn), (sql), (id), _text);  \
		assert_string_equal(_text, (expected)); \
	} while (0)

/* Every device's time is tiled: from its registration to its open end or its deregistration, no
 * gap, no overlap, and the open interval belongs to who holds the device. */
static inline void yard_check_tiling(struct db_conn *conn)
{
	struct err err = { 0 };
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(conn, &r, &err,
		"with s as (select device_id, lower(period) as lo, upper(period) as hi,"
		"   lag(upper(period)) over (partition by device_id order by period) as before"
		"  from segments),"
		" t as (select device_id, min(lo) as first, max(hi) as last,"
		"   bool_and(before is null or before = lo) as joined from s group by device_id)"
		" select d.id, coalesce(t.joined, true) as joined,"
		"  coalesce(t.first, d.open_since) = d.registered_at as starts,"
		"  coalesce(t.last, d.registered_at) = d.open_since as ends,"
		"  d.deregistered_at is null or d.deregistered_at = d.open_since as closed,"
		"  (d.open_state = 'idle') = (d.open_attempt_id is null)"
		"   and (d.open_attempt_id is null) = not exists (select from attempt_devices ad"
		"    where ad.device_id = d.id and not ad.released) as held"
		" from devices d left join t on t.device_id = d.id"));
	for (int i = 0; i < db_rows(r); i++)
		for (int c = 1; c <= 5; c++)
			if (!db_bool(r, i, c))
				fail_msg("device %s: check %d of its tiling fails", db_str(r, i, 0), c);
}
