/* SPDX-License-Identifier: Apache-2.0
 * The SQL of attempts. Rows are locked in the order job, attempt, devices, agent. */
#include "core/model/attempt_store.h"

#include "core/base/clock.h"
#include "core/crypto/random.h"
#include "core/model/attempt_part.h"
#include "core/model/elastic.h"
#include "core/model/residency.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define MS_INTERVAL(param) param " * interval '1 millisecond'"

/* ---------------------------------------------------------------- locking */

/* Nothing that progress may hold keeps an attempt from being ended. */
#define LOCK_COLUMNS                                                                          \
	"select a.id, a.epoch, a.agent_id, a.job_id, a.tenant_id, a.number, a.status, a.desired," \
	" a.report_seq, a.last_step, j.status, j.cancel_requested_at is not null,"                \
	" j.barren_failures, coalesce((j.spec->'checkpoint'->>'keep')::bigint, 3),"               \
	" case when j.progress->>'steps' ~ '^[0-9]{1,18}$'"                                       \
	"  then (j.progress->>'steps')::bigint else 0 end"                                        \
	" from jobs j join attempts a on a.job_id = j.id"

static void copy_id(char dst[static IDENT_MAX], const char *src)
{
	snprintf(dst, IDENT_MAX, "%s", src);
}

static enum attempt_status status_of(const char *word)
{
	for (int i = 0; i < ATTEMPT_STATUS_COUNT; i++)
		if (strcmp(attempt_status_word((enum attempt_status)i), word) == 0)
			return (enum attempt_status)i;
	assert(false && "a status that the table's check refuses");
	return ATTEMPT_ENDED;
}

static enum attempt_desired desired_of(const char *word)
{
	if (strcmp(word, "cancel") == 0)
		return ATTEMPT_CANCEL;
	return strcmp(word, "pause") == 0 ? ATTEMPT_PAUSE : ATTEMPT_RUN;
}

static int take_attempt(
	const struct db_result *r, const char *attempt_id, struct attempt *ret, struct err *err)
{
	if (db_rows(r) == 0)
		return err_set(err, ERR_LEASE_LOST, NULL, "Attempt %s is over or belongs to somebody else.",
			attempt_id);
	struct attempt a = {
		.epoch = db_i64(r, 0, 1),
		.number = db_i64(r, 0, 5),
		.status = status_of(db_str(r, 0, 6)),
		.desired = desired_of(db_str(r, 0, 7)),
		.report_seq = db_i64(r, 0, 8),
		.last_step = db_i64(r, 0, 9),
		.cancel_requested = db_bool(r, 0, 11),
		.barren_failures = db_i64(r, 0, 12),
		.keep = db_i64(r, 0, 13),
		.steps = db_i64(r, 0, 14),
	};
	copy_id(a.id, db_str(r, 0, 0));
	copy_id(a.agent_id, db_str(r, 0, 2));
	copy_id(a.job_id, db_str(r, 0, 3));
	copy_id(a.tenant_id, db_str(r, 0, 4));
	int rc = job_status_parse(db_str(r, 0, 10), &a.job_status);
	if (rc < 0)
		return err_set(err, ERR_INTERNAL, NULL, "Job %s has an unknown status.", a.job_id);
	*ret = a;
	return 0;
}

int attempt_store_lock(
	struct db_conn *conn, const struct attempt_fence *fence, struct attempt *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		LOCK_COLUMNS " where a.id = $1 and a.epoch = $2 and " ATTEMPT_PART_IS_OF(
			"a", "$3") " and a.status <> 'ended' for update of j, a",
		DB_TEXT(fence->attempt_id), DB_I64(fence->epoch), DB_TEXT(fence->agent_id));
	struct attempt a;
	if (rc == 0)
		rc = take_attempt(r, fence->attempt_id, &a, err);
	if (rc == 0 && strcmp(a.agent_id, fence->agent_id) != 0)
		rc = attempt_part_find(conn, a.id, fence->agent_id, &a.part, &a.report_seq, err);
	if (rc == 0)
		*ret = a;
	return rc;
}

int attempt_store_lock_expired(
	struct db_conn *conn, const char *attempt_id, struct attempt *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		LOCK_COLUMNS " where a.id = $1 and " ATTEMPT_PART_EXPIRED(
			"a") " and a.status <> 'ended' for update of j, a",
		DB_TEXT(attempt_id));
	return rc < 0 ? rc : take_attempt(r, attempt_id, ret, err);
}

