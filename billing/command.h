/* SPDX-License-Identifier: Apache-2.0
 * The commands of trainyard-billing: a file and a row of main.c each. They write what people read
 * to `out` and return an error for main to say; a difference found is not an error. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { COMMAND_DB_WAIT_MS = 10000, COMMAND_UNSET = -1 };

/* What was given after the command's name. */
struct command_options {
	const char *tenant;   /* NULL = none */
	const char *argument; /* the invoice; NULL = none */
	int64_t from_us;      /* COMMAND_UNSET = not given */
	int64_t to_us;
	bool all;
	bool json;
	bool help;
};

enum command_option {
	COMMAND_TENANT = 1 << 0,
	COMMAND_ALL = 1 << 1,
	COMMAND_FROM_TO = 1 << 2,
	COMMAND_JSON = 1 << 3,
	COMMAND_ARGUMENT = 1 << 4,
};

/* Reads options of `allowed` only. INVALID_VALUE or UNKNOWN_FIELD naming the one that is wrong. */
int command_parse(
	int argc, char **argv, int allowed, struct command_options *ret, struct err *err) must_check;

/* *ret_ok is false when a difference was found and said. */
typedef int (*command_fn)(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err);

int command_close(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err) must_check;
int command_reconcile(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err) must_check;
int command_show(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err) must_check;
int command_verify(struct db_pool *pool, const struct command_options *options, FILE *out,
	bool *ret_ok, struct err *err) must_check;

/* Checks every invoice (or one) against its segments; counts what was checked, writes differences
 * to out. Shared by verify and reconcile. */
int command_verify_invoices(struct db_conn *conn, const char *id, FILE *out, int64_t *ret_checked,
	int64_t *ret_differences, struct err *err) must_check;
