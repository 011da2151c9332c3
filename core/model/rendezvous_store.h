/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of an attempt on several machines tell each other to be found: small values by
 * key, put once, read by the other machines. Called by one handler. A connection belongs to one
 * thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/json/writer.h"
#include "core/model/attempt.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	RENDEZVOUS_KEY_MAX = 127,                /* bytes */
	RENDEZVOUS_VALUE_MAX = 192 * 1024,       /* bytes of base64 */
	RENDEZVOUS_ENTRIES_MAX = 64,             /* of one request, either way */
	RENDEZVOUS_KEYS_MAX = 8192,              /* of one attempt */
	RENDEZVOUS_BYTES_MAX = 64 * 1024 * 1024, /* of its values together */
	RENDEZVOUS_REPLY_MAX = 1024 * 1024,      /* bytes of values in one reply */
};

struct rendezvous_entry {
	const char *key, *value;
};

/* Of a file that the attempt's trainers look for; and of base64. */
bool rendezvous_key_is_valid(const char *key);
bool rendezvous_value_is_valid(const char *value);

/* With the attempt locked: keeps what is new; what a key has stays. *ret_new: entries that were.
 * QUOTA above the bounds. */
int rendezvous_store_put(struct db_conn *conn, const struct attempt_fence *fence,
	const struct rendezvous_entry *entries, int count, int *ret_new, struct err *err) must_check;
/* Appends {"entries":[{"key","value"}],"have":N}: what other machines have put behind number
 * `have`, in order; the new have. *ret_count: entries. */
int rendezvous_store_write(struct db_conn *conn, const struct attempt_fence *fence, int64_t have,
	struct json_writer *w, int *ret_count, struct err *err) must_check;
/* The other machines of the attempt: calls fn with the id of each. */
int rendezvous_store_others(struct db_conn *conn, const struct attempt_fence *fence,
	void (*fn)(void *ctx, const char *agent_id), void *ctx, struct err *err) must_check;
