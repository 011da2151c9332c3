/* SPDX-License-Identifier: Apache-2.0
 * SQL of reading models and checkpoints. One connection, one thread. */
#include "core/model/model_store.h"

#include "core/json/writer.h"
#include "core/model/job_store.h"
#include "core/model/sql_text.h"
#include "core/spec/preset.h"
#include "core/spec/spec_json.h"

#include <stdbool.h>
#include <stdio.h>

/* clang-format off */
#define MODEL_SELECT                                                                             \
	"select m.id, " SQL_UNIX("m.created_at") ", m.tenant_id, m.job_id, j.name, j.spec->>'task'," \
	" m.bytes, m.metrics, array_to_json(m.residency)"                                            \
	" from models m join jobs j on j.id = m.job_id "
/* clang-format on */

static void write_model(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "model");
	json_field_i64(w, "created", db_i64(r, row, 1));
	json_field_str(w, "owned_by", db_str(r, row, 2));
	json_field_str(w, "kind", "trained");
	json_field_str(w, "job_id", db_str(r, row, 3));
	json_field_str(w, "name", db_str(r, row, 4));
	json_field_str(w, "task", db_str(r, row, 5));
	json_field_i64(w, "bytes", db_i64(r, row, 6));
	json_field_raw(w, "metrics", db_str(r, row, 7));
	json_field_raw(w, "residency", db_str(r, row, 8));
	json_end_object(w);
}

static void write_preset(struct json_writer *w, const struct preset *p)
{
	json_begin_object(w);
	json_field_str(w, "id", p->name);
	json_field_str(w, "object", "model");
	json_field_i64(w, "created", 0);
	json_field_str(w, "owned_by", "trainyard");
	json_field_str(w, "kind", "preset");
	json_field_str(w, "name", p->name);
	json_field_str(w, "summary", p->summary);
	json_field_str(w, "task", spec_task_word(p->task));
	json_field_str(w, "family", spec_family_word(p->model.family));
	json_field_i64(w, "parameters", p->parameters);
	json_key(w, "config");
	spec_json_write_config(w, &p->model);
	json_end_object(w);
}

static int no_model(struct err *err)
{
	return err_set(err, ERR_NOT_FOUND, NULL, "There is no such model");
}

int model_store_write(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err)
{
	const struct preset *preset = preset_find(id);
	if (preset) {
		write_preset(w, preset);
		return 0;
	}
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, MODEL_SELECT "where m.id = $1 and m.tenant_id = $2",
		DB_TEXT(id), DB_TEXT(tenant_id));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return no_model(err);
	write_model(w, r, 0);
	return 0;
}

#define MODEL_WHERE "where m.tenant_id = $1 and m.id < $2 and m.id > $3 "

/* Fills the page up with presets; returns the id of the last one written, or last. */
static const char *write_presets(
	struct json_writer *w, const struct preset *after, int room, const char *last, bool *ret_more)
{
	size_t count;
	const struct preset *all = preset_all(&count);
	size_t i = after ? (size_t)(after - all) + 1 : 0;
	for (; i < count && room > 0; i++, room--) {
		write_preset(w, &all[i]);
		last = all[i].name;
	}
	*ret_more = i < count;
	return last;
}

int model_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	const struct preset *after_preset, struct json_writer *w, struct err *err)
{
	struct page_bounds b;
	page_bounds(page, "model", &b);
	if (after_preset) /* behind all finished models */
		snprintf(b.below, sizeof(b.below), "%s", b.above);
	const char *sql = b.ascending ? MODEL_SELECT MODEL_WHERE "order by m.id asc limit $4"
								  : MODEL_SELECT MODEL_WHERE "order by m.id desc limit $4";
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, sql, DB_TEXT(tenant_id), DB_TEXT(b.below), DB_TEXT(b.above),
		DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	int count = page_count(page, r);
	bool more = db_rows(r) > count;
	const char *first = count ? db_str(r, page_row(page, r, 0), 0) : NULL;
	const char *last = count ? db_str(r, page_row(page, r, count - 1), 0) : NULL;
	page_begin(w);
	for (int i = 0; i < count; i++)
		write_model(w, r, page_row(page, r, i));
	if (!more && !page->before[0])
		last = write_presets(w, after_preset, page->limit - count, last, &more);
	json_end_array(w);
	if (!first && last) {
		size_t n;
		first = after_preset ? after_preset[1].name : preset_all(&n)[0].name;
	}
	json_field_str(w, "first_id", first);
	json_field_str(w, "last_id", last);
	json_field_bool(w, "has_more", more);
	json_end_object(w);
	return 0;
}

