/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/tenants/{id}/api-keys: the operator makes a tenant's key; only this reply shows it.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/ident.h"
#include "core/crypto/digest.h"
#include "core/model/api_key_store.h"
#include "server/auth/api_key.h"
#include "server/limits/args.h"
#include "server/limits/idempotency.h"

#include <stdio.h>
#include <string.h>

struct creation {
	struct request *req;
	struct response *res;
	struct api_key key;
	unsigned char hash[DIGEST_BYTES];
	char text[API_KEY_MAX];
};

static int read_body(struct creation *c, struct err *err)
{
	static const char *const roles[] = { "owner", "member", NULL };
	const char *name = NULL;
	int role = API_KEY_MEMBER;
	struct json_obj o;
	json_obj_open(&o, c->req->json, "$", err);
	json_obj_need(&o, "name");
	json_obj_str(&o, "name", 1, API_KEY_NAME_MAX - 1, &name);
	json_obj_word(&o, "role", roles, &role);
	int rc = json_obj_close(&o);
	if (rc == 0)
		rc = args_check_text(name, "$.name", API_KEY_NAME_MAX - 1, err);
	if (rc < 0)
		return rc;
	snprintf(c->key.name, sizeof(c->key.name), "%s", name);
	c->key.role = role == 0 ? API_KEY_OWNER : API_KEY_MEMBER;
	return 0;
}

static int create_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct creation *c = ctx;
	struct idempotency idem;
	bool replayed = false;
	int rc = idempotency_begin(c->req, conn, NULL, &idem, c->res, &replayed, err);
	if (rc < 0 || replayed)
		return rc;
	rc = api_key_store_insert(conn, &c->key, c->hash, err);
	if (rc < 0)
		return rc;
	response_created(c->res, "/v1/tenants/%s/api-keys/%s", c->key.tenant_id, c->key.id);
	/* What a repetition is answered with is stored, so it must not hold the key's text. */
	rc = api_key_store_write(conn, c->key.id, NULL, &c->res->json, err);
	if (rc == 0)
		rc = idempotency_finish(&idem, conn, c->res, NULL, err);
	if (rc < 0)
		return rc;
	buf_reset(&c->res->body);
	json_writer_init(&c->res->json, &c->res->body);
	return api_key_store_write(conn, c->key.id, c->text, &c->res->json, err);
}

int api_keys_create(struct request *req, struct response *res, struct err *err)
{
	struct creation c = { .req = req, .res = res };
	const char *tenant_id = NULL;
	int rc = args_id(req, "id", "tenant", "tenant", &tenant_id, err);
	if (rc == 0)
		rc = read_body(&c, err);
	if (rc < 0)
		return rc;
	snprintf(c.key.tenant_id, sizeof(c.key.tenant_id), "%s", tenant_id);
	ident_new(req->app->clock, "key", c.key.id);
	char redacted[API_KEY_SHOWN_MAX];
	rc = api_key_make(c.text, c.hash, redacted);
	if (rc < 0)
		return err_set(err, rc, NULL, "Making a key failed");
	snprintf(c.key.redacted, sizeof(c.key.redacted), "%s", redacted);
	rc = db_tx(req->app->pool, APP_DB_WAIT_MS, create_in_tx, &c, err);
	explicit_bzero(c.text, sizeof(c.text));
	return rc;
}
