/* SPDX-License-Identifier: Apache-2.0
 * The gate's question "who is this". When the database fails, later questions are refused at once
 * for a while instead of queueing up behind it. */
#include "server/auth/credentials.h"

#include "core/model/api_key_store.h"
#include "server/auth/api_key.h"
#include "server/auth/token.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WAYS = 4, SETS = CREDENTIALS_CACHE_MAX / WAYS, US_PER_MS = 1000, RETRY_AFTER_S = 1 };

struct entry {
	unsigned char hash[DIGEST_BYTES];
	int64_t until_us; /* 0 = empty */
	bool known;
	struct principal principal;
};

struct credentials {
	const struct clock *clock;
	struct db_pool *pool;
	const struct token_verifier *tokens;
	atomic_int_least64_t failed_until_us;
	pthread_mutex_t lock;
	struct entry entries[CREDENTIALS_CACHE_MAX];
};

int credentials_create(const struct clock *clock, struct db_pool *pool,
	const struct token_verifier *tokens, struct credentials **ret)
{
	struct credentials *c = calloc(1, sizeof(*c));
	if (!c)
		return ERR_NO_MEMORY;
	c->clock = clock;
	c->pool = pool;
	c->tokens = tokens;
	pthread_mutex_init(&c->lock, NULL);
	*ret = c;
	return 0;
}

void credentials_destroy(struct credentials *c)
{
	if (!c)
		return;
	pthread_mutex_destroy(&c->lock);
	explicit_bzero(c, sizeof(*c));
	free(c);
}

static struct entry *set_of(struct credentials *c, const unsigned char *hash)
{
	uint32_t h;
	memcpy(&h, hash, sizeof(h));
	return &c->entries[(size_t)(h % SETS) * WAYS];
}

static bool cache_get(
	struct credentials *c, const unsigned char *hash, bool *ret_known, struct principal *ret)
{
	int64_t now_us = clock_mono_us(c->clock);
	bool hit = false;
	pthread_mutex_lock(&c->lock);
	struct entry *set = set_of(c, hash);
	for (int i = 0; i < WAYS && !hit; i++) {
		if (set[i].until_us <= now_us || memcmp(set[i].hash, hash, DIGEST_BYTES) != 0)
			continue;
		hit = true;
		*ret_known = set[i].known;
		*ret = set[i].principal;
	}
	pthread_mutex_unlock(&c->lock);
	return hit;
}

/* Takes the place of the same key or of the entry that ends first. */
static void cache_put(
	struct credentials *c, const unsigned char *hash, bool known, const struct principal *principal)
{
	int64_t fresh_ms = known ? CREDENTIALS_FRESH_MS : CREDENTIALS_UNKNOWN_MS;
	int64_t until_us = clock_mono_us(c->clock) + fresh_ms * US_PER_MS;
	pthread_mutex_lock(&c->lock);
	struct entry *set = set_of(c, hash);
	struct entry *to = &set[0];
	for (int i = 0; i < WAYS; i++) {
		if (memcmp(set[i].hash, hash, DIGEST_BYTES) == 0) {
			to = &set[i];
			break;
		}
		if (set[i].until_us < to->until_us)
			to = &set[i];
	}
	memcpy(to->hash, hash, DIGEST_BYTES);
	to->until_us = until_us;
	to->known = known;
	to->principal = *principal;
	pthread_mutex_unlock(&c->lock);
}

static void principal_of(const struct api_key *key, struct principal *ret)
{
	static const enum principal_role roles[] = {
		[API_KEY_OWNER] = ROLE_OWNER,
		[API_KEY_MEMBER] = ROLE_MEMBER,
		[API_KEY_OPERATOR] = ROLE_OPERATOR,
		[API_KEY_AGENT] = ROLE_AGENT,
	};
	memset(ret, 0, sizeof(*ret));
	ret->role = roles[key->role];
	memcpy(ret->id, key->id, sizeof(ret->id));
	memcpy(ret->tenant_id, key->tenant_id, sizeof(ret->tenant_id));
	(void)snprintf(ret->agent_region, sizeof(ret->agent_region), "%s", key->agent_region);
	(void)snprintf(ret->agent_name, sizeof(ret->agent_name), "%.*s",
		(int)sizeof(ret->agent_name) - 1, key->name);
}

