/* SPDX-License-Identifier: Apache-2.0
 * POST /agent/v1/rendezvous: what the ranks of one machine of an attempt tell those of the others,
 * and what the others have said since; waits for that if there is nothing yet. Behind the
 * attempt's fence. Runs on a worker thread, again after each wake-up: repeating changes nothing. */
#include "server/handlers/handlers.h"

#include "core/model/agent_store.h"
#include "core/model/attempt_store.h"
#include "core/model/rendezvous_store.h"
#include "server/http/hub.h"

#include <stdio.h>

enum { WAIT_MAX_MS = 25000 };

struct meeting {
	struct request *req;
	struct response *res;
	const char *attempt_id;
	int64_t epoch, have, wait_ms;
	struct rendezvous_entry entries[RENDEZVOUS_ENTRIES_MAX];
	int entry_count;
	char agent_id[IDENT_MAX];
	int added, answered;
};

static int read_entry(
	const struct json_val *v, const char *path, struct rendezvous_entry *ret, struct err *err)
{
	struct rendezvous_entry e = { 0 };
	struct json_obj o;
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "key");
	json_obj_need(&o, "value");
	json_obj_str(&o, "key", 1, RENDEZVOUS_KEY_MAX, &e.key);
	json_obj_str(&o, "value", 0, RENDEZVOUS_VALUE_MAX, &e.value);
	if (!o.code && !rendezvous_key_is_valid(e.key))
		json_obj_fail(&o, ERR_INVALID_VALUE, "key",
			"%s.key has a-z, 0-9, '-', '_' and '.', the first no '.'", path);
	if (!o.code && !rendezvous_value_is_valid(e.value))
		json_obj_fail(&o, ERR_INVALID_VALUE, "value", "%s.value is base64", path);
	int rc = json_obj_close(&o);
	if (rc == 0)
		*ret = e;
	return rc;
}

static int read_body(struct meeting *m, struct err *err)
{
	const struct json_val *entries = NULL;
	char path[JSON_PATH_MAX];
	struct json_obj o;
	json_obj_open(&o, m->req->json, "$", err);
	json_obj_need(&o, "attempt_id");
	json_obj_need(&o, "epoch");
	json_obj_str(&o, "attempt_id", 1, IDENT_MAX - 1, &m->attempt_id);
	json_obj_i64(&o, "epoch", 1, INT64_MAX, &m->epoch);
	json_obj_array(&o, "entries", RENDEZVOUS_ENTRIES_MAX, &entries);
	json_obj_i64(&o, "have", 0, INT64_MAX, &m->have);
	json_obj_i64(&o, "wait_ms", 0, INT64_MAX, &m->wait_ms);
	int rc = json_obj_close(&o);
	for (size_t i = 0; rc == 0 && i < json_array_len(entries); i++) {
		snprintf(path, sizeof(path), "$.entries[%zu]", i);
		rc = read_entry(json_array_at(entries, i), path, &m->entries[i], err);
	}
	m->entry_count = (int)json_array_len(entries);
	return rc;
}

static void touch(void *ctx, const char *agent_id)
{
	struct app *app = ctx;
	char topic[IDENT_MAX + 8];
	snprintf(topic, sizeof(topic), "agent:%s", agent_id);
	hub_touch(app->hub, topic);
}

static int meet_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct meeting *m = ctx;
	struct attempt a;
	int rc = agent_store_find(conn, m->req->principal.id, m->agent_id, err);
	const struct attempt_fence fence = {
		.attempt_id = m->attempt_id, .epoch = m->epoch, .agent_id = m->agent_id
	};
	m->added = 0;
	if (rc == 0)
		rc = attempt_store_lock(conn, &fence, &a, err);
	if (rc == 0 && m->entry_count > 0)
		rc = rendezvous_store_put(conn, &fence, m->entries, m->entry_count, &m->added, err);
	buf_reset(m->res->json.out);
	json_writer_init(&m->res->json, m->res->json.out);
	return rc < 0 ? rc
				  : rendezvous_store_write(conn, &fence, m->have, &m->res->json, &m->answered, err);
}

static int wake_others(struct db_conn *conn, void *ctx, struct err *err)
{
	struct meeting *m = ctx;
	const struct attempt_fence fence = {
		.attempt_id = m->attempt_id, .epoch = m->epoch, .agent_id = m->agent_id
	};
	return rendezvous_store_others(conn, &fence, touch, m->req->app, err);
}

int agent_rendezvous(struct request *req, struct response *res, struct err *err)
{
	struct meeting m = { .req = req, .res = res };
	int rc = read_body(&m, err);
	if (rc == 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, meet_in_tx, &m, err);
	if (rc == 0 && m.added > 0)
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, wake_others, &m, err);
	if (rc < 0)
		return rc;
	if (m.answered == 0 && m.wait_ms > 0 && !req->wait_over) {
		char topic[IDENT_MAX + 8];
		snprintf(topic, sizeof(topic), "agent:%s", m.agent_id);
		response_wait(res, topic, (int)(m.wait_ms < WAIT_MAX_MS ? m.wait_ms : WAIT_MAX_MS));
	}
	return 0;
}
