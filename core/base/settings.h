/* SPDX-License-Identifier: Apache-2.0
 * Settings of a program: one table of rows, read from defaults, then a file (`key = value` lines, #
 * comments), then the environment, then `--key=value` arguments. `--print-settings` prints the
 * table; docs/settings.md repeats it (lint). */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum setting_kind { SETTING_STR, SETTING_I64, SETTING_BOOL };

enum { SETTING_STR_MAX = 512 };

struct setting {
	const char *key;           /* "db_pool_size"; environment TRAINYARD_DB_POOL_SIZE */
	enum setting_kind kind;    /* STR: char[SETTING_STR_MAX]; I64: int64_t; BOOL: bool */
	const char *default_value; /* as text; NULL = required */
	int64_t min, max;          /* I64 only */
	size_t offset;             /* into the program's settings struct */
	bool secret;               /* never printed */
	const char *doc;           /* one sentence, with the unit */
};

/* Rows of a table whose settings lie in a `type` with a member of each key's name. */
#define SETTING_ROW_STR(type, name, def, text)                                                     \
	{                                                                                              \
		.key = #name, .kind = SETTING_STR, .default_value = (def), .offset = offsetof(type, name), \
		.doc = (text)                                                                              \
	}
#define SETTING_ROW_SECRET(type, name, def, text)                                                  \
	{                                                                                              \
		.key = #name, .kind = SETTING_STR, .default_value = (def), .offset = offsetof(type, name), \
		.secret = true, .doc = (text)                                                              \
	}
#define SETTING_ROW_I64(type, name, def, low, high, text)                                       \
	{                                                                                           \
		.key = #name, .kind = SETTING_I64, .default_value = (def), .min = (low), .max = (high), \
		.offset = offsetof(type, name), .doc = (text)                                           \
	}
#define SETTING_ROW_BOOL(type, name, def, text)                     \
	{                                                               \
		.key = #name, .kind = SETTING_BOOL, .default_value = (def), \
		.offset = offsetof(type, name), .doc = (text)               \
	}

/* Fills *ret_settings (of the size the offsets imply). file may be NULL. argv entries that are not
 * --key=value of a known key are left in place and *ret_rest is the index of the first of them.
 * Errors name key, source and line. */
int settings_load(const struct setting *table, size_t count, const char *file, int argc,
	char **argv, void *ret_settings, int *ret_rest, struct err *err) must_check;

/* The table as Markdown (key, environment, default, meaning), what --print-settings writes. */
int settings_print(const struct setting *table, size_t count, struct buf *out);
