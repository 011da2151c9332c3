/* SPDX-License-Identifier: Apache-2.0
 * One row of columns for each job, JSON where the database holds JSON. One connection, one thread.
 */
#include "core/model/job_render.h"

#include "core/json/writer.h"
#include "core/model/sql_text.h"
#include "core/model/usage_store.h"

/* The columns that are written as they stand, in the object's order: X(key, how, expression). */
#define JOB_FIELDS(X)                                                                 \
	X("name", STR, "j.name")                                                          \
	X("status", STR, "j.status")                                                      \
	X("status_reason", RAW,                                                           \
		"case when j.reason_code is not null then"                                    \
		" json_build_object('code', j.reason_code, 'message', j.reason_message) end") \
	X("created_at", STR, SQL_TIME("j.created_at"))                                    \
	X("queued_at", STR, SQL_TIME("j.queued_at"))                                      \
	X("started_at", STR, SQL_TIME("j.started_at"))                                    \
	X("finished_at", STR, SQL_TIME("j.finished_at"))                                  \
	X("cancel_requested_at", STR, SQL_TIME("j.cancel_requested_at"))                  \
	X("task", RAW, "j.spec->'task'")                                                  \
	X("model", RAW, "j.spec->'model'")                                                \
	X("training_file", RAW, "j.spec->'training_file'")                                \
	X("validation_file", RAW, "j.spec->'validation_file'")                            \
	X("data", RAW, "j.spec->'data'")                                                  \
	X("hyperparameters", RAW, "j.spec->'hyperparameters'")                            \
	X("lora", RAW, "j.spec->'lora'")                                                  \
	X("precision", RAW, "j.spec->'precision'")                                        \
	X("activation_checkpointing", RAW, "j.spec->'activation_checkpointing'")          \
	X("parallelism", RAW, "j.spec->'parallelism'")                                    \
	X("parallelism_chosen", RAW, "j.parallelism_chosen")                              \
	X("resources", RAW, "j.spec->'resources'")                                        \
	X("priority", RAW, "j.spec->'priority'")                                          \
	X("limits", RAW, "j.spec->'limits'")                                              \
	X("checkpoint", RAW, "j.spec->'checkpoint'")                                      \
	X("evaluation", RAW, "j.spec->'evaluation'")                                      \
	X("seed", RAW, "j.spec->'seed'")                                                  \
	X("metadata", RAW, "j.metadata")                                                  \
	X("residency", RAW,                                                               \
		"json_build_object('set', j.residency, 'rule_version',"                       \
		" (select d.rule_version from residency_decisions d where d.subject = j.id"   \
		" order by d.id limit 1))")                                                   \
	X("plan", RAW, "j.plan")                                                          \
	X("queue", RAW, QUEUE_SQL)                                                        \
	X("progress", RAW, PROGRESS_SQL)                                                  \
	X("attempts", RAW, ATTEMPTS_SQL)                                                  \
	X("result", RAW, RESULT_SQL)                                                      \
	X("quote", RAW, "null")                                                           \
	X("error", RAW, "j.error")

/* Who stands before this job where it could run. Counting stops at 10,000. */
#define QUEUE_SQL                                                                   \
	"case when j.status = 'queued' then json_build_object('position',"              \
	" (select 1 + count(*) from (select 1 from jobs q where q.status = 'queued'"    \
	" and q.instance_type = j.instance_type and (q.priority > j.priority"           \
	" or (q.priority = j.priority and (q.queued_at, q.id) < (j.queued_at, j.id)))"  \
	" limit 10000) ahead),"                                                         \
	" 'blocked_by', case when j.blocked_code is not null then"                      \
	" json_build_object('code', j.blocked_code, 'message', j.blocked_message) end," \
	" 'earliest_start', null, 'latest_start', null) end"

#define P(key) "'" key "', j.progress->'" key "', "
/* clang-format off */
#define PROGRESS_SQL                                                                        \
	"json_build_object("                                                                    \
	P("step") P("steps") P("epoch") P("tokens") P("samples") P("loss") P("validation_loss") \
	P("perplexity") P("bits_per_byte") P("order0_bits_per_byte") P("accuracy") P("auc")     \
	P("learning_rate") P("grad_norm") P("loss_scale") P("overflows")                        \
	P("tokens_per_second") P("samples_per_second") P("mfu") P("data_wait_share") P("eta_s") \
	"'memory_bytes', j.progress->'memory_bytes')"
/* clang-format on */

