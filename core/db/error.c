/* SPDX-License-Identifier: Apache-2.0
 * From SQLSTATE to our error list. Called by query.c and connect.c. */
#include "core/db/db_private.h"

#include <string.h>

/* First row that fits wins; a prefix of two is an SQLSTATE class. */
static const struct {
	const char *prefix;
	int code;
} MAPPING[] = {
	{ "40001", ERR_DB_CONFLICT },   /* serialization failure */
	{ "40P01", ERR_DB_CONFLICT },   /* deadlock */
	{ "55P03", ERR_DB_CONFLICT },   /* lock timeout */
	{ "23505", ERR_DB_UNIQUE },     /* unique violation */
	{ "23P01", ERR_DB_UNIQUE },     /* exclusion violation */
	{ "22021", ERR_INVALID_VALUE }, /* text that is not UTF-8 */
	{ "25P03", ERR_DATABASE },      /* idle in transaction for too long */
	{ "57", ERR_DATABASE },         /* cancelled by a timeout, shut down, starting up */
	{ "53", ERR_DATABASE },         /* out of connections, memory, disk */
	{ "08", ERR_DATABASE },         /* connection */
	{ "58", ERR_DATABASE },         /* the server's own system errors */
	{ "28", ERR_DATABASE },         /* refused credentials */
	{ "3D000", ERR_DATABASE },      /* no such database */
};

static int code_of(const char *sqlstate)
{
	for (size_t i = 0; i < ARRAY_LEN(MAPPING); i++) {
		if (strncmp(sqlstate, MAPPING[i].prefix, strlen(MAPPING[i].prefix)) == 0)
			return MAPPING[i].code;
	}
	return ERR_INTERNAL;
}

/* libpq's texts end in a newline. */
static int trimmed_len(const char *text)
{
	size_t len = strlen(text);
	while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' '))
		len--;
	return (int)len;
}

int db_error_conn(struct db_conn *conn, struct err *err)
{
	const char *text = PQerrorMessage(conn->pg);
	conn->broken = true;
	return err_set(err, ERR_DATABASE, NULL, "%.*s", trimmed_len(text), text);
}

int db_error_result(struct db_conn *conn, const PGresult *result, struct err *err)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (!sqlstate)
		return db_error_conn(conn, err);

	int code = code_of(sqlstate);
	/* The plan or the statement is gone (a migration ran, somebody said DEALLOCATE): a new
	 * connection prepares anew. */
	const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	if (strcmp(sqlstate, "26000") == 0 ||
		(strcmp(sqlstate, "0A000") == 0 && primary && strstr(primary, "cached plan"))) {
		code = ERR_DB_CONFLICT;
		conn->broken = true;
	}
	if (PQstatus(conn->pg) != CONNECTION_OK)
		conn->broken = true;

	const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
	const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
	(void)err_set(err, code, constraint, "%s (SQLSTATE %s)%s%s", primary ? primary : "no message",
		sqlstate, detail ? ": " : "", detail ? detail : "");
	if (err)
		memcpy(err->sqlstate, sqlstate, strnlen(sqlstate, sizeof(err->sqlstate) - 1));
	return code;
}
