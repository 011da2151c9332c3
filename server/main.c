/* SPDX-License-Identifier: Apache-2.0
 * trainyard-server: reads settings, runs one subcommand, and for `serve` waits for a signal. Only
 * this file exits. */
#include "core/base/log.h"
#include "core/db/migrate.h"
#include "server/app.h"
#include "server/create_key.h"
#include "server/http/server.h"
#include "server/scheduler/scheduler.h"
#include "server/settings.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Its statements read the whole queue; nobody waits for their answer. */
enum { SCHEDULER_STATEMENT_TIMEOUT_MS = 5000, SCHEDULER_LOCK_TIMEOUT_MS = 3000 };

static const char usage[] =
	"usage: trainyard-server [--config=FILE] [--KEY=VALUE ...] [COMMAND]\n"
	"\n"
	"  serve (default)    serve customers and agents until SIGTERM\n"
	"  migrate            bring the database to this build's schema\n"
	"  create-key --role=operator|agent|owner|member --name=NAME [--tenant=ID] [--region=REGION]\n"
	"                     make an API key and print it\n"
	"\n"
	"  --print-settings   the table of settings, as Markdown\n"
	"  --version, --help\n";

/* What needs no settings. Returns true when it was that; *ret_code is the exit status then. */
static bool answer(int argc, char **argv, int *ret_code)
{
	const char *arg = argc == 2 ? argv[1] : "";
	*ret_code = EXIT_SUCCESS;
	if (strcmp(arg, "--help") == 0) {
		(void)fputs(usage, stdout);
		return true;
	}
	if (strcmp(arg, "--version") == 0) {
		(void)printf("trainyard-server %s\n", TRAINYARD_VERSION);
		return true;
	}
	if (strcmp(arg, "--print-settings") == 0) {
		cleanup(buf_finish) struct buf out;
		size_t count;
		const struct setting *table = settings_server_table(&count);
		buf_init(&out, 1024 * 1024);
		if (settings_print(table, count, &out) < 0)
			*ret_code = EXIT_FAILURE;
		(void)fputs(buf_cstr(&out), stdout);
		return true;
	}
	return false;
}

static enum log_level level_of(const char *word)
{
	static const char *const words[] = {
		[LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"
	};
	for (int i = 0; i < (int)ARRAY_LEN(words); i++) {
		if (strcmp(word, words[i]) == 0)
			return (enum log_level)i;
	}
	return LOG_INFO;
}

static int migrate(const struct settings_server *s, struct err *err)
{
	struct db_config config;
	app_db_config(s, &config);
	config.application_name = "trainyard-migrate";
	config.size = 1;
	config.statement_timeout_ms = 0; /* building an index may take long */
	config.lock_timeout_ms = 0;
	struct db_pool *pool = NULL;
	struct db_conn *conn = NULL;
	int applied = 0;
	int r = db_pool_create(&config, &pool, err);
	if (r == 0)
		r = db_pool_get(pool, APP_DB_WAIT_MS, &conn, err);
	if (r == 0)
		r = migrate_run(conn, s->migrations_dir, &applied, err);
	if (pool) {
		db_pool_put(pool, conn);
		db_pool_destroy(pool);
	}
	if (r == 0)
		log_info("migrate.done", LOG_INT("applied", applied));
	return r;
}

/* As many descriptors as we are allowed: each connection is one. */
static void raise_limits(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Blocks the ending signals in this thread and all it starts; serve() waits for them. */
static void block_signals(sigset_t *ret_set)
{
	(void)signal(SIGPIPE, SIG_IGN);
	(void)sigemptyset(ret_set);
	(void)sigaddset(ret_set, SIGTERM);
	(void)sigaddset(ret_set, SIGINT);
	(void)pthread_sigmask(SIG_BLOCK, ret_set, NULL);
}

static int serve(const struct settings_server *s, struct err *err)
{
	struct app app;
	struct http_server *http = NULL;
	struct scheduler *scheduler = NULL;
	struct db_config config;
	sigset_t signals;
	block_signals(&signals);
	raise_limits();
	int r = app_init(&app, s, err);
	if (r < 0)
		return r;
	app_db_config(s, &config);
	config.application_name = "trainyard-scheduler";
	config.statement_timeout_ms = SCHEDULER_STATEMENT_TIMEOUT_MS;
	config.lock_timeout_ms = SCHEDULER_LOCK_TIMEOUT_MS;
	if (s->scheduler)
		r = scheduler_start(&app, &config, &scheduler, err);
	app.scheduler = scheduler; /* before any handler runs */
	if (r == 0)
		r = http_server_start(&app, &http, err);
	if (r == 0) {
		int got = 0;
		log_info("server.ready", LOG_STR("version", TRAINYARD_VERSION),
			LOG_INT("api_port", http_server_port(http, HTTP_PORT_API)),
			LOG_INT("agent_port", http_server_port(http, HTTP_PORT_AGENT)));
		(void)sigwait(&signals, &got);
		log_info("server.stopping", LOG_INT("signal", got));
		if (http_server_stop(http) < 0) {
			/* Requests are still inside: freeing what they use is not safe, leaving is. */
			log_error("server.drain_failed");
			_exit(EXIT_FAILURE);
		}
	}
	scheduler_stop(scheduler);
	app_finish(&app);
	if (r == 0)
		log_info("server.stopped");
	return r;
}

static int run(const struct settings_server *s, int argc, char **argv, int at, struct err *err)
{
	const char *command = at < argc ? argv[at] : "serve";
	int options = argc - at - 1;
	if (strcmp(command, "create-key") == 0)
		return create_key_run(s, options, argv + at + 1, err);
	if (options > 0)
		return err_set(err, ERR_INVALID_VALUE, NULL, "unknown argument %s", argv[at + 1]);
	if (strcmp(command, "migrate") == 0)
		return migrate(s, err);
	if (strcmp(command, "serve") == 0)
		return serve(s, err);
	return err_set(err, ERR_INVALID_VALUE, NULL, "unknown command or setting %s", command);
}

int main(int argc, char **argv)
{
	static const char config_option[] = "--config=";
	struct settings_server s;
	struct err err = { 0 };
	const char *file = NULL;
	int code;
	int rest;
	if (answer(argc, argv, &code))
		return code;
	log_setup("trainyard-server", LOG_INFO);
	if (argc > 1 && strncmp(argv[1], config_option, sizeof(config_option) - 1) == 0) {
		file = argv[1] + sizeof(config_option) - 1;
		argv[1] = argv[0];
		argc--;
		argv++;
	}
	int r = settings_server_load(file, argc, argv, &s, &rest, &err);
	if (r == 0) {
		log_setup("trainyard-server", level_of(s.log_level));
		r = run(&s, argc, argv, rest, &err);
	}
	if (r < 0) {
		log_error("server.failed", LOG_ERR(&err));
		(void)fprintf(stderr, "trainyard-server: %s\n", err.message);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
