/* SPDX-License-Identifier: Apache-2.0
 * Matches paths with patterns, segment by segment. A literal segment wins over a parameter when
 * both fit, whatever the order of the rows. Called by event loops. */
#include "server/http/router.h"

#include <stdio.h>
#include <string.h>

enum { SCORE_NONE = -1, SCORE_LITERAL = 1 };

/* The i-th segment of a pattern ("{id}" or "jobs"); false behind the last. */
static bool pattern_segment(const char **at, const char **ret, size_t *ret_len)
{
	if (**at != '/')
		return false;
	*ret = *at + 1;
	*ret_len = strcspn(*ret, "/");
	*at = *ret + *ret_len;
	return true;
}

static bool is_param(const char *segment, size_t len)
{
	return len > 2 && segment[0] == '{' && segment[len - 1] == '}';
}

/* Dots as whole names are never ours, and empty ones are no value. */
static bool usable_value(const char *value)
{
	return value[0] != '\0' && strcmp(value, ".") != 0 && strcmp(value, "..") != 0;
}

/* Number of literal segments that match, or SCORE_NONE. */
static int score(const char *pattern, const struct request_data *d)
{
	const char *segment;
	size_t len;
	int literals = 0;
	int i = 0;
	for (; pattern_segment(&pattern, &segment, &len); i++) {
		if (i >= d->segment_count)
			return SCORE_NONE;
		const char *value = d->segments[i];
		if (is_param(segment, len)) {
			if (!usable_value(value))
				return SCORE_NONE;
		} else if (strlen(value) == len && memcmp(value, segment, len) == 0) {
			literals += SCORE_LITERAL;
		} else {
			return SCORE_NONE;
		}
	}
	return i == d->segment_count ? literals : SCORE_NONE;
}

static int bind_params(
	const struct request_data *d, struct arena *arena, struct request *r, struct err *err)
{
	const char *pattern = r->route->pattern;
	const char *segment;
	size_t len;
	for (int i = 0; pattern_segment(&pattern, &segment, &len); i++) {
		if (!is_param(segment, len))
			continue;
		if (r->path_param_count == REQUEST_PATH_PARAMS_MAX)
			return err_set(err, ERR_INTERNAL, NULL, "Too many path parameters");
		char *name = arena_strndup(arena, segment + 1, len - 2);
		if (!name)
			return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
		r->path_params[r->path_param_count++] =
			(struct path_param){ .name = name, .value = d->segments[i] };
	}
	return 0;
}

static void allow(char ret_allow[static ROUTER_ALLOW_MAX], const char *method)
{
	size_t len = strlen(ret_allow);
	const char *also = strcmp(method, "GET") == 0 ? ", HEAD" : "";
	(void)snprintf(
		ret_allow + len, ROUTER_ALLOW_MAX - len, "%s%s%s", len > 0 ? ", " : "", method, also);
}

int router_match(const struct route *routes, size_t count, const char *method,
	const struct request_data *d, struct arena *arena, struct request *r,
	char ret_allow[static ROUTER_ALLOW_MAX], struct err *err)
{
	const char *want = strcmp(method, "HEAD") == 0 ? "GET" : method;
	int best = SCORE_NONE;
	int best_path = SCORE_NONE;
	ret_allow[0] = '\0';
	for (size_t i = 0; i < count; i++) {
		int s = score(routes[i].pattern, d);
		if (s == SCORE_NONE)
			continue;
		if (s > best_path)
			best_path = s;
		allow(ret_allow, routes[i].method);
		if (strcmp(routes[i].method, want) == 0 && s > best) {
			best = s;
			r->route = &routes[i];
		}
	}
	if (best != SCORE_NONE)
		return bind_params(d, arena, r, err);
	if (best_path != SCORE_NONE)
		return err_set(err, ERR_METHOD, NULL, "This path takes: %s", ret_allow);
	return err_set(err, ERR_NOT_FOUND, NULL, "There is no such path");
}