int attempt_store_flush(struct db_conn *conn, const struct attempt *a, struct err *err)
{
	if (a->part > 0)
		return attempt_part_flush(conn, a->id, a->part, a->report_seq, err);
	return db_exec(conn, NULL, err,
		"update attempts set report_seq = $2, last_step = $3,"
		" progress_at = case when $4 then yard_now() else progress_at end"
		" where id = $1 and status <> 'ended'",
		DB_TEXT(a->id), DB_I64(a->report_seq), DB_I64(a->last_step), DB_BOOL(a->moved));
}

int attempt_store_expired(struct db_conn *conn, struct db_result **ret, struct err *err)
{
	return db_exec(conn, ret, err,
		"select a.id, a.agent_id, a.job_id from attempts a where a.status <> 'ended'"
		" and " ATTEMPT_PART_EXPIRED("a") " order by a.lease_until limit $1",
		DB_I64(ATTEMPT_STORE_EXPIRED_MAX));
}

/* ---------------------------------------------------------------- beats */

/* {a,b} for a text[] or bigint[] parameter; ids hold no character that would need quoting. */
static int beat_arrays(
	const struct attempt_beat *beats, int count, struct buf *ids, struct buf *epochs)
{
	buf_char(ids, '{');
	buf_char(epochs, '{');
	for (int i = 0; i < count; i++) {
		if (!ident_is(beats[i].attempt_id, "att"))
			continue;
		const char *comma = ids->len > 1 ? "," : "";
		buf_printf(ids, "%s%s", comma, beats[i].attempt_id);
		buf_printf(epochs, "%s%lld", comma, (long long)beats[i].epoch);
	}
	buf_char(ids, '}');
	buf_char(epochs, '}');
	return ids->failed < 0 ? ids->failed : epochs->failed;
}

/* clang-format off */
static const char beat_sql[] =
	"with b as (select id, epoch from unnest($1::text[], $2::bigint[]) as u (id, epoch)),"
	" lead as (update attempts a set lease_until = yard_now() + " MS_INTERVAL("$4")
	"  from b where a.id = b.id and a.epoch = b.epoch and a.agent_id = $3 and a.status <> 'ended'"
	"  returning a.id, a.epoch, a.report_seq),"
	" part as (update attempt_parts p set lease_until = yard_now() + " MS_INTERVAL("$4")
	"  from b, attempts a where p.attempt_id = b.id and p.agent_id = $3 and not p.released"
	"  and a.id = b.id and a.epoch = b.epoch and a.status <> 'ended'"
	"  returning a.id, a.epoch, p.report_seq)"
	" select id, epoch, report_seq from lead union all select id, epoch, report_seq from part";
/* clang-format on */

int attempt_store_beat(struct db_conn *conn, const char *agent_id, struct attempt_beat *beats,
	int count, struct err *err)
{
	assert(count <= ATTEMPT_STORE_BEATS_MAX);
	cleanup(buf_finish) struct buf ids, epochs;
	buf_init(&ids, (size_t)ATTEMPT_STORE_BEATS_MAX * (IDENT_MAX + 1) + 3);
	buf_init(&epochs, (size_t)ATTEMPT_STORE_BEATS_MAX * 22 + 3);
	int rc = beat_arrays(beats, count, &ids, &epochs);
	if (rc < 0)
		return err_set(err, rc, NULL, "Too many beats.");
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err, beat_sql, DB_TEXT(buf_cstr(&ids)), DB_TEXT(buf_cstr(&epochs)),
		DB_TEXT(agent_id), DB_I64(ATTEMPT_LEASE_MS));
	if (rc < 0)
		return rc;
	for (int i = 0; i < count; i++) {
		beats[i].alive = false;
		for (int row = 0; row < db_rows(r); row++)
			if (beats[i].epoch == db_i64(r, row, 1) &&
				strcmp(beats[i].attempt_id, db_str(r, row, 0)) == 0) {
				beats[i].alive = true;
				beats[i].acked_seq = db_i64(r, row, 2);
			}
	}
	return 0;
}

/* ---------------------------------------------------------------- placing */

struct candidate {
	char tenant_id[IDENT_MAX];
	char instance_type[64];
	char region[32];
	int64_t wanted; /* devices, as the job says */
	struct elastic elastic;
	int64_t device_count, data_ways; /* of this attempt: settle_mesh */
	int64_t number;
	struct residency_set set;
};