/* In the order of their ranks. */
#define MACHINES_SQL                                                             \
	"(select json_agg(json_build_object('instance', m.name, 'region', m.region," \
	" 'first_rank', m.first_rank, 'count', m.count) order by m.first_rank) from" \
	" (select mg.name, mg.region, min(ad.rank) as first_rank, count(*) as count" \
	" from attempt_devices ad join devices d on d.id = ad.device_id"             \
	" join agents mg on mg.id = d.agent_id where ad.attempt_id = a.id group by mg.id) m)"

/* clang-format off */
#define ATTEMPTS_SQL                                                                            \
	"case when j.attempt_count = 0 then '[]'::json else"                                        \
	" (select coalesce(json_agg(json_build_object('number', a.number, 'status', a.status,"      \
	" 'outcome', a.outcome, 'reason', a.reason, 'message', a.reason_message,"                   \
	" 'instance', g.name, 'region', g.region, 'machines', " MACHINES_SQL ","                    \
	" 'count', coalesce(a.device_count, j.device_count), 'data', coalesce(a.data_ways,"         \
	" (j.spec->'parallelism'->>'data')::int, j.device_count),"                                  \
	" 'rank', a.rank, 'exit_code', a.exit_code,"                                                \
	" 'signal', a.signal, 'last_step', a.last_step,"                                            \
	" 'started_at', " SQL_TIME("a.assigned_at") ","                                             \
	" 'training_at', " SQL_TIME("a.training_at") ","                                            \
	" 'ended_at', " SQL_TIME("a.ended_at") ") order by a.number), '[]')"                        \
	" from (select * from attempts t where t.job_id = j.id order by t.number desc limit 100) a" \
	" join agents g on g.id = a.agent_id) end"
/* clang-format on */

#define RESULT_SQL                                                                              \
	"case when j.status = 'succeeded' then (select json_build_object('model', m.id, 'files',"   \
	" (select coalesce(json_agg(json_build_object('name', f.name, 'bytes', f.bytes,"            \
	" 'sha256', f.sha256) order by f.name), '[]') from model_files f where f.model_id = m.id)," \
	" 'metrics', m.metrics) from models m where m.job_id = j.id) end"

enum how { STR, RAW };

#define X(key, how, expression) { key, how },
static const struct {
	const char *key;
	enum how how;
} fields[] = { JOB_FIELDS(X) };
#undef X

#define X(key, how, expression) ", " expression
#define JOB_SELECT "select j.id, j.attempt_count" JOB_FIELDS(X) " from jobs j "
enum { FIRST_FIELD = 2 };

static int write_usage(
	struct db_conn *conn, const char *id, bool has_attempts, struct json_writer *w, struct err *err)
{
	struct usage_total total = { .currency = "USD", .amount = "0.00" };
	if (has_attempts) {
		int rc = usage_store_job_total(conn, id, &total, err);
		if (rc < 0)
			return rc;
	}
	json_key(w, "usage");
	json_begin_object(w);
	json_field_f64(w, "billed_seconds", (double)total.billed_ms / 1000.0);
	json_field_str(w, "amount", total.amount);
	json_field_str(w, "currency", total.currency);
	json_end_object(w);
	return 0;
}

static int write_row(struct db_conn *conn, const struct db_result *r, int row,
	struct json_writer *w, struct err *err)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "job");
	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		const char *value = db_str(r, row, FIRST_FIELD + (int)i);
		if (fields[i].how == RAW)
			json_field_raw(w, fields[i].key, value);
		else
			json_field_str(w, fields[i].key, value);
	}
	int rc = write_usage(conn, db_str(r, row, 0), db_i64(r, row, 1) > 0, w, err);
	json_end_object(w);
	return rc;
}

int job_render_one(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, JOB_SELECT "where j.id = $1 and j.tenant_id = $2", DB_TEXT(id),
		DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such job");
	return write_row(conn, r, 0, w, err);
}

#define JOB_WHERE                                        \
	"where j.tenant_id = $1 and j.id < $2 and j.id > $3" \
	" and ($4::text is null or j.status = $4)"           \
	" and ($5::text is null or j.instance_type = $5)"    \
	" and ($6::jsonb is null or j.metadata @> $6::jsonb) "

int job_render_list(struct db_conn *conn, const char *tenant_id, const struct job_filter *filter,
	const struct page *page, struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "job", &b);
	const char *sql = b.ascending ? JOB_SELECT JOB_WHERE "order by j.id asc limit $7"
								  : JOB_SELECT JOB_WHERE "order by j.id desc limit $7";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(tenant_id), DB_TEXT(b.below), DB_TEXT(b.above),
		DB_TEXT(filter->status), DB_TEXT(filter->instance_type), DB_TEXT(filter->metadata_json),
		DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++) {
		rc = write_row(conn, r, page_row(page, r, i), w, err);
		if (rc < 0)
			return rc;
	}
	page_end(w, page, r, 0);
	return 0;
}
