/* SPDX-License-Identifier: Apache-2.0
 * The settings of trainyard-server: one table, read once by main before any thread starts.
 * docs/settings.md repeats the table; a lint test compares the two. */
#pragma once

#include "core/base/err.h"
#include "core/base/settings.h"

#include <stdbool.h>
#include <stdint.h>

struct settings_server {
	char db_url[SETTING_STR_MAX]; /* secret */
	int64_t db_pool_size;
	int64_t db_connect_timeout_s;
	int64_t db_statement_timeout_ms;
	int64_t db_lock_timeout_ms;
	char migrations_dir[SETTING_STR_MAX];
	char data_dir[SETTING_STR_MAX]; /* root of the blob store */

	char api_address[SETTING_STR_MAX]; /* "127.0.0.1" */
	int64_t api_port;
	char agent_address[SETTING_STR_MAX];
	int64_t agent_port;
	char public_url[SETTING_STR_MAX]; /* base of `type` and `instance` links */

	int64_t http_threads; /* 0 = number of cores */
	int64_t workers;
	int64_t queue_max;
	int64_t connections_max;
	int64_t connections_per_ip_max; /* 0 = no limit (behind a proxy) */
	int64_t streams_max;
	int64_t stream_heartbeat_s;
	int64_t waits_max;
	int64_t headers_timeout_s;
	int64_t idle_timeout_s;
	int64_t body_timeout_s;
	int64_t body_min_bytes_per_s;
	int64_t drain_timeout_s;
	int64_t upload_max_bytes;

	int64_t rate_per_s; /* requests per second of one tenant; 0 = no limit */
	int64_t rate_burst;
	bool metrics_public;

	char region[SETTING_STR_MAX]; /* where this server and its store are; checked at upload */
	bool scheduler;               /* run the scheduler in this process */
	int64_t elastic_wait_ms;      /* for all of an elastic job's devices */

	char jwt_key_file[SETTING_STR_MAX]; /* "" = JWTs are off */
	char jwt_algorithm[SETTING_STR_MAX];
	char jwt_issuer[SETTING_STR_MAX];
	char jwt_audience[SETTING_STR_MAX];
	char jwt_key_id[SETTING_STR_MAX];
	int64_t jwt_leeway_s;

	char log_level[SETTING_STR_MAX];
};

/* The table, for settings_load, settings_print and the lint test. */
const struct setting *settings_server_table(size_t *ret_count);

/* Loads from file (may be NULL), environment and arguments, and checks what spans several rows. */
int settings_server_load(const char *file, int argc, char **argv,
	struct settings_server *ret_settings, int *ret_rest, struct err *err) must_check;
