/* SPDX-License-Identifier: Apache-2.0
 * Turns an Authorization header into a principal: API keys through a small cache in front of the
 * database, JWTs through the verifier. Event loops check, workers ask, before a body is read.
 * Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "server/auth/principal.h"

#include <stdbool.h>

struct credentials;
struct token_verifier;

enum {
	CREDENTIALS_CACHE_MAX = 4096,
	CREDENTIALS_FRESH_MS = 5000,   /* a revoked key works this much longer at most */
	CREDENTIALS_UNKNOWN_MS = 2000, /* a key that was not found is not asked about again for */
	CREDENTIALS_RETRY_MS = 1000,   /* after the database failed: refused at once meanwhile */
	CREDENTIALS_DB_WAIT_MS = 1000,
};

/* pool: a small one of its own, with short timeouts. tokens may be NULL. Both stay the caller's. */
int credentials_create(const struct clock *clock, struct db_pool *pool,
	const struct token_verifier *tokens, struct credentials **ret) must_check;
void credentials_destroy(struct credentials *c);

/* header: the Authorization header or NULL. Never blocks: *ret_ask is true, and nothing else is
 * decided, when the database must be asked. UNAUTHENTICATED otherwise. */
int credentials_check(struct credentials *c, const char *header, struct principal *ret,
	bool *ret_ask, struct err *err) must_check;

/* The same, asking the database. UNAUTHENTICATED; DATABASE or OVERLOADED when it cannot be told
 * now. */
int credentials_ask(
	struct credentials *c, const char *header, struct principal *ret, struct err *err) must_check;
