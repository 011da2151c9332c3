/* SPDX-License-Identifier: Apache-2.0
 * What every handler of trainyard-server can reach: settings, pool, clock, stores. Built once by
 * main, read-only after. */
#pragma once

#include "core/base/clock.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stdint.h>

struct settings_server; /* server/settings.h */
struct blob_store;      /* server/storage/blob.h */
struct hub;             /* server/http/hub.h: wakes event streams and long polls */
struct token_verifier;  /* server/auth/token.h; NULL when JWTs are not configured */
struct limiter;         /* server/limits/rate.h */
struct scheduler;       /* server/scheduler/scheduler.h; NULL when it does not run here */
struct http_stats;      /* server/http/stats.h: what /metrics shows */
struct credentials;     /* server/auth/credentials.h: the gate's */
struct err;

struct app {
	const struct settings_server *settings;
	const struct clock *clock;
	struct db_pool *pool;
	struct blob_store *blobs;
	struct hub *hub;
	struct token_verifier *tokens;
	struct limiter *limiter;
	struct http_stats *stats;
	struct db_pool *gate_pool; /* the gate's and the hub's: short timeouts, few connections */
	struct credentials *credentials;
	struct scheduler *scheduler;
	const char *openapi_json; /* /openapi.json, made from api-spec/openapi.yaml at build time */
};

/* settings must outlive the app. */
int app_init(struct app *app, const struct settings_server *settings, struct err *err) must_check;
void app_finish(struct app *app);
/* How this server connects to its database. */
void app_db_config(const struct settings_server *s, struct db_config *ret);

/* How long a handler waits for a pooled connection before it answers 503. */
enum { APP_DB_WAIT_MS = 2000 };
