/* SPDX-License-Identifier: Apache-2.0
 * Settings from defaults, a file, the environment and arguments. Called once by each main, before
 * threads start. */
#include "core/base/settings.h"

#include "core/base/num.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
	SETTINGS_MAX = 128,
	SETTINGS_KEY_MAX = 64,
	SETTINGS_LINE_MAX = 1024,
	SETTINGS_SOURCE_MAX = 256,
};

#define ENV_PREFIX "TRAINYARD_"

struct load {
	const struct setting *table;
	size_t count;
	char *target;
	bool given[SETTINGS_MAX];
	struct err *err;
};

static const struct setting *find(const struct load *l, const char *key, size_t key_len)
{
	for (size_t i = 0; i < l->count; i++) {
		const char *name = l->table[i].key;
		if (strlen(name) == key_len && strncmp(name, key, key_len) == 0)
			return &l->table[i];
	}
	return NULL;
}

static void env_name(const struct setting *s, char ret[static SETTINGS_KEY_MAX])
{
	int len = snprintf(ret, SETTINGS_KEY_MAX, ENV_PREFIX "%s", s->key);
	assert(len < SETTINGS_KEY_MAX);
	(void)len;
	for (char *p = ret; *p; p++)
		*p = (char)toupper((unsigned char)*p);
}

static int parse_bool(const char *text, bool *ret)
{
	static const char *const yes[] = { "true", "yes", "on", "1" };
	static const char *const no[] = { "false", "no", "off", "0" };
	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
			*ret = strcasecmp(text, yes[i]) == 0;
			return 0;
		}
	}
	return ERR_INVALID_VALUE;
}

/* The value that a message may show. */
static const char *shown(const struct setting *s, const char *text)
{
	return s->secret ? "(secret)" : text;
}

static int set_value(struct load *l, const struct setting *s, const char *text, const char *source)
{
	char *slot = l->target + s->offset;
	int64_t number;
	bool flag;
	switch (s->kind) {
	case SETTING_STR:
		if (strlen(text) >= SETTING_STR_MAX)
			return err_set(l->err, ERR_INVALID_VALUE, s->key,
				"setting %s (%s): the value is longer than %d bytes", s->key, source,
				SETTING_STR_MAX - 1);
		memcpy(slot, text, strlen(text) + 1);
		break;
	case SETTING_I64:
		if (num_parse_i64(text, s->min, s->max, &number) < 0)
			return err_set(l->err, ERR_INVALID_VALUE, s->key,
				"setting %s (%s): \"%s\" is not a whole number from %" PRId64 " to %" PRId64,
				s->key, source, shown(s, text), s->min, s->max);
		memcpy(slot, &number, sizeof(number));
		break;
	case SETTING_BOOL:
		if (parse_bool(text, &flag) < 0)
			return err_set(l->err, ERR_INVALID_VALUE, s->key,
				"setting %s (%s): \"%s\" is neither true nor false", s->key, source,
				shown(s, text));
		memcpy(slot, &flag, sizeof(flag));
		break;
	}
	l->given[s - l->table] = true;
	return 0;
}

static int load_defaults(struct load *l)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct setting *s = &l->table[i];
		if (!s->default_value)
			continue;
		int r = set_value(l, s, s->default_value, "default");
		if (r < 0)
			return r;
	}
	return 0;
}

static char *trim(char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	size_t len = strlen(text);
	while (len > 0 && isspace((unsigned char)text[len - 1]))
		text[--len] = '\0';
	return text;
}

/* One line of the file; `seen` refuses a key that is given twice. */
static int load_line(struct load *l, char *line, const char *source, bool seen[SETTINGS_MAX])
{
	char *text = trim(line);
	if (*text == '\0' || *text == '#')
		return 0;
	char *equals = strchr(text, '=');
	if (!equals)
		return err_set(
			l->err, ERR_INVALID_VALUE, NULL, "%s: the line is not `key = value`", source);
	*equals = '\0';
	char *key = trim(text);
	char *value = trim(equals + 1);
	const struct setting *s = find(l, key, strlen(key));
	if (!s)
		return err_set(l->err, ERR_UNKNOWN_FIELD, key, "setting %s (%s): there is no such setting",
			key, source);
	if (seen[s - l->table])
		return err_set(
			l->err, ERR_INVALID_VALUE, key, "setting %s (%s): it was given before", key, source);
	seen[s - l->table] = true;
	return set_value(l, s, value, source);
}

