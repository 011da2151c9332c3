/* SPDX-License-Identifier: Apache-2.0
 * Options of the commands. */
#include "billing/command.h"

#include "core/base/clock.h"

#include <string.h>

/* The value of "--name=value", or NULL when arg is another option. */
static const char *value_of(const char *arg, const char *name)
{
	size_t len = strlen(name);
	return strncmp(arg, name, len) == 0 && arg[len] == '=' ? arg + len + 1 : NULL;
}

static int parse_time(const char *name, const char *text, int64_t *ret_us, struct err *err)
{
	int64_t us;
	if (clock_parse_rfc3339(text, &us) < 0 || us < 0)
		return err_set(err, ERR_INVALID_VALUE, name,
			"%s must be a time like 2026-11-30T02:04:01Z (RFC 3339), not \"%s\"", name, text);
	*ret_us = us;
	return 0;
}

static int parse_one(const char *arg, int allowed, struct command_options *options, struct err *err)
{
	const char *value;
	if (strcmp(arg, "--help") == 0) {
		options->help = true;
		return 0;
	}
	if ((allowed & COMMAND_TENANT) && (value = value_of(arg, "--tenant"))) {
		options->tenant = value;
		return 0;
	}
	if ((allowed & COMMAND_ALL) && strcmp(arg, "--all") == 0) {
		options->all = true;
		return 0;
	}
	if ((allowed & COMMAND_JSON) && strcmp(arg, "--json") == 0) {
		options->json = true;
		return 0;
	}
	if ((allowed & COMMAND_FROM_TO) && (value = value_of(arg, "--from")))
		return parse_time("--from", value, &options->from_us, err);
	if ((allowed & COMMAND_FROM_TO) && (value = value_of(arg, "--to")))
		return parse_time("--to", value, &options->to_us, err);
	if ((allowed & COMMAND_ARGUMENT) && arg[0] != '-' && !options->argument) {
		options->argument = arg;
		return 0;
	}
	return err_set(err, ERR_UNKNOWN_FIELD, NULL, "there is no option %s here", arg);
}

int command_parse(int argc, char **argv, int allowed, struct command_options *ret, struct err *err)
{
	struct command_options options = { .from_us = COMMAND_UNSET, .to_us = COMMAND_UNSET };
	for (int i = 0; i < argc; i++) {
		int rc = parse_one(argv[i], allowed, &options, err);
		if (rc < 0)
			return rc;
	}
	if (options.from_us != COMMAND_UNSET && options.to_us != COMMAND_UNSET &&
		options.from_us >= options.to_us)
		return err_set(err, ERR_INVALID_VALUE, "--to", "--from must be before --to");
	*ret = options;
	return 0;
}