/* The job, locked, still queued and unheld; the agent, still ready. */
static int lock_candidate(struct db_conn *conn, const char *job_id, const char *agent_id,
	struct candidate *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select j.tenant_id, j.instance_type, j.device_count, j.attempt_count + 1,"
		" j.residency::text, (select region from agents where id = $2 and status = 'ready'),"
		" exists (select from attempts a where a.job_id = j.id and a.status <> 'ended'),"
		" " ELASTIC_COLUMNS("j") " from jobs j where j.id = $1 and j.status = 'queued' and "
								 "j.cancel_requested_at is null"
								 " for update of j skip locked",
		DB_TEXT(job_id), DB_TEXT(agent_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0 || db_is_null(r, 0, 5) || db_bool(r, 0, 6))
		return err_set(err, ERR_DB_CONFLICT, NULL, "Job %s is not free to be placed.", job_id);
	struct candidate c = { .wanted = db_i64(r, 0, 2), .number = db_i64(r, 0, 3) };
	c.elastic = elastic_of(c.wanted, db_i64(r, 0, 7), db_i64(r, 0, 8));
	copy_id(c.tenant_id, db_str(r, 0, 0));
	snprintf(c.instance_type, sizeof(c.instance_type), "%s", db_str(r, 0, 1));
	snprintf(c.region, sizeof(c.region), "%s", db_str(r, 0, 5));
	rc = residency_set_parse(db_str(r, 0, 4), &c.set, err);
	if (rc == 0)
		*ret = c;
	return rc;
}

/* The newest checkpoint; but when one more failure ends the job, and the attempt before could not
 * even begin to train from the newest, an older one if there is any: the newest may be broken. */
#define RESUME_CHECKPOINT                                                                    \
	"(select c.id from checkpoints c where c.job_id = j.id and c.trimmed_at is null"         \
	" order by exists (select from attempts b where b.job_id = j.id and b.number = $3 - 1"   \
	"  and b.resume_checkpoint_id = c.id and b.outcome = 'failed' and b.training_at is null" \
	"  and j.barren_failures + 1 >= $8), c.step desc, c.id desc limit 1)"

static int insert_attempt(struct db_conn *conn, const struct candidate *c, const char *job_id,
	const char *agent_id, const char *attempt_id, struct err *err)
{
	unsigned char bytes[(ATTEMPT_STORE_TOKEN_MAX - 1) / 2];
	char token[ATTEMPT_STORE_TOKEN_MAX];
	int rc = random_bytes(bytes, sizeof(bytes));
	if (rc < 0)
		return err_set(err, rc, NULL, "No random bytes.");
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(token + 2 * i, 3, "%02x", bytes[i]);
	return db_exec(conn, NULL, err,
		"insert into attempts (id, job_id, tenant_id, number, agent_id, token, lease_until,"
		" status, resume_checkpoint_id, stall_ms, device_count, data_ways)"
		" select $1, j.id, j.tenant_id, $3, $4, $5, yard_now() + " MS_INTERVAL(
			"$6") ", 'assigned', " RESUME_CHECKPOINT ","
				  " coalesce((j.plan->>'stall_ms')::bigint, $7), $9, $10"
				  " from jobs j where j.id = $2",
		DB_TEXT(attempt_id), DB_TEXT(job_id), DB_I64(c->number), DB_TEXT(agent_id), DB_TEXT(token),
		DB_I64(ATTEMPT_LEASE_MS), DB_I64(ATTEMPT_STALL_MS), DB_I64(ATTEMPT_BARREN_MAX),
		DB_I64(c->device_count), DB_I64(c->data_ways));
}

/* Ranks follow the devices' indexes. */
static int hold_devices(struct db_conn *conn, const struct candidate *c,
	const struct attempt_place *place, int64_t first_rank, const char *attempt_id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"with free as (select id, device_index from devices where agent_id = $1"
		"  and instance_type = $2 and open_state = 'idle' and deregistered_at is null"
		"  and not withdrawn and cordoned_at is null order by device_index limit $3 for update "
		"skip locked)"
		" insert into attempt_devices (attempt_id, rank, device_id)"
		" select $4, $5 + row_number() over (order by device_index) - 1, id from free"
		" returning device_id",
		DB_TEXT(place->agent_id), DB_TEXT(c->instance_type), DB_I64(place->devices),
		DB_TEXT(attempt_id), DB_I64(first_rank));
	if (rc == 0 && db_rows(r) < place->devices)
		return err_set(err, ERR_DB_CONFLICT, NULL, "Only %d of %lld devices are free.", db_rows(r),
			(long long)place->devices);
	return rc;
}

