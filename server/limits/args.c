/* SPDX-License-Identifier: Apache-2.0
 * Reading paths and queries. Thread-safe. */
#include "server/limits/args.h"

#include "core/base/ident.h"
#include "core/base/utf8.h"
#include "core/json/writer.h"

#include <stdio.h>
#include <string.h>

int args_id(const struct request *req, const char *param, const char *prefix, const char *noun,
	const char **ret, struct err *err)
{
	const char *value = request_param(req, param);
	if (!value || !ident_is(value, prefix))
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such %s", noun);
	*ret = value;
	return 0;
}

static int cursor(const struct request *req, const char *name, const char *prefix,
	char ret_id[static IDENT_MAX], struct err *err)
{
	const char *value = request_query(req, name);
	if (!value)
		return 0;
	if (!ident_is(value, prefix))
		return err_set(
			err, ERR_INVALID_VALUE, name, "%s must be an id of this list (%s_…)", name, prefix);
	snprintf(ret_id, IDENT_MAX, "%s", value);
	return 0;
}

int args_page(const struct request *req, const char *prefix, struct page *ret, struct err *err)
{
	struct page page = { 0 };
	int rc = cursor(req, "after", prefix, page.after, err);
	if (rc < 0)
		return rc;
	rc = cursor(req, "before", prefix, page.before, err);
	if (rc < 0)
		return rc;
	int64_t limit = PAGE_LIMIT_DEFAULT;
	rc = request_query_i64(req, "limit", 1, PAGE_LIMIT_MAX, PAGE_LIMIT_DEFAULT, &limit, err);
	if (rc < 0)
		return rc;
	page.limit = (int)limit;
	*ret = page;
	return 0;
}

struct only {
	const char *const *names;
	char unknown[64];
};

static bool name_matches(const char *known, const char *name)
{
	size_t n = strlen(known);
	if (known[n - 1] == '[')
		return strncmp(name, known, n) == 0;
	return strcmp(name, known) == 0;
}

static void check_name(void *ctx, const char *name, const char *value)
{
	struct only *only = ctx;
	(void)value;
	if (only->unknown[0] || strcmp(name, "tenant_id") == 0)
		return;
	for (int i = 0; only->names[i]; i++)
		if (name_matches(only->names[i], name))
			return;
	bool printable = name[0] != '\0';
	for (const char *c = name; *c; c++)
		printable = printable && *c > ' ' && *c < 0x7f;
	snprintf(only->unknown, sizeof(only->unknown), "%s", printable ? name : "(unreadable)");
}

int args_only(const struct request *req, const char *const *names, struct err *err)
{
	struct only only = { .names = names };
	request_each_query(req, check_name, &only);
	if (only.unknown[0])
		return err_set(err, ERR_UNKNOWN_FIELD, only.unknown,
			"The query has an argument that is not known here: %s", only.unknown);
	return 0;
}

int args_word(const struct request *req, const char *name, const char *const *words,
	const char **ret, struct err *err)
{
	const char *value = request_query(req, name);
	*ret = NULL;
	if (!value)
		return 0;
	char list[256] = "";
	for (int i = 0; words[i]; i++) {
		if (strcmp(words[i], value) == 0) {
			*ret = words[i];
			return 0;
		}
		size_t n = strlen(list);
		snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", words[i]);
	}
	return err_set(err, ERR_INVALID_VALUE, name, "%s must be one of: %s", name, list);
}

int args_name(
	const struct request *req, const char *name, size_t max, const char **ret, struct err *err)
{
	const char *value = request_query(req, name);
	*ret = NULL;
	if (!value)
		return 0;
	size_t n = strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
	if (n == 0 || value[n] != '\0' || n > max)
		return err_set(err, ERR_INVALID_VALUE, name,
			"%s must be 1 to %zu letters, digits, dots, dashes or underscores", name, max);
	*ret = value;
	return 0;
}

int args_check_text(const char *text, const char *param, size_t max, struct err *err)
{
	size_t bytes = strlen(text);
	if (!utf8_is_valid(text, bytes))
		return err_set(err, ERR_INVALID_VALUE, param, "%s is not valid UTF-8", param);
	size_t characters = 0;
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c < ' ' || c == 0x7f)
			return err_set(
				err, ERR_INVALID_VALUE, param, "%s has a control character at byte %zu", param, i);
		characters += (c & 0xc0) != 0x80;
	}
	if (characters > max)
		return err_set(err, ERR_INVALID_VALUE, param,
			"%s has %zu characters; at most %zu are allowed", param, characters, max);
	return 0;
}

