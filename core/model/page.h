/* SPDX-License-Identifier: Apache-2.0
 * One page of a list: rows newest first, by id (a ULID, so time and id are one total order), and
 * the list object around them. Used by every store that lists, for the list handlers. */
#pragma once

#include "core/base/attr.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/json/writer.h"

#include <stdbool.h>

enum {
	PAGE_LIMIT_MAX = 100,
	PAGE_LIMIT_DEFAULT = 20,
};

struct page {
	char after[IDENT_MAX];  /* "" = from the newest: rows older than this id */
	char before[IDENT_MAX]; /* "" = none: rows newer than this id, the nearest of them */
	int limit;
};

/* The bounds for `id < $a and id > $b`: the ids asked for, or ones beyond every id of the prefix.
 * Ids compare the same under every collation of ASCII letters and digits. */
struct page_bounds {
	char below[IDENT_MAX];
	char above[IDENT_MAX];
	int fetch;      /* rows to ask for: one more than the page holds */
	bool ascending; /* `before` without `after`: nearest first, turned round by page_row */
};
void page_bounds(const struct page *page, const char *prefix, struct page_bounds *ret);

/* How many of the fetched rows belong to the page, and which row of the result the i-th is. */
int page_count(const struct page *page, const struct db_result *rows);
int page_row(const struct page *page, const struct db_result *rows, int i);

/* {"object":"list","data":[ … caller writes the items … */
void page_begin(struct json_writer *w);
/* … ],"first_id":…,"last_id":…,"has_more":…}; ids are in column id_column. */
void page_end(
	struct json_writer *w, const struct page *page, const struct db_result *rows, int id_column);