/* Machine by machine, and the further ones' leases. */
static int hold_places(struct db_conn *conn, const struct candidate *c,
	const struct attempt_place *places, int count, const char *attempt_id, struct err *err)
{
	int64_t first_rank = 0;
	for (int i = 0; i < count; i++) {
		int rc = i == 0
			? 0
			: attempt_part_insert(conn, attempt_id, i, places[i].agent_id, ATTEMPT_LEASE_MS, err);
		if (rc == 0)
			rc = hold_devices(conn, c, &places[i], first_rank, attempt_id, err);
		if (rc < 0)
			return rc;
		first_rank += places[i].devices;
	}
	return segment_take(conn, attempt_id, err);
}

static int note_placement(struct db_conn *conn, const struct candidate *c, const char *job_id,
	const char *attempt_id, int machines, struct err *err)
{
	cleanup(buf_finish) struct buf data;
	buf_init(&data, 1024);
	struct json_writer w;
	json_writer_init(&w, &data);
	json_begin_object(&w);
	json_field_i64(&w, "attempt", c->number);
	json_field_str(&w, "instance_type", c->instance_type);
	json_field_i64(&w, "count", c->device_count);
	json_field_i64(&w, "data", c->data_ways);
	json_field_i64(&w, "machines", machines);
	json_field_str(&w, "region", c->region);
	json_end_object(&w);
	int rc = db_exec(conn, NULL, err,
		"update jobs set attempt_count = $2, blocked_code = null, blocked_message = null"
		" where id = $1",
		DB_TEXT(job_id), DB_I64(c->number));
	int64_t seq;
	if (rc == 0)
		rc = job_event(conn, job_id, "job.assigned", buf_cstr(&data), &seq, err);
	return rc < 0 ? rc : attempt_part_notify(conn, attempt_id, err);
}

/* Each machine's region; a row each. */
static int decide_residency(struct db_conn *conn, const struct candidate *c, const char *job_id,
	const struct attempt_place *places, int count, bool *ret_ok, struct err *err)
{
	bool all = true;
	for (int i = 0; i < count; i++) {
		bool ok = false;
		char region[sizeof(c->region)];
		cleanup(db_result_freep) struct db_result *r = NULL;
		int rc = db_exec(conn, &r, err,
			"select region from agents where id = $1 and status = 'ready' and instance_type = $2",
			DB_TEXT(places[i].agent_id), DB_TEXT(c->instance_type));
		if (rc < 0)
			return rc;
		if (db_rows(r) == 0)
			return err_set(err, ERR_DB_CONFLICT, NULL, "A machine of the gang is not ready.");
		snprintf(region, sizeof(region), "%s", db_str(r, 0, 0));
		struct residency_question question = {
			.ask = RESIDENCY_DISPATCH,
			.tenant_id = c->tenant_id,
			.subject = job_id,
			.allowed_set = &c->set,
			.place = region,
		};
		rc = residency_decide(conn, &question, &ok, err);
		if (rc < 0)
			return rc;
		all = all && ok;
	}
	*ret_ok = all;
	return 0;
}

/* The places' devices are the job's, or fewer that an elastic job can do with. */
static int settle_mesh(
	struct candidate *c, const struct attempt_place *places, int count, struct err *err)
{
	c->device_count = 0;
	for (int i = 0; i < count; i++)
		c->device_count += places[i].devices;
	if (elastic_allows(&c->elastic, c->device_count, &c->data_ways))
		return 0;
	return err_set(err, ERR_DB_CONFLICT, NULL, "The job has %lld devices, not %lld.",
		(long long)c->wanted, (long long)c->device_count);
}

