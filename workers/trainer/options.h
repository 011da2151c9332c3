/* SPDX-License-Identifier: Apache-2.0
 * The arguments of the trainer's commands: rows of a table, as "--name VALUE" or "--name=VALUE".
 * Used by the cmd files; the texts point into argv. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "workers/trainer/session.h"

#include <stdbool.h>
#include <stdint.h>

enum options_kind {
	OPTIONS_FLAG,     /* bool */
	OPTIONS_TEXT,     /* const char * */
	OPTIONS_OPTIONAL, /* const char *: "--name" alone gives "", a value must follow a '=' */
	OPTIONS_COUNT,    /* int64_t in [min, max] */
	OPTIONS_NUMBER,   /* double in [min, max] */
	OPTIONS_DATA,     /* struct session_inputs: training_file=PATH or validation_file=PATH */
};

struct options_row {
	const char *name; /* "--threads"; NULL: the one argument without a name (OPTIONS_TEXT) */
	enum options_kind kind;
	void *into;
	double min, max;
};

enum { OPTIONS_HELP = 1, OPTIONS_THREADS_MAX = 1024 };

/* Returns OPTIONS_HELP when --help or -h is among the arguments, INVALID_VALUE or MISSING_FIELD
 * naming the argument that is wrong. argv[0] is the command's name. */
int options_parse(
	const struct options_row *rows, int count, int argc, char **argv, struct err *err) must_check;

/* A command's answer on standard output, all of it or an error. */
int options_print(const struct buf *text, struct err *err) must_check;

/* The frame of a command: parses, prints usage for --help (to standard output, status 0) or after a
 * wrong argument; otherwise runs and prints its error. Returns the exit status. */
int options_run(const struct options_row *rows, int count, int argc, char **argv, const char *usage,
	int (*run)(void *ctx, struct err *err), void *ctx);
