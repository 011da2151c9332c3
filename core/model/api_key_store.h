/* SPDX-License-Identifier: Apache-2.0
 * API keys: only the SHA-256 of a key is stored, never the key. Asked by the daemon's gate for
 * every request, and by the operators' key handlers. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/page.h"

#include <stdbool.h>

struct json_writer;

enum {
	API_KEY_HASH_BYTES = 32,
	API_KEY_NAME_MAX = 65, /* 64 characters of ASCII or the database's own limit */
	API_KEY_STORE_REDACTED_MAX = 40,
	API_KEY_REGION_MAX = 32,
};

enum api_key_role { API_KEY_OWNER, API_KEY_MEMBER, API_KEY_OPERATOR, API_KEY_AGENT };

struct api_key {
	char id[IDENT_MAX];
	char tenant_id[IDENT_MAX]; /* "" for operators and agents */
	enum api_key_role role;
	char name[4 * API_KEY_NAME_MAX];
	char redacted[API_KEY_STORE_REDACTED_MAX];
	char agent_region[API_KEY_REGION_MAX]; /* agents: the region that the operator vouches for */
	bool tenant_active;                    /* true when there is no tenant */
	bool revoked;
};

/* "owner", "member", "operator", "agent". */
const char *api_key_role_word(enum api_key_role role);

/* Uses key's id, tenant_id, role, name, redacted and agent_region. NOT_FOUND when the tenant does
 * not exist. */
int api_key_store_insert(struct db_conn *conn, const struct api_key *key,
	const unsigned char hash[static API_KEY_HASH_BYTES], struct err *err) must_check;

/* Revoked keys and keys of suspended tenants are found too: the caller refuses them and can say
 * why. NOT_FOUND otherwise. Notes the use of the key, at most once a minute. */
int api_key_store_find_by_hash(struct db_conn *conn,
	const unsigned char hash[static API_KEY_HASH_BYTES], struct api_key *ret,
	struct err *err) must_check;

/* Writes the list object of a tenant's keys. */
int api_key_store_list(struct db_conn *conn, const char *tenant_id, const struct page *page,
	struct json_writer *w, struct err *err) must_check;
/* Writes one key's object; secret is shown when not NULL (only ever at creation). */
int api_key_store_write(struct db_conn *conn, const char *id, const char *secret,
	struct json_writer *w, struct err *err) must_check;

/* NOT_FOUND when the tenant has no such key. Revoking twice changes nothing. */
int api_key_store_revoke(
	struct db_conn *conn, const char *tenant_id, const char *id, struct err *err) must_check;
