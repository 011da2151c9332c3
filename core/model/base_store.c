/* SPDX-License-Identifier: Apache-2.0
 * SQL of bases. One connection, one thread. */
#include "core/model/base_store.h"

#include <stdio.h>
#include <string.h>

static const char PATH[] = "$.model.base";

/* Columns: id, its job's spec, residency, whether the content is gone, whether there are weights. A
 * folder of adapters has no file of this name; where ranks saved a part each (ZeRO), under LoRA
 * the adapters are all that is in the parts. */
#define WEIGHTS                                                               \
	"(f.name like 'model%.safetensors' or (f.name like 'shard-%.safetensors'" \
	"  and coalesce(jsonb_typeof(j.spec->'lora'), 'null') = 'null'))"

static const char checkpoint_sql[] =
	"select c.id, j.spec, c.residency, c.trimmed_at is not null,"
	" exists (select from checkpoint_files f where f.checkpoint_id = c.id"
	" and " WEIGHTS ")"
	" from checkpoints c join jobs j on j.id = c.job_id where c.id = $1 and c.tenant_id = $2";

#define MODEL_COLUMNS                                            \
	"select m.id, j.spec, m.residency, false,"                   \
	" exists (select from model_files f where f.model_id = m.id" \
	" and " WEIGHTS ")"                                          \
	" from models m join jobs j on j.id = m.job_id where m.tenant_id = $2 and "

static const char model_sql[] = MODEL_COLUMNS "m.id = $1";
static const char job_sql[] = MODEL_COLUMNS "m.job_id = $1";

static int not_found(const char *id, struct err *err)
{
	return err_set(err, ERR_NOT_FOUND, PATH, "%s: there is no %s", PATH, id);
}

/* A job without a model: whose, and why. */
static int explain_job(struct db_conn *conn, const char *tenant_id, const char *id, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select status, status in ('succeeded', 'failed', 'cancelled') from jobs"
		" where id = $1 and tenant_id = $2",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return not_found(id, err);
	if (db_bool(r, 0, 1))
		return err_set(err, ERR_CONFLICT, PATH,
			"%s: %s has ended as %s and left no model; one of its checkpoints may do", PATH, id,
			db_str(r, 0, 0));
	return err_set(err, ERR_CONFLICT, PATH,
		"%s: %s is %s and has no model yet: wait for its end, or name one of its checkpoints", PATH,
		id, db_str(r, 0, 0));
}

static int read_spec(const char *text, struct job_spec *ret, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err detail = { 0 };
	int rc = json_doc_parse(text, strlen(text), SPEC_JSON_BYTES_MAX, &doc, &detail);
	if (rc == 0)
		rc = spec_json_read(json_doc_root(doc), ret, NULL, &detail);
	return rc == 0 ? 0
				   : err_set(err, ERR_INTERNAL, PATH, "%s: its job's spec cannot be read: %.400s",
						 PATH, detail.message);
}

static int check_weights(const struct job_spec *spec, const char *id, struct err *err)
{
	if (spec->lora.rank > 0 && spec->base[0])
		return err_set(err, ERR_INVALID_VALUE, PATH,
			"%s: %s was adapted with LoRA and holds the adapters only; name what they were trained "
			"on, %s",
			PATH, id, spec->base);
	return err_set(err, ERR_INVALID_VALUE, PATH, "%s: %s holds no weights%s", PATH, id,
		spec->lora.rank > 0 ? ", only LoRA's adapters" : "");
}

static int take(const struct db_result *r, const char *id, struct base *ret, struct err *err)
{
	struct job_spec spec;
	struct base b;
	memset(&b, 0, sizeof(b)); /* the config is compared byte by byte */
	bool checkpoint = ident_is(db_str(r, 0, 0), "ckpt");
	snprintf(checkpoint ? b.checkpoint_id : b.model_id, IDENT_MAX, "%s", db_str(r, 0, 0));
	int rc = read_spec(db_str(r, 0, 1), &spec, err);
	if (rc == 0)
		rc = residency_set_parse(db_str(r, 0, 2), &b.residency, err);
	if (rc < 0)
		return rc;
	if (db_bool(r, 0, 3))
		return err_set(err, ERR_CONFLICT, PATH,
			"%s: the content of %s was dropped when newer checkpoints came (checkpoint.keep)", PATH,
			id);
	if (!db_bool(r, 0, 4))
		return check_weights(&spec, id, err);
	memcpy(&b.spec.model, &spec.model, sizeof(b.spec.model));
	b.spec.tokenizer = spec.data.tokenizer;
	memcpy(b.spec.tokenizer_file, spec.data.tokenizer_file, sizeof(b.spec.tokenizer_file));
	memcpy(ret, &b, sizeof(b));
	return 0;
}

int base_store_hold(
	struct db_conn *conn, const char *tenant_id, const char *id, struct base *ret, struct err *err)
{
	bool job = ident_is(id, "job");
	const char *sql = job ? job_sql : ident_is(id, "model") ? model_sql : NULL;
	cleanup(db_result_freep) struct db_result *held = NULL, *r = NULL;
	int rc = 0;
	if (ident_is(id, "ckpt")) {
		sql = checkpoint_sql;
		/* Whoever drops its content locks this row. What it says is read behind that. */
		rc = db_exec(conn, &held, err,
			"select 1 from checkpoints where id = $1 and tenant_id = $2 for key share", DB_TEXT(id),
			DB_TEXT(tenant_id));
	}
	if (sql == NULL)
		return not_found(id, err);
	if (rc == 0)
		rc = db_exec(conn, &r, err, sql, DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return job ? explain_job(conn, tenant_id, id, err) : not_found(id, err);
	return take(r, id, ret, err);
}
