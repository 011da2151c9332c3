/* SPDX-License-Identifier: Apache-2.0
 * The settings table of trainyard-server. Read by main only, before threads start. */
#include "server/settings.h"

#include <stddef.h>
#include <string.h>

#define STR(...) SETTING_ROW_STR(struct settings_server, __VA_ARGS__)
#define SECRET(...) SETTING_ROW_SECRET(struct settings_server, __VA_ARGS__)
#define I64(...) SETTING_ROW_I64(struct settings_server, __VA_ARGS__)
#define BOOL(...) SETTING_ROW_BOOL(struct settings_server, __VA_ARGS__)

static const struct setting table[] = {
	SECRET(db_url, "dbname=trainyard", "PostgreSQL connection string (libpq)"),
	I64(db_pool_size, "20", 2, 500, "Connections of the handlers and the scheduler at most"),
	I64(db_connect_timeout_s, "2", 1, 60, "Seconds until a connection attempt is given up"),
	I64(db_statement_timeout_ms, "1500", 100, 600000,
		"Milliseconds until the database ends a request's statement; one that freezes is given up "
		"400 ms later"),
	I64(db_lock_timeout_ms, "1000", 50, 600000,
		"Milliseconds that a request's statement waits for a row's lock; less than "
		"db_statement_timeout_ms, so that it is repeated and not refused"),
	STR(migrations_dir, "migrations", "Folder of the migration files"),
	STR(data_dir, "var/blobs", "Root folder of the blob store"),

	STR(api_address, "127.0.0.1", "Numeric address of the customers' port"),
	I64(api_port, "8080", 0, 65535, "Customers' port; 0 lets the kernel choose one"),
	STR(agent_address, "127.0.0.1", "Numeric address of the agents' port"),
	I64(agent_port, "8081", 0, 65535, "Agents' port; 0 lets the kernel choose one"),
	STR(public_url, "", "What clients see in front of the paths in error `type`s"),

	I64(http_threads, "0", 0, 256, "Event loops of each port; 0 = as many as cores"),
	I64(workers, "16", 1, 480, "Threads that run handlers; fewer than db_pool_size"),
	I64(queue_max, "1024", 1, 100000, "Requests of one port that wait for a worker at most"),
	I64(connections_max, "4096", 8, 1000000, "Connections of one port at most"),
	I64(connections_per_ip_max, "0", 0, 1000000,
		"Connections of one address at most; 0 = no limit (behind a proxy)"),
	I64(streams_max, "2000", 1, 1000000, "Event streams at most"),
	I64(stream_heartbeat_s, "15", 1, 60,
		"Seconds of silence after which a stream gets a comment line"),
	I64(waits_max, "4000", 1, 1000000, "Waiting long polls at most"),
	I64(headers_timeout_s, "10", 1, 3600, "Seconds until all headers of a request must be there"),
	I64(idle_timeout_s, "75", 1, 3600, "Seconds that a connection may be silent"),
	I64(body_timeout_s, "30", 1, 86400,
		"Seconds for a small body, and the grace of a large one before its rate counts"),
	I64(body_min_bytes_per_s, "8192", 1, 1000000000,
		"Bytes per second that a client must send or take after the grace"),
	I64(drain_timeout_s, "25", 0, 600, "Seconds that running requests have after SIGTERM"),
	I64(upload_max_bytes, "8589934592", 1, 1099511627776, "Bytes of one uploaded file at most"),

	I64(rate_per_s, "100", 0, 1000000, "Requests per second of one tenant; 0 = no limit"),
	I64(rate_burst, "200", 1, 1000000, "Requests that one tenant may send at once"),
	BOOL(metrics_public, "false", "Serve /metrics without an operator's key"),

	STR(region, "us-east", "Region of this server and its blob store, checked at upload"),
	BOOL(scheduler, "true", "Take part in leading the scheduler"),
	I64(elastic_wait_ms, "120000", 0, 86400000,
		"Milliseconds that an elastic job waits for all its devices before it begins with fewer"),

	STR(jwt_key_file, "", "PEM public key that signs JWTs; empty = JWTs are refused"),
	STR(jwt_algorithm, "RS256", "The one algorithm of that key: RS256 or ES256"),
	STR(jwt_issuer, "", "Required `iss`"),
	STR(jwt_audience, "", "Required `aud`"),
	STR(jwt_key_id, "", "Required `kid`; empty = tokens without one"),
	I64(jwt_leeway_s, "30", 0, 60, "Seconds of clock difference that `exp` and `nbf` allow"),

	STR(log_level, "info", "Least level that is written: debug, info, warn or error"),
};

const struct setting *settings_server_table(size_t *ret_count)
{
	*ret_count = ARRAY_LEN(table);
	return table;
}

static int check_jwt(const struct settings_server *s, struct err *err)
{
	if (s->jwt_key_file[0] == '\0')
		return 0;
	if (strcmp(s->jwt_algorithm, "RS256") != 0 && strcmp(s->jwt_algorithm, "ES256") != 0)
		return err_set(err, ERR_INVALID_VALUE, "jwt_algorithm",
			"setting jwt_algorithm: \"%s\" is neither RS256 nor ES256", s->jwt_algorithm);
	if (s->jwt_issuer[0] == '\0' || s->jwt_audience[0] == '\0')
		return err_set(err, ERR_MISSING_FIELD, "jwt_issuer",
			"settings jwt_issuer and jwt_audience are required when jwt_key_file is set");
	return 0;
}

int settings_server_load(const char *file, int argc, char **argv,
	struct settings_server *ret_settings, int *ret_rest, struct err *err)
{
	struct settings_server s;
	memset(&s, 0, sizeof(s));
	int r = settings_load(table, ARRAY_LEN(table), file, argc, argv, &s, ret_rest, err);
	if (r < 0)
		return r;
	if (s.workers >= s.db_pool_size)
		return err_set(err, ERR_INVALID_VALUE, "workers",
			"setting workers: must be less than db_pool_size, so that no worker waits for a "
			"connection");
	if (s.db_lock_timeout_ms >= s.db_statement_timeout_ms)
		return err_set(err, ERR_INVALID_VALUE, "db_lock_timeout_ms",
			"setting db_lock_timeout_ms: must be less than db_statement_timeout_ms");
	r = check_jwt(&s, err);
	if (r < 0)
		return r;
	*ret_settings = s;
	return 0;
}
