/* SPDX-License-Identifier: Apache-2.0
 * trainyard-billing: an operator's program that closes periods and proves that they add up. Exit
 * status: 0 done, 1 a difference was found, 2 wrong usage, 3 failed. One thread. */
#include "billing/command.h"
#include "billing/settings.h"

#include "core/base/buf.h"

#include <stdlib.h>
#include <string.h>

enum exit_status { EXIT_DONE, EXIT_DIFFERENCE, EXIT_USAGE, EXIT_FAILED };
enum { HELP_MAX = 64 * 1024, CONNECT_TIMEOUT_S = 10 };

static const struct command {
	const char *name;
	command_fn run;
	int options; /* of enum command_option */
	const char *usage;
	const char *help;
} commands[] = {
	{ "close", command_close, COMMAND_TENANT | COMMAND_ALL | COMMAND_FROM_TO | COMMAND_JSON,
		"close --tenant=ID | --all [--from=TIME] [--to=TIME] [--json]",
		"Invoices what is not invoiced yet: from the end of the tenant's last invoice (or its\n"
		"creation) to now on the database's clock, one invoice a month (UTC). Checks that device\n"
		"time adds up before it finalizes. A second run adds nothing.\n" },
	{ "reconcile", command_reconcile, COMMAND_JSON, "reconcile [--json]",
		"Prints, for every device, in service = billed + unbilled + idle + lost + open, in\n"
		"milliseconds, and compares every invoice with its segments. Exits with 1 on any\n"
		"difference.\n" },
	{ "show", command_show, COMMAND_ARGUMENT | COMMAND_JSON, "show INVOICE [--json]",
		"Prints an invoice; with --json its canonical content, as it was hashed.\n" },
	{ "verify", command_verify, COMMAND_ARGUMENT | COMMAND_ALL, "verify INVOICE | --all",
		"Recomputes content, check sums, quantities and amounts of invoices from their segments.\n"
		"Exits with 1 on any difference.\n" },
};

static void print_help(FILE *out, const struct command *only)
{
	(void)fputs("usage: trainyard-billing [--SETTING=VALUE ...] COMMAND [OPTION ...]\n", out);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (!only || only == &commands[i])
			(void)fprintf(out, "\n  %s\n\n%s", commands[i].usage, commands[i].help);
	(void)fputs("\nTimes are RFC 3339. --print-settings lists the settings.\n"
				"Exit status: 0 done, 1 a difference was found, 2 wrong usage, 3 failed.\n",
		out);
}

static int say(const struct err *err, int status)
{
	(void)fprintf(stderr, "trainyard-billing: %s\n",
		err->message[0] ? err->message : err_info(err->code)->title);
	return status;
}

static int print_settings(void)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, HELP_MAX);
	if (settings_print(settings_billing_table, settings_billing_count, &text) < 0)
		return EXIT_FAILED;
	(void)fputs(buf_cstr(&text), stdout);
	return EXIT_DONE;
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int run(const struct command *command, const struct command_options *options,
	const struct settings_billing *settings)
{
	const struct db_config config = {
		.url = settings->db_url,
		.application_name = "trainyard-billing",
		.size = 1,
		.connect_timeout_s = CONNECT_TIMEOUT_S,
		.statement_timeout_ms = (int)settings->billing_statement_timeout_ms,
		.lock_timeout_ms = (int)settings->billing_lock_timeout_ms,
		.idle_tx_timeout_ms = (int)settings->billing_statement_timeout_ms,
	};
	struct err err = { 0 };
	struct db_pool *pool = NULL;
	int rc = db_pool_create(&config, &pool, &err);
	if (rc < 0)
		return say(&err, EXIT_FAILED);
	bool ok = false;
	rc = command->run(pool, options, stdout, &ok, &err);
	db_pool_destroy(pool);
	if (fflush(stdout) != 0 && rc == 0)
		rc = err_set(&err, ERR_IO, NULL, "writing the output failed");
	if (rc == ERR_CONFLICT)
		return say(&err, EXIT_DIFFERENCE);
	if (rc == ERR_MISSING_FIELD || rc == ERR_INVALID_VALUE || rc == ERR_NOT_FOUND)
		return say(&err, EXIT_USAGE);
	if (rc < 0)
		return say(&err, EXIT_FAILED);
	return ok ? EXIT_DONE : EXIT_DIFFERENCE;
}

/* --help and --print-settings work wherever they stand, without any setting. */
static bool asks(int argc, char **argv, const char *what)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], what) == 0)
			return true;
	return false;
}

static const struct command *first_command(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (find_command(argv[i]))
			return find_command(argv[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	if (asks(argc, argv, "--help")) {
		print_help(stdout, first_command(argc, argv));
		return EXIT_DONE;
	}
	if (asks(argc, argv, "--print-settings"))
		return print_settings();
	if (argc < 2) {
		print_help(stderr, NULL);
		return EXIT_USAGE;
	}
	struct err err = { 0 };
	struct settings_billing settings = { 0 };
	int rest = argc;
	if (settings_load(settings_billing_table, settings_billing_count, NULL, argc, argv, &settings,
			&rest, &err) < 0)
		return say(&err, EXIT_USAGE);
	const struct command *command = rest < argc ? find_command(argv[rest]) : NULL;
	if (!command) {
		(void)err_set(&err, ERR_INVALID_VALUE, NULL, "%s%s: see --help",
			rest < argc ? "there is no command or setting " : "no command was given",
			rest < argc ? argv[rest] : "");
		return say(&err, EXIT_USAGE);
	}
	struct command_options options = { 0 };
	if (command_parse(argc - rest - 1, argv + rest + 1, command->options, &options, &err) < 0)
		return say(&err, EXIT_USAGE);
	return run(command, &options, &settings);
}
