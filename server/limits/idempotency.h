/* SPDX-License-Identifier: Apache-2.0
 * Idempotency-Key on POSTs. The record is written in the transaction of the effect itself, so a
 * crash leaves both or neither; the first request wins, a repeated one gets the first answer, one
 * that comes while the first is being served gets 409. Called by the POST handlers, inside their
 * transaction. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/crypto/digest.h"
#include "core/db/db.h"
#include "server/http/request.h"
#include "server/http/response.h"

#include <stdbool.h>

enum {
	IDEMPOTENCY_KEY_MAX = 255,
	IDEMPOTENCY_KEEP_H = 24,
	IDEMPOTENCY_PURGE_MAX = 100, /* expired rows removed by one request */
};

struct idempotency {
	bool active; /* the request carries a key */
	char owner[IDENT_MAX];
	const char *key;
	const char *operation;
	char body_sha256[DIGEST_HEX_MAX];
};

/* First thing inside the transaction. content is what must be equal in a repetition: the body of
 * JSON routes (NULL takes it), a digest of the fields and the file for uploads. When the answer is
 * known already, res is filled with it, *ret_replayed is true and the handler returns 0 at once.
 * Errors: INVALID_VALUE (the key), IDEMPOTENCY_BUSY, IDEMPOTENCY_REUSE. */
int idempotency_begin(struct request *req, struct db_conn *conn, const char *content,
	struct idempotency *ret, struct response *res, bool *ret_replayed, struct err *err) must_check;

/* Last thing inside the transaction, the response complete: keeps status, Location and body (or
 * `body` instead, where the real one holds a secret). */
int idempotency_finish(const struct idempotency *i, struct db_conn *conn,
	const struct response *res, const char *body, struct err *err) must_check;
