/* SPDX-License-Identifier: Apache-2.0
 * Builds what every handler reaches, in order, and takes it down in reverse. Called by main before
 * any request and after the last. */
#include "server/app.h"

#include "api-spec/openapi_json.h"
#include "server/auth/credentials.h"
#include "server/auth/token.h"
#include "server/http/hub_private.h"
#include "server/http/route.h"
#include "server/http/stats.h"
#include "server/limits/rate.h"
#include "server/settings.h"
#include "server/storage/blob.h"

#include <string.h>

enum {
	GATE_POOL_SIZE = 3, /* two event loops' look-ups and the hub */
	GATE_STATEMENT_TIMEOUT_MS = 1000,
	GATE_CONNECT_TIMEOUT_S = 1,
	IDLE_TX_TIMEOUT_MS = 10000,
};

void app_db_config(const struct settings_server *s, struct db_config *ret)
{
	*ret = (struct db_config){
		.url = s->db_url,
		.application_name = "trainyard-server",
		.size = (int)s->db_pool_size,
		.connect_timeout_s = (int)s->db_connect_timeout_s,
		.statement_timeout_ms = (int)s->db_statement_timeout_ms,
		.lock_timeout_ms = (int)s->db_lock_timeout_ms,
		.idle_tx_timeout_ms = IDLE_TX_TIMEOUT_MS,
	};
}

static int make_pools(struct app *app, struct err *err)
{
	struct db_config config;
	app_db_config(app->settings, &config);
	int r = db_pool_create(&config, &app->pool, err);
	if (r < 0)
		return r;
	config.application_name = "trainyard-server-gate";
	config.size = GATE_POOL_SIZE;
	config.connect_timeout_s = GATE_CONNECT_TIMEOUT_S;
	config.statement_timeout_ms = GATE_STATEMENT_TIMEOUT_MS;
	config.lock_timeout_ms = GATE_STATEMENT_TIMEOUT_MS;
	return db_pool_create(&config, &app->gate_pool, err);
}

static int make_tokens(struct app *app, struct err *err)
{
	const struct settings_server *s = app->settings;
	cleanup(freep) char *pem = NULL;
	if (s->jwt_key_file[0] == '\0')
		return 0;
	int r = token_read_key_file(s->jwt_key_file, &pem, err);
	if (r < 0)
		return r;
	struct token_key key = { .kid = s->jwt_key_id, .algorithm = s->jwt_algorithm, .pem = pem };
	struct token_config config = {
		.issuer = s->jwt_issuer,
		.audience = s->jwt_audience,
		.leeway_s = s->jwt_leeway_s,
		.keys = &key,
		.key_count = 1,
	};
	return token_verifier_create(&config, app->clock, &app->tokens, err);
}

static int make_rest(struct app *app, struct err *err)
{
	const struct settings_server *s = app->settings;
	const struct route *const tables[2] = { routes_api, routes_agent };
	const size_t counts[2] = { routes_api_count, routes_agent_count };
	if (limiter_create(app->clock, s->rate_per_s, s->rate_burst, &app->limiter) < 0 ||
		http_stats_create(tables, counts, &app->stats) < 0 ||
		credentials_create(app->clock, app->gate_pool, app->tokens, &app->credentials) < 0)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	return hub_create(app->gate_pool, app->clock, &app->hub, err);
}

int app_init(struct app *app, const struct settings_server *settings, struct err *err)
{
	memset(app, 0, sizeof(*app));
	app->settings = settings;
	app->clock = clock_system();
	app->openapi_json = OPENAPI_JSON;
	int r = make_pools(app, err);
	if (r == 0)
		r = blob_store_create(settings->data_dir, &app->blobs, err);
	if (r == 0)
		r = make_tokens(app, err);
	if (r == 0)
		r = make_rest(app, err);
	if (r < 0)
		app_finish(app);
	return r;
}

void app_finish(struct app *app)
{
	hub_destroy(app->hub);
	credentials_destroy(app->credentials);
	http_stats_destroy(app->stats);
	limiter_destroy(app->limiter);
	token_verifier_destroy(app->tokens);
	blob_store_destroy(app->blobs);
	db_pool_destroy(app->gate_pool);
	db_pool_destroy(app->pool);
	memset(app, 0, sizeof(*app));
}
