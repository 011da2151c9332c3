/* SPDX-License-Identifier: Apache-2.0
 * Reads CSV as RFC 4180 has it: records end in LF or CRLF, fields are separated by commas, a field
 * in double quotes may hold commas, line ends and doubled quotes. Nothing is kept but the record at
 * hand. Used by data_csv.c. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { CSV_COLUMNS_MAX = 4096, CSV_FIELD_MAX_BYTES = 64 * 1024 };

struct csv_scan {
	const char *at, *end;
	int64_t line;    /* of what comes next */
	int64_t record;  /* line where the record at hand began */
	int count;       /* fields of the record at hand */
	struct buf text; /* their texts, each with a NUL behind it */
	size_t *begin;   /* malloc'ed: where each begins in the text */
	const char *label, *param;
};

int csv_scan_init(struct csv_scan *s, const char *text, size_t bytes, const char *label,
	const char *param, struct err *err) must_check;
void csv_scan_finish(struct csv_scan *s);
/* The next record; *ret_more false at the end. A line end behind the last record is no record. */
int csv_scan_next(struct csv_scan *s, bool *ret_more, struct err *err) must_check;
/* A field of the record, NUL-terminated (it holds no other NUL). */
const char *csv_scan_field(const struct csv_scan *s, int column);