int model_store_list_files(struct db_conn *conn, const char *tenant_id, const char *id,
	struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select f.name, f.bytes, f.sha256 from models m"
		" left join model_files f on f.model_id = m.id"
		" where m.id = $1 and m.tenant_id = $2 order by f.name limit $3",
		DB_TEXT(id), DB_TEXT(tenant_id), DB_I64(MODEL_FILES_LIST_MAX));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return no_model(err);
	int count = db_is_null(r, 0, 0) ? 0 : db_rows(r);
	page_begin(w);
	for (int i = 0; i < count; i++) {
		json_begin_object(w);
		json_field_str(w, "object", "model.file");
		json_field_str(w, "name", db_str(r, i, 0));
		json_field_i64(w, "bytes", db_i64(r, i, 1));
		json_field_str(w, "sha256", db_str(r, i, 2));
		json_end_object(w);
	}
	json_end_array(w);
	json_field_str(w, "first_id", count ? db_str(r, 0, 0) : NULL);
	json_field_str(w, "last_id", count ? db_str(r, count - 1, 0) : NULL);
	json_field_bool(w, "has_more", false);
	json_end_object(w);
	return 0;
}

int model_store_file(struct db_conn *conn, const char *tenant_id, const char *id, const char *name,
	struct model_file *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select f.sha256, f.bytes from models m join model_files f on f.model_id = m.id"
		" where m.id = $1 and m.tenant_id = $2 and f.name = $3",
		DB_TEXT(id), DB_TEXT(tenant_id), DB_TEXT(name));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such model file");
	snprintf(ret->sha256, sizeof(ret->sha256), "%s", db_str(r, 0, 0));
	ret->bytes = db_i64(r, 0, 1);
	return 0;
}

/* clang-format off */
#define CHECKPOINT_SELECT                                                                       \
	"select c.id, " SQL_TIME("c.created_at") ", c.job_id, c.step, c.bytes, c.metrics,"          \
	" array_to_json(c.residency), c.trimmed_at is not null,"                                    \
	" (select coalesce(json_agg(json_build_object('name', f.name, 'bytes', f.bytes,"            \
	" 'sha256', f.sha256) order by f.name), '[]') from checkpoint_files f"                      \
	" where f.checkpoint_id = c.id)"                                                            \
	" from checkpoints c where c.job_id = $1 and c.tenant_id = $2 and c.id < $3 and c.id > $4 "
/* clang-format on */

static void write_checkpoint(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "object", "job.checkpoint");
	json_field_str(w, "created_at", db_str(r, row, 1));
	json_field_str(w, "job_id", db_str(r, row, 2));
	json_field_i64(w, "step", db_i64(r, row, 3));
	json_field_i64(w, "bytes", db_i64(r, row, 4));
	json_field_raw(w, "metrics", db_str(r, row, 5));
	json_field_raw(w, "residency", db_str(r, row, 6));
	json_field_bool(w, "trimmed", db_bool(r, row, 7));
	json_field_raw(w, "files", db_str(r, row, 8));
	json_end_object(w);
}

int model_store_list_checkpoints(struct db_conn *conn, const char *tenant_id, const char *job_id,
	const struct page *page, struct json_writer *w, struct err *err)
{
	bool finished;
	int rc = job_store_exists(conn, tenant_id, job_id, &finished, err);
	if (rc < 0)
		return rc;
	struct page_bounds b;
	page_bounds(page, "ckpt", &b);
	const char *sql = b.ascending ? CHECKPOINT_SELECT "order by c.id asc limit $5"
								  : CHECKPOINT_SELECT "order by c.id desc limit $5";
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err, sql, DB_TEXT(job_id), DB_TEXT(tenant_id), DB_TEXT(b.below),
		DB_TEXT(b.above), DB_I64(b.fetch));
	if (rc < 0)
		return rc;
	page_begin(w);
	for (int i = 0; i < page_count(page, r); i++)
		write_checkpoint(w, r, page_row(page, r, i));
	page_end(w, page, r, 0);
	return 0;
}
