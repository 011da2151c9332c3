/* SPDX-License-Identifier: Apache-2.0
 * Forward-only migrations. Called by the server's start and by tests, on a connection of their own;
 * the advisory lock lets any number of servers start at once. */
#include "core/db/migrate.h"

#include "core/base/file.h"
#include "core/crypto/digest.h"
#include "core/db/db_private.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MIGRATIONS_MAX = 1000,
	MIGRATION_BYTES_MAX = 1024 * 1024,
	MIGRATION_NAME_MAX = 128,
	MIGRATION_PATH_MAX = 4096,
	MIGRATION_TIMEOUT_MS = 600 * 1000,
	VERSION_DIGITS = 4,
};

static const int64_t MIGRATION_LOCK_KEY = 0x7472616e79617264; /* "tranyard" */

struct migration {
	int version;
	char name[MIGRATION_NAME_MAX];
	char hex[DIGEST_HEX_MAX];
	char *sql;
};

struct migrations {
	struct migration *items;
	int count;
};

static void migrations_finish(struct migrations *m)
{
	for (int i = 0; i < m->count; i++)
		free(m->items[i].sql);
	free(m->items);
}

static void closedirp(DIR **dir)
{
	if (*dir)
		(void)closedir(*dir);
}

/* NNNN_name.sql, name of a-z 0-9 _. Returns the version, 0 when the name is not like that. */
static int version_of(const char *name)
{
	size_t len = strlen(name);
	if (len < VERSION_DIGITS + sizeof("_x.sql") - 1 || len >= MIGRATION_NAME_MAX ||
		strspn(name, "0123456789") != VERSION_DIGITS || name[VERSION_DIGITS] != '_' ||
		strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != len - strlen(".sql"))
		return 0;
	int version = 0;
	for (int i = 0; i < VERSION_DIGITS; i++)
		version = version * 10 + (name[i] - '0');
	return version;
}

static int read_text(const char *path, char **ret, struct err *err)
{
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	int rc = file_read(path, MIGRATION_BYTES_MAX, &text, &bytes, err);
	if (rc < 0)
		return rc;
	if (memchr(text, '\0', bytes))
		return err_set(err, ERR_INTERNAL, NULL, "%s holds a NUL byte", path);
	*ret = take_ptr(text);
	return 0;
}

static int load_one(struct migrations *m, const char *folder, const char *name, struct err *err)
{
	char path[MIGRATION_PATH_MAX];
	int version = version_of(name);
	if (version == 0)
		return err_set(err, ERR_INTERNAL, NULL,
			"migration %s: the name must be like 0001_some_words.sql", name);
	if (m->count == MIGRATIONS_MAX)
		return err_set(err, ERR_INTERNAL, NULL, "more than %d migrations", MIGRATIONS_MAX);
	int len = snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (len < 0 || len >= (int)sizeof(path))
		return err_set(err, ERR_INTERNAL, NULL, "the path of migration %s is too long", name);

	struct migration *item = &m->items[m->count];
	*item = (struct migration){ .version = version };
	memcpy(item->name, name, strlen(name) + 1);
	int r = read_text(path, &item->sql, err);
	if (r < 0)
		return r;
	m->count++;
	r = digest_hex_of(item->sql, strlen(item->sql), item->hex);
	return r < 0 ? err_set(err, r, NULL, "SHA-256 of %s failed", name) : 0;
}

static int by_version(const void *a, const void *b)
{
	return ((const struct migration *)a)->version - ((const struct migration *)b)->version;
}

static int load_folder(struct migrations *m, const char *folder, struct err *err)
{
	m->items = calloc(MIGRATIONS_MAX, sizeof(*m->items));
	if (!m->items)
		return err_set(err, ERR_NO_MEMORY, NULL, "out of memory");
	cleanup(closedirp) DIR *dir = opendir(folder);
	if (!dir)
		return err_errno(err, ERR_IO, errno, "cannot open the migrations folder %s", folder);
	const struct dirent *entry;
	while ((errno = 0, entry = readdir(dir))) {
		size_t len = strlen(entry->d_name);
		if (entry->d_name[0] == '.' || len < 4 || strcmp(entry->d_name + len - 4, ".sql") != 0)
			continue;
		int r = load_one(m, folder, entry->d_name, err);
		if (r < 0)
			return r;
	}
	if (errno)
		return err_errno(err, ERR_IO, errno, "cannot list the migrations folder %s", folder);
	qsort(m->items, (size_t)m->count, sizeof(*m->items), by_version);
	for (int i = 1; i < m->count; i++) {
		if (m->items[i].version == m->items[i - 1].version)
			return err_set(err, ERR_INTERNAL, NULL, "migrations %s and %s have the same number",
				m->items[i - 1].name, m->items[i].name);
	}
	return 0;
}

/* Compares the rows with the files. Both are sorted, so applied files must be the first ones. */
static int compare(const struct migrations *m, const struct db_result *rows, struct err *err)
{
	int applied = db_rows(rows);
	for (int i = 0; i < applied; i++) {
		int version = (int)db_i64(rows, i, 0);
		const char *name = db_str(rows, i, 1);
		if (i >= m->count || m->items[i].version > version)
			return err_set(
				err, ERR_INTERNAL, NULL, "migration %s was applied, but its file is missing", name);
		if (m->items[i].version < version)
			return err_set(err, ERR_INTERNAL, NULL,
				"migration %s was never applied, but the later %s was: numbers only grow",
				m->items[i].name, name);
		if (strcmp(m->items[i].name, name) != 0)
			return err_set(err, ERR_INTERNAL, NULL, "migration %s was applied under the name %s",
				m->items[i].name, name);
		if (strcmp(m->items[i].hex, db_str(rows, i, 2)) != 0)
			return err_set(
				err, ERR_INTERNAL, NULL, "migration %s has changed since it was applied", name);
	}
	return 0;
}

