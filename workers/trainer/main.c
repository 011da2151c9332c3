/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer: chooses the command. Runs one plan, as one rank of an attempt under an agent
 * or by hand. */
#include "core/base/attr.h"
#include "core/base/log.h"
#include "core/base/settings.h"
#include "workers/trainer/command.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SETTINGS_TEXT_MAX = 4096 };

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "bench", cmd_bench, "time a job's step on made-up data" },
	{ "calibrate", cmd_calibrate, "measure this machine: the rates that quotes and MFU use" },
	{ "generate", cmd_generate, "text from a finished language model" },
	{ "plan", cmd_plan, "what a job needs: memory, FLOPs, operations; no device" },
	{ "run", cmd_run, "train a job spec without a yard" },
	{ "validate", cmd_validate, "check a job's data, without a device" },
};

static void print_usage(FILE *to)
{
	fputs("trainyard-trainer: trains one job on one device\n\n", to);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		fprintf(to, "  trainyard-trainer %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\n"
		  "COMMAND --help tells its arguments; docs/trainer.md tells more.\n"
		  "\n"
		  "  trainyard-trainer --rank=N --dir=ATTEMPT_DIR [--lease-until=BOOT_MS]\n"
		  "      a rank of an attempt; started by trainyard-agent (docs/protocol.md)\n",
		to);
}

/* Nothing is saved: the yard may already have given the job to somebody else. */
static void leave_without_lease(void)
{
	static const char line[] = "trainyard-trainer: the lease ran out\n";
	ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);
	(void)n;
	_exit(COMMAND_NO_LEASE);
}

/* It has none: everything comes from attempt.json. An empty table says so. */
static int print_settings(void)
{
	struct buf text;
	buf_init(&text, SETTINGS_TEXT_MAX);
	int rc = settings_print(NULL, 0, &text);
	if (rc == 0)
		fputs(buf_cstr(&text), stdout);
	buf_finish(&text);
	return rc == 0 ? COMMAND_OK : COMMAND_FAILED;
}

int main(int argc, char **argv)
{
	log_setup("trainyard-trainer", LOG_INFO);
	const char *first = argc > 1 ? argv[1] : "";
	if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
		print_usage(stdout);
		return COMMAND_OK;
	}
	if (strcmp(first, "--print-settings") == 0)
		return print_settings();
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(first, commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	int status = cmd_rank(argc, argv, leave_without_lease);
	if (status == COMMAND_USAGE)
		print_usage(stderr);
	return status;
}