/* 0 with *ret_known; negative when the database could not say. */
static int look_up(struct credentials *c, const unsigned char *hash, bool *ret_known,
	struct principal *ret, struct err *err)
{
	int64_t now_us = clock_mono_us(c->clock);
	struct db_conn *conn = NULL;
	struct api_key key;
	if (now_us < atomic_load(&c->failed_until_us))
		return err_set(err, ERR_DATABASE, NULL, "the database failed a moment ago");
	int r = db_pool_get(c->pool, CREDENTIALS_DB_WAIT_MS, &conn, err);
	if (r == 0)
		r = api_key_store_find_by_hash(conn, hash, &key, err);
	db_pool_put(c->pool, conn);
	if (r < 0 && r != ERR_NOT_FOUND) {
		if (r == ERR_DATABASE)
			atomic_store(&c->failed_until_us,
				clock_mono_us(c->clock) + (int64_t)CREDENTIALS_RETRY_MS * US_PER_MS);
		err->retry_after_s = RETRY_AFTER_S;
		return r;
	}
	*ret_known = r == 0 && !key.revoked && key.tenant_active;
	memset(ret, 0, sizeof(*ret));
	if (*ret_known)
		principal_of(&key, ret);
	return 0;
}

static int refuse(struct err *err, const char *why)
{
	return err_set(err, ERR_UNAUTHENTICATED, "Authorization", "%s", why);
}

/* The bearer credential of a header. */
static int read_header(const char *header, const char **ret, struct err *err)
{
	static const char scheme[] = "Bearer ";
	if (!header)
		return refuse(err, "Send `Authorization: Bearer` with an API key");
	if (strncasecmp(header, scheme, sizeof(scheme) - 1) != 0)
		return refuse(err, "The Authorization header must be a bearer credential");
	const char *credential = header + sizeof(scheme) - 1;
	*ret = credential + strspn(credential, " ");
	return 0;
}

static bool is_key(const char *credential)
{
	return strncmp(credential, "ty_", 3) == 0;
}

static int check_known(
	bool known, const struct principal *found, struct principal *ret, struct err *err)
{
	if (!known)
		return refuse(err, "The API key is not known, or not valid any more");
	*ret = *found;
	return 0;
}

int credentials_check(struct credentials *c, const char *header, struct principal *ret,
	bool *ret_ask, struct err *err)
{
	unsigned char hash[DIGEST_BYTES];
	struct principal found;
	const char *credential = NULL;
	bool known = false;
	*ret_ask = false;
	int r = read_header(header, &credential, err);
	if (r < 0)
		return r;
	if (!is_key(credential))
		return c->tokens ? token_verify(c->tokens, credential, ret, err)
						 : refuse(err, "The credential is not an API key");
	if (!api_key_is_well_formed(credential))
		return refuse(err, "The API key is not well formed");
	r = api_key_hash(credential, hash);
	if (r < 0)
		return err_set(err, r, NULL, "hashing a key failed");
	*ret_ask = !cache_get(c, hash, &known, &found);
	return *ret_ask ? 0 : check_known(known, &found, ret, err);
}

int credentials_ask(
	struct credentials *c, const char *header, struct principal *ret, struct err *err)
{
	unsigned char hash[DIGEST_BYTES];
	struct principal found;
	const char *credential = NULL;
	bool known = false;
	int r = read_header(header, &credential, err);
	if (r < 0)
		return r;
	r = api_key_hash(credential, hash);
	if (r < 0)
		return err_set(err, r, NULL, "hashing a key failed");
	/* Another worker may have asked while this one was queued. */
	if (!cache_get(c, hash, &known, &found)) {
		r = look_up(c, hash, &known, &found, err);
		if (r < 0)
			return r;
		cache_put(c, hash, known, &found);
	}
	return check_known(known, &found, ret, err);
}