static int read_applied(struct db_conn *conn, struct db_result **ret, struct err *err)
{
	return db_exec(
		conn, ret, err, "SELECT version, name, sha256 FROM schema_migrations ORDER BY version");
}

/* One file and its row, both or neither. */
static int apply(struct db_conn *conn, const struct migration *item, struct err *err)
{
	struct err cause = { 0 };
	int r = db_begin(conn, &cause);
	if (r == 0)
		r = db_script(conn, item->sql, &cause);
	if (r == 0 && PQtransactionStatus(conn->pg) != PQTRANS_INTRANS) {
		conn->broken = true;
		r = err_set(&cause, ERR_INTERNAL, NULL, "it ends the transaction that it runs in");
	}
	if (r == 0)
		r = db_exec(conn, NULL, &cause,
			"INSERT INTO schema_migrations (version, name, sha256, applied_at) "
			"VALUES ($1, $2, $3, now())",
			DB_I64(item->version), DB_TEXT(item->name), DB_TEXT(item->hex));
	if (r == 0)
		r = db_commit(conn, &cause);
	if (r < 0) {
		db_rollback(conn);
		(void)err_set(err, r, NULL, "migration %s: %s", item->name, cause.message);
		if (err)
			memcpy(err->sqlstate, cause.sqlstate, sizeof(err->sqlstate));
	}
	return r;
}

static int apply_missing(
	struct db_conn *conn, const struct migrations *m, int *ret_applied, struct err *err)
{
	int r = db_script(conn,
		"CREATE TABLE IF NOT EXISTS schema_migrations (version integer PRIMARY KEY, "
		"name text NOT NULL, sha256 text NOT NULL, applied_at timestamptz NOT NULL)",
		err);
	if (r < 0)
		return r;
	cleanup(db_result_freep) struct db_result *rows = NULL;
	r = read_applied(conn, &rows, err);
	if (r < 0)
		return r;
	r = compare(m, rows, err);
	for (int i = db_rows(rows); r == 0 && i < m->count; i++)
		r = apply(conn, &m->items[i], err);
	if (r == 0 && ret_applied)
		*ret_applied = m->count - db_rows(rows);
	return r;
}

/* A migration may take longer than a request, and so may the wait for another server's. */
static int lock(struct db_conn *conn, struct err *err)
{
	char sql[160];
	(void)snprintf(sql, sizeof(sql), "SET statement_timeout = %d; SET lock_timeout = %d",
		MIGRATION_TIMEOUT_MS, MIGRATION_TIMEOUT_MS);
	int r = db_script(conn, sql, err);
	if (r < 0)
		return r;
	conn->deadline_ms = MIGRATION_TIMEOUT_MS + DB_DEADLINE_GRACE_MS;
	return db_exec(conn, NULL, err, "SELECT pg_advisory_lock($1)", DB_I64(MIGRATION_LOCK_KEY));
}

static void unlock(struct db_conn *conn)
{
	int r = db_exec(conn, NULL, NULL, "SELECT pg_advisory_unlock($1)", DB_I64(MIGRATION_LOCK_KEY));
	if (r == 0)
		r = db_script(conn, "RESET statement_timeout; RESET lock_timeout", NULL);
	if (r < 0)
		conn->broken = true;
	conn->deadline_ms = (int64_t)conn->config->statement_timeout_ms + DB_DEADLINE_GRACE_MS;
}

int migrate_run(struct db_conn *conn, const char *folder, int *ret_applied, struct err *err)
{
	cleanup(migrations_finish) struct migrations m = { 0 };
	int r = load_folder(&m, folder, err);
	if (r < 0)
		return r;
	r = lock(conn, err);
	if (r < 0) {
		/* Its timeouts are not those of the pool any more. */
		conn->broken = true;
		return r;
	}
	r = apply_missing(conn, &m, ret_applied, err);
	unlock(conn);
	return r;
}

static int check_applied(struct db_conn *conn, const struct migrations *m, struct err *err)
{
	cleanup(db_result_freep) struct db_result *exists = NULL;
	int r = db_exec(conn, &exists, err, "SELECT to_regclass('schema_migrations') IS NOT NULL");
	if (r < 0)
		return r;
	if (!db_bool(exists, 0, 0))
		return err_set(err, ERR_UNAVAILABLE, NULL, "the database has no schema yet");
	cleanup(db_result_freep) struct db_result *rows = NULL;
	r = read_applied(conn, &rows, err);
	if (r < 0)
		return r;
	struct err cause = { 0 };
	if (compare(m, rows, &cause) < 0)
		return err_set(err, ERR_UNAVAILABLE, NULL, "%s", cause.message);
	if (db_rows(rows) < m->count)
		return err_set(err, ERR_UNAVAILABLE, NULL, "migration %s is not applied yet",
			m->items[db_rows(rows)].name);
	return 0;
}

int migrate_check(struct db_conn *conn, const char *folder, struct err *err)
{
	cleanup(migrations_finish) struct migrations m = { 0 };
	int r = load_folder(&m, folder, err);
	return r < 0 ? r : check_applied(conn, &m, err);
}
