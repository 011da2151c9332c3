/* SPDX-License-Identifier: Apache-2.0
 * Reading rows. A wrong row, column or type is our own mistake and is asserted. Belongs to one
 * thread. */
#include "core/base/num.h"
#include "core/db/db_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void db_result_free(struct db_result *r)
{
	if (!r)
		return;
	PQclear(r->pg);
	free(r);
}

void db_result_freep(struct db_result **r)
{
	db_result_free(*r);
	*r = NULL;
}

int db_rows(const struct db_result *r)
{
	return PQntuples(r->pg);
}

int64_t db_affected(const struct db_result *r)
{
	/* libpq only reads from it, but its signature does not say so. */
	const char *text = PQcmdTuples((PGresult *)(uintptr_t)r->pg);
	int64_t count = 0;
	if (text[0] == '\0' || num_parse_i64(text, 0, INT64_MAX, &count) < 0)
		return 0;
	return count;
}

bool db_is_null(const struct db_result *r, int row, int col)
{
	assert(row >= 0 && row < PQntuples(r->pg) && col >= 0 && col < PQnfields(r->pg));
	return PQgetisnull(r->pg, row, col) == 1;
}

const char *db_str(const struct db_result *r, int row, int col)
{
	return db_is_null(r, row, col) ? NULL : PQgetvalue(r->pg, row, col);
}

int64_t db_i64(const struct db_result *r, int row, int col)
{
	const char *text = db_str(r, row, col);
	if (!text)
		return 0;
	int64_t value = 0;
	int code = num_parse_i64(text, INT64_MIN, INT64_MAX, &value);
	assert(code == 0);
	(void)code;
	return value;
}

double db_f64(const struct db_result *r, int row, int col)
{
	const char *text = db_str(r, row, col);
	if (!text)
		return 0;
	double value = 0;
	int code = num_parse_f64(text, &value);
	assert(code == 0);
	(void)code;
	return value;
}

bool db_bool(const struct db_result *r, int row, int col)
{
	const char *text = db_str(r, row, col);
	if (!text)
		return false;
	assert(strcmp(text, "t") == 0 || strcmp(text, "f") == 0);
	return text[0] == 't';
}

int db_bytes(const struct db_result *r, int row, int col, unsigned char **ret, size_t *ret_len)
{
	const char *text = db_str(r, row, col);
	if (!text) {
		*ret = NULL;
		*ret_len = 0;
		return 0;
	}
	size_t len;
	unsigned char *raw = PQunescapeBytea((const unsigned char *)text, &len);
	if (!raw)
		return ERR_NO_MEMORY;
	/* libpq's memory is freed by libpq; the caller gets memory of malloc, NUL behind it. */
	unsigned char *copy = malloc(len + 1);
	if (copy) {
		memcpy(copy, raw, len);
		copy[len] = '\0';
	}
	PQfreemem(raw);
	if (!copy)
		return ERR_NO_MEMORY;
	*ret = copy;
	*ret_len = len;
	return 0;
}