int attempt_store_place_parts(struct db_conn *conn, const char *job_id,
	const struct attempt_place *places, int count, struct attempt_placed *ret, struct err *err)
{
	struct candidate c = { 0 };
	struct attempt_placed placed = { 0 };
	bool residency_ok = false;
	int rc = lock_candidate(conn, job_id, places[0].agent_id, &c, err);
	if (rc < 0)
		return rc;
	const struct attempt_place whole = { .agent_id = places[0].agent_id, .devices = c.wanted };
	if (count == 1 && places[0].devices == 0)
		places = &whole;
	rc = settle_mesh(&c, places, count, err);
	if (rc < 0)
		return rc;
	ident_new(clock_system(), "att", placed.attempt_id);
	placed.number = c.number;
	rc = decide_residency(conn, &c, job_id, places, count, &residency_ok, err);
	if (rc < 0)
		return rc;
	if (!residency_ok)
		return ERR_RESIDENCY;
	rc = insert_attempt(conn, &c, job_id, places[0].agent_id, placed.attempt_id, err);
	if (rc == 0)
		rc = hold_places(conn, &c, places, count, placed.attempt_id, err);
	if (rc == 0)
		rc = note_placement(conn, &c, job_id, placed.attempt_id, count, err);
	if (rc == 0)
		*ret = placed;
	return rc;
}

int attempt_store_place(struct db_conn *conn, const char *job_id, const char *agent_id,
	struct attempt_placed *ret, struct err *err)
{
	const struct attempt_place place = { .agent_id = agent_id };
	return attempt_store_place_parts(conn, job_id, &place, 1, ret, err);
}

/* ---------------------------------------------------------------- what agents ask */

/* The weights, config and tokenizer of a base, not its optimizer's state, averages or place in its
 * own data. Where ranks saved a part of everything each (ZeRO), their files, and the manifest that
 * says how many there are. */
#define INIT_FILES(table, column)                                                              \
	"(select coalesce(jsonb_agg(jsonb_build_object('name', f.name, 'sha256', f.sha256,"        \
	"  'bytes', f.bytes) order by f.name), '[]') from " table " f where f." column             \
	"  and f.name not like 'optimizer%' and f.name not like 'ema%' and f.name <> 'state.json'" \
	"  and (f.name <> 'manifest.json' or exists (select from " table " s where s." column      \
	"   and s.name like 'shard-%.safetensors')))"

/* A resumed attempt has all its weights in its checkpoint, but under LoRA, which keeps the base's
 * aside. */
#define INIT                                                                                \
	"case when a.resume_checkpoint_id is not null"                                          \
	"  and coalesce(jsonb_typeof(j.spec->'lora'), 'null') = 'null' then null"               \
	" when j.base_checkpoint_id is not null then jsonb_build_object('id',"                  \
	"  j.base_checkpoint_id, 'files', " INIT_FILES("checkpoint_files",                      \
		"checkpoint_id = j.base_checkpoint_id") ")"                                         \
												" when j.base_model_id is not null then "   \
												"jsonb_build_object('id', j.base_model_id," \
												"  'files', " INIT_FILES("model_files",     \
													"model_id = j.base_model_id") ") end"

/* Of one device in the job's precision, from the catalogue; 0 where it does not say, and for CPUs,
 * whose figure there is nominal. */
#define PEAK_FLOPS                                                                 \
	"coalesce((select (t.tflops->>coalesce(j.spec->>'precision', 'fp32'))::float8" \
	" * 1e12 from instance_types t where t.name = j.instance_type and t.kind <> 'cpu'), 0)"

/* The job's, on the mesh of the attempt. */
#define ATTEMPT_SPEC                                                                       \
	"case when coalesce(a.device_count, j.device_count) = j.device_count then j.spec else" \
	" jsonb_set(jsonb_set(j.spec #- '{parallelism,min_data}', '{parallelism,data}',"       \
	"  to_jsonb(a.data_ways)), '{resources,count}', to_jsonb(a.device_count)) end"