struct metadata {
	struct json_writer w;
	int count;
	int code;
	struct err *err;
};

static void add_metadata(void *ctx, const char *name, const char *value)
{
	struct metadata *m = ctx;
	size_t n = strlen(name);
	if (m->code < 0 || strncmp(name, "metadata[", 9) != 0)
		return;
	if (n < 11 || name[n - 1] != ']' || n - 10 > (size_t)ARGS_METADATA_KEY_MAX * 4 ||
		++m->count > ARGS_METADATA_MAX) {
		m->code = err_set(m->err, ERR_INVALID_VALUE, "metadata",
			"Filters by metadata are written metadata[key]=value, at most %d of them",
			ARGS_METADATA_MAX);
		return;
	}
	char key[ARGS_METADATA_KEY_MAX * 4 + 1];
	snprintf(key, sizeof(key), "%.*s", (int)(n - 10), name + 9);
	m->code = args_check_text(key, "metadata", ARGS_METADATA_KEY_MAX, m->err);
	if (m->code == 0)
		m->code = args_check_text(value, "metadata", ARGS_METADATA_VALUE_MAX, m->err);
	if (m->code == 0)
		json_field_str(&m->w, key, value);
}

int args_metadata(struct request *req, const char **ret_json, struct err *err)
{
	struct buf text;
	buf_init(&text, JSON_BYTES_MAX);
	struct metadata m = { .err = err };
	json_writer_init(&m.w, &text);
	json_begin_object(&m.w);
	request_each_query(req, add_metadata, &m);
	json_end_object(&m.w);
	int rc = m.code;
	const char *json = NULL;
	if (rc == 0 && m.count > 0) {
		json = text.failed ? NULL : arena_strdup(&req->arena, buf_cstr(&text));
		if (!json)
			rc = err_set(err, ERR_NO_MEMORY, NULL, "No memory for the filter");
	}
	buf_finish(&text);
	if (rc == 0)
		*ret_json = json;
	return rc;
}

int args_regions(const char *text, const char *param, struct residency_set *ret, struct err *err)
{
	struct residency_set set = { 0 };
	for (const char *at = text;; at++) {
		size_t n = strcspn(at, ",");
		char region[SPEC_REGION_MAX];
		if (n == 0 || n >= sizeof(region))
			return err_set(
				err, ERR_INVALID_VALUE, param, "%s must be regions separated by commas", param);
		memcpy(region, at, n);
		region[n] = '\0';
		struct err detail = { 0 };
		int rc = residency_set_add(&set, region, &detail);
		if (rc < 0)
			return err_set(err, rc, param, "%s", detail.message);
		at += n;
		if (*at == '\0')
			break;
	}
	*ret = set;
	return 0;
}

/* One element of an array, at its own path ("$.residency[1]"). */
static int add_region(const struct json_obj *o, const char *key, size_t i, const struct json_val *v,
	struct residency_set *set)
{
	struct json_obj at = *o;
	struct err detail = { 0 };
	char name[80];
	(void)snprintf(name, sizeof(name), "%s[%zu]", key, i);
	(void)snprintf(at.path, sizeof(at.path), "%.*s.%s", (int)(sizeof(at.path) - sizeof(name) - 1),
		o->path, name);
	if (json_kind(v) != JSON_STR)
		json_obj_fail(&at, ERR_INVALID_TYPE, NULL, "%s must be the name of a region", at.path);
	else if (residency_set_add(set, json_str_or(v, ""), &detail) < 0)
		json_obj_fail(&at, ERR_INVALID_VALUE, NULL, "%s: %s", at.path, detail.message);
	return at.code;
}

void args_json_regions(struct json_obj *o, const char *key, struct residency_set *ret)
{
	const struct json_val *list = NULL;
	json_obj_array(o, key, SPEC_REGIONS_MAX, &list);
	if (!list || o->code < 0)
		return;
	if (json_array_len(list) == 0)
		json_obj_fail(o, ERR_INVALID_VALUE, key, "At least one region must be named");
	struct residency_set set = { 0 };
	for (size_t i = 0; i < json_array_len(list) && o->code == 0; i++)
		json_obj_adopt(o, add_region(o, key, i, json_array_at(list, i), &set));
	if (o->code == 0)
		*ret = set;
}