static void fclosep(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

static int load_file(struct load *l, const char *path)
{
	cleanup(fclosep) FILE *f = fopen(path, "re");
	if (!f)
		return err_errno(l->err, ERR_IO, errno, "settings file %s", path);
	bool seen[SETTINGS_MAX] = { false };
	char line[SETTINGS_LINE_MAX];
	for (int number = 1; fgets(line, sizeof(line), f); number++) {
		char source[SETTINGS_SOURCE_MAX];
		(void)snprintf(source, sizeof(source), "%s line %d", path, number);
		if (!strchr(line, '\n') && strlen(line) == sizeof(line) - 1)
			return err_set(l->err, ERR_INVALID_VALUE, NULL, "%s: the line is longer than %d bytes",
				source, SETTINGS_LINE_MAX - 2);
		int r = load_line(l, line, source, seen);
		if (r < 0)
			return r;
	}
	if (ferror(f))
		return err_errno(l->err, ERR_IO, errno, "settings file %s", path);
	return 0;
}

static int load_env(struct load *l)
{
	for (size_t i = 0; i < l->count; i++) {
		char name[SETTINGS_KEY_MAX];
		env_name(&l->table[i], name);
		const char *value = getenv(name);
		if (!value)
			continue;
		char source[SETTINGS_SOURCE_MAX];
		(void)snprintf(source, sizeof(source), "environment %s", name);
		int r = set_value(l, &l->table[i], value, source);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The row that `--key=value` or `--the-key=value` means, NULL when it means none. */
static const struct setting *find_argument(
	const struct load *l, const char *arg, const char **ret_value)
{
	const char *equals = strchr(arg, '=');
	if (strncmp(arg, "--", 2) != 0 || !equals)
		return NULL;
	size_t len = (size_t)(equals - (arg + 2));
	char key[SETTINGS_KEY_MAX];
	if (len >= sizeof(key))
		return NULL;
	for (size_t i = 0; i < len; i++)
		key[i] = arg[2 + i] == '-' ? '_' : arg[2 + i];
	*ret_value = equals + 1;
	return find(l, key, len);
}

static int load_arguments(struct load *l, int argc, char **argv, int *ret_rest)
{
	int at = 1;
	for (; at < argc; at++) {
		const char *value;
		const struct setting *s = find_argument(l, argv[at], &value);
		if (!s)
			break;
		char source[SETTINGS_SOURCE_MAX];
		(void)snprintf(source, sizeof(source), "argument %d", at);
		int r = set_value(l, s, value, source);
		if (r < 0)
			return r;
	}
	*ret_rest = at < argc ? at : argc;
	return 0;
}

int settings_load(const struct setting *table, size_t count, const char *file, int argc,
	char **argv, void *ret_settings, int *ret_rest, struct err *err)
{
	assert(count <= SETTINGS_MAX);
	struct load l = { .table = table, .count = count, .target = ret_settings, .err = err };
	int rest = argc;
	int r = load_defaults(&l);
	if (r == 0 && file)
		r = load_file(&l, file);
	if (r == 0)
		r = load_env(&l);
	if (r == 0)
		r = load_arguments(&l, argc, argv, &rest);
	if (r < 0)
		return r;
	for (size_t i = 0; i < count; i++) {
		char name[SETTINGS_KEY_MAX];
		env_name(&table[i], name);
		if (!l.given[i])
			return err_set(err, ERR_MISSING_FIELD, table[i].key,
				"setting %s is required: give --%s=VALUE, %s, or a line in the settings file",
				table[i].key, table[i].key, name);
	}
	if (ret_rest)
		*ret_rest = rest;
	return 0;
}

int settings_print(const struct setting *table, size_t count, struct buf *out)
{
	(void)buf_str(out, "| Key | Environment | Default | Meaning |\n|---|---|---|---|\n");
	for (size_t i = 0; i < count; i++) {
		const struct setting *s = &table[i];
		char name[SETTINGS_KEY_MAX];
		env_name(s, name);
		(void)buf_printf(out, "| `%s` | `%s` | ", s->key, name);
		if (!s->default_value)
			(void)buf_str(out, "required");
		else if (s->default_value[0] == '\0')
			(void)buf_str(out, "(empty)");
		else
			(void)buf_printf(out, "`%s`", shown(s, s->default_value));
		(void)buf_printf(out, " | %s", s->doc);
		if (s->kind == SETTING_I64)
			(void)buf_printf(out, " (%" PRId64 " to %" PRId64 ")", s->min, s->max);
		(void)buf_str(out, " |\n");
	}
	return out->failed;
}