/* max_runtime_s counts the training of earlier attempts too. */
static const char poll_sql[] =
	"select g.version, coalesce((select jsonb_agg(jsonb_build_object("
	" 'attempt_id', a.id, 'epoch', a.epoch, 'job_id', a.job_id, 'number', a.number,"
	" 'status', a.status, 'desired', a.desired, 'token', a.token,"
	" 'devices', (select jsonb_agg(d.device_index order by ad.rank) from attempt_devices ad"
	"   join devices d on d.id = ad.device_id where ad.attempt_id = a.id and d.agent_id = g.id),"
	" 'rank', (select min(ad.rank) from attempt_devices ad"
	"   join devices d on d.id = ad.device_id where ad.attempt_id = a.id and d.agent_id = g.id),"
	" 'ranks', coalesce(a.device_count, j.device_count), 'part', coalesce((select p.part from "
	"attempt_parts p"
	"   where p.attempt_id = a.id and p.agent_id = g.id), 0),"
	" 'parts', 1 + (select count(*) from attempt_parts p where p.attempt_id = a.id),"
	" 'peak_flops', " PEAK_FLOPS
	", 'stall_ms', a.stall_ms, 'residency', to_jsonb(j.residency), 'spec', " ATTEMPT_SPEC ","
	" 'max_runtime_s', case when j.max_runtime_s = 0 then 0 else greatest(1, j.max_runtime_s -"
	"   coalesce((select floor(extract(epoch from sum(b.ended_at - b.training_at)))"
	"     from attempts b where b.job_id = j.id and b.status = 'ended'), 0))::bigint end,"
	" 'files', (select coalesce(jsonb_agg(jsonb_build_object('role', jf.role,"
	"   'position', jf.position, 'file_id', f.id, 'filename', f.filename, 'sha256', f.sha256,"
	"   'bytes', f.bytes) order by jf.role, jf.position), '[]')"
	"   from job_files jf join files f on f.id = jf.file_id where jf.job_id = j.id),"
	" 'resume', (select jsonb_build_object('checkpoint_id', c.id, 'step', c.step, 'files',"
	"   (select coalesce(jsonb_agg(jsonb_build_object('name', cf.name, 'sha256', cf.sha256,"
	"     'bytes', cf.bytes) order by cf.name), '[]') from checkpoint_files cf"
	"     where cf.checkpoint_id = c.id))"
	"   from checkpoints c where c.id = a.resume_checkpoint_id), 'init', " INIT
	" ) order by a.id) from attempts a join jobs j on j.id = a.job_id"
	"  where a.status <> 'ended' and a.id in (select id from attempts where agent_id = g.id"
	"   and status <> 'ended' union all select attempt_id from attempt_parts"
	"   where agent_id = g.id and not released)), '[]')"
	" from agents g where g.id = $1";

int attempt_store_write_poll(
	struct db_conn *conn, const char *agent_id, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, poll_sql, DB_TEXT(agent_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no agent %s.", agent_id);
	json_begin_object(w);
	json_field_i64(w, "version", db_i64(r, 0, 0));
	json_field_raw(w, "attempts", db_str(r, 0, 1));
	json_end_object(w);
	return 0;
}

int attempt_store_capability(struct db_conn *conn, const struct attempt_fence *fence,
	const char *token, const char *sha256, struct attempt_capability *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select a.token, a.tenant_id, a.job_id, g.region, j.residency::text,"
		" exists (select from job_files jf join files f on f.id = jf.file_id"
		"   where jf.job_id = a.job_id and f.sha256 = $4)"
		" or exists (select from checkpoints c join checkpoint_files cf on cf.checkpoint_id = c.id"
		"   where c.job_id = a.job_id and cf.sha256 = $4)"
		" or exists (select from checkpoint_files cf"
		"   where cf.checkpoint_id = j.base_checkpoint_id and cf.sha256 = $4)"
		" or exists (select from model_files mf"
		"   where mf.model_id = j.base_model_id and mf.sha256 = $4)"
		" from attempts a join jobs j on j.id = a.job_id join agents g on g.id = $3"
		" where a.id = $1 and a.epoch = $2 and a.status <> 'ended'"
		" and " ATTEMPT_PART_IS_OF("a", "$3"),
		DB_TEXT(fence->attempt_id), DB_I64(fence->epoch), DB_TEXT(fence->agent_id),
		DB_TEXT(sha256));
	if (rc < 0)
		return rc;
	const char *stored = db_rows(r) == 0 ? "" : db_str(r, 0, 0);
	if (db_rows(r) == 0 || strlen(stored) != strlen(token) ||
		!random_equal(stored, token, strlen(stored)))
		return err_set(err, ERR_LEASE_LOST, NULL, "Attempt %s is over or belongs to somebody else.",
			fence->attempt_id);
	struct attempt_capability c = { .serves = db_bool(r, 0, 5) };
	copy_id(c.tenant_id, db_str(r, 0, 1));
	copy_id(c.job_id, db_str(r, 0, 2));
	snprintf(c.region, sizeof(c.region), "%s", db_str(r, 0, 3));
	snprintf(c.residency, sizeof(c.residency), "%s", db_str(r, 0, 4));
	*ret = c;
	return 0;
}
