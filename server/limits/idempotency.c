/* SPDX-License-Identifier: Apache-2.0
 * An advisory lock of the transaction marks a key as being served; the row marks it as served.
 * Neither outlives a crash without the other. Thread-safe. */
#include "server/limits/idempotency.h"

#include "server/http/route.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { BUSY_RETRY_AFTER_S = 1 };

static bool key_is_good(const char *key)
{
	size_t n = strlen(key);
	if (n == 0 || n > IDEMPOTENCY_KEY_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if (key[i] < ' ' || key[i] > '~')
			return false;
	return true;
}

/* The same key with another path or content is another request. */
static int hash_request(
	const struct request *req, const char *content, char ret_hex[static DIGEST_HEX_MAX])
{
	cleanup(digest_destroyp) struct digest *d = NULL;
	int rc = digest_create(&d);
	if (rc < 0)
		return rc;
	rc = digest_update(d, req->path, strlen(req->path) + 1);
	if (rc == 0 && content)
		rc = digest_update(d, content, strlen(content));
	if (rc == 0 && !content && req->body_bytes > 0)
		rc = digest_update(d, req->body, req->body_bytes);
	unsigned char sum[DIGEST_BYTES];
	if (rc == 0)
		rc = digest_final(d, sum);
	if (rc == 0)
		digest_to_hex(sum, ret_hex);
	return rc;
}

static int replay(const struct db_result *r, struct response *res)
{
	const char *kept = db_str(r, 0, 3);
	const char *line_end = strchr(kept, '\n');
	if (line_end != kept)
		response_header(res, "Location", "%.*s", (int)(line_end - kept), kept);
	response_header(res, "Idempotent-Replayed", "true");
	res->status = (int)db_i64(r, 0, 2);
	return buf_str(&res->body, line_end + 1);
}

int idempotency_begin(struct request *req, struct db_conn *conn, const char *content,
	struct idempotency *ret, struct response *res, bool *ret_replayed, struct err *err)
{
	/* The transaction may be run anew: what an earlier try wrote is dropped. */
	buf_reset(&res->body);
	json_writer_init(&res->json, &res->body);
	res->header_count = 0;
	*ret_replayed = false;
	*ret = (struct idempotency){ 0 };
	const char *key = request_header(req, "Idempotency-Key");
	if (!key)
		return 0;
	if (!key_is_good(key))
		return err_set(err, ERR_INVALID_VALUE, "Idempotency-Key",
			"Idempotency-Key must be 1 to %d printable ASCII characters", IDEMPOTENCY_KEY_MAX);
	struct idempotency i = { .active = true, .key = key };
	i.operation = req->route->operation_id;
	snprintf(i.owner, sizeof(i.owner), "%s",
		req->principal.tenant_id[0] ? req->principal.tenant_id : req->principal.id);
	int rc = hash_request(req, content, i.body_sha256);
	if (rc < 0)
		return err_set(err, rc, NULL, "Hashing the request failed");

	cleanup(db_result_freep) struct db_result *lock = NULL;
	rc = db_exec(conn, &lock, err,
		"select pg_try_advisory_xact_lock(hashtextextended('idempotency/' || $1::text || '/' || "
		"$2::text,"
		" 0))",
		DB_TEXT(i.owner), DB_TEXT(key));
	if (rc < 0)
		return rc;
	if (!db_bool(lock, 0, 0)) {
		err_set(err, ERR_IDEMPOTENCY_BUSY, "Idempotency-Key",
			"A request with this key is being served; try again");
		err->retry_after_s = BUSY_RETRY_AFTER_S;
		return ERR_IDEMPOTENCY_BUSY;
	}
	cleanup(db_result_freep) struct db_result *r = NULL;
	rc = db_exec(conn, &r, err,
		"select operation, body_sha256, status, response from idempotency_keys"
		" where owner = $1 and key = $2 and status is not null"
		" and created_at > yard_now() - make_interval(hours => $3::int)",
		DB_TEXT(i.owner), DB_TEXT(key), DB_I64(IDEMPOTENCY_KEEP_H));
	if (rc < 0)
		return rc;
	*ret = i;
	if (db_rows(r) == 0)
		return 0;
	if (strcmp(db_str(r, 0, 0), i.operation) != 0 || strcmp(db_str(r, 0, 1), i.body_sha256) != 0)
		return err_set(err, ERR_IDEMPOTENCY_REUSE, "Idempotency-Key",
			"This key was used with another request (%s); use a new key", db_str(r, 0, 0));
	*ret_replayed = true;
	return replay(r, res);
}

static const char *location_of(const struct response *res)
{
	for (int i = 0; i < res->header_count; i++)
		if (strcasecmp(res->headers[i].name, "Location") == 0)
			return res->headers[i].value;
	return "";
}

int idempotency_finish(const struct idempotency *i, struct db_conn *conn,
	const struct response *res, const char *body, struct err *err)
{
	if (!i->active)
		return 0;
	int rc = db_exec(conn, NULL, err,
		"delete from idempotency_keys where (owner, key) in (select owner, key"
		" from idempotency_keys where created_at < yard_now() - make_interval(hours => $1::int)"
		" order by created_at limit $2 for update skip locked)",
		DB_I64(IDEMPOTENCY_KEEP_H), DB_I64(IDEMPOTENCY_PURGE_MAX));
	if (rc < 0)
		return rc;
	return db_exec(conn, NULL, err,
		"insert into idempotency_keys (owner, key, operation, body_sha256, status, response)"
		" values ($1, $2, $3, $4, $5, $6::text || E'\\n' || $7::text) on conflict (owner, key) do "
		"update"
		" set operation = excluded.operation, body_sha256 = excluded.body_sha256,"
		" status = excluded.status, response = excluded.response, created_at = yard_now()",
		DB_TEXT(i->owner), DB_TEXT(i->key), DB_TEXT(i->operation), DB_TEXT(i->body_sha256),
		DB_I64(res->status), DB_TEXT(location_of(res)),
		DB_TEXT(body ? body : buf_cstr(&res->body)));
}
