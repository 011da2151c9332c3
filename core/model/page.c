/* SPDX-License-Identifier: Apache-2.0
 * Keyset pages. Any thread. */
#include "core/model/page.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void page_bounds(const struct page *page, const char *prefix, struct page_bounds *ret)
{
	assert(page->limit >= 1 && page->limit <= PAGE_LIMIT_MAX);
	struct page_bounds b = { .fetch = page->limit + 1 };
	/* "z" sorts behind every character of a ULID, "" before it. */
	if (page->after[0])
		snprintf(b.below, sizeof(b.below), "%s", page->after);
	else
		snprintf(b.below, sizeof(b.below), "%s_z", prefix);
	if (page->before[0])
		snprintf(b.above, sizeof(b.above), "%s", page->before);
	else
		snprintf(b.above, sizeof(b.above), "%s_", prefix);
	b.ascending = page->before[0] && !page->after[0];
	*ret = b;
}

int page_count(const struct page *page, const struct db_result *rows)
{
	int n = db_rows(rows);
	return n > page->limit ? page->limit : n;
}

int page_row(const struct page *page, const struct db_result *rows, int i)
{
	bool ascending = page->before[0] && !page->after[0];
	return ascending ? page_count(page, rows) - 1 - i : i;
}

void page_begin(struct json_writer *w)
{
	json_begin_object(w);
	json_field_str(w, "object", "list");
	json_key(w, "data");
	json_begin_array(w);
}

void page_end(
	struct json_writer *w, const struct page *page, const struct db_result *rows, int id_column)
{
	int n = page_count(page, rows);
	json_end_array(w);
	json_field_str(w, "first_id", n ? db_str(rows, page_row(page, rows, 0), id_column) : NULL);
	json_field_str(w, "last_id", n ? db_str(rows, page_row(page, rows, n - 1), id_column) : NULL);
	json_field_bool(w, "has_more", db_rows(rows) > n);
	json_end_object(w);
}
