/* SPDX-License-Identifier: Apache-2.0
 * Arguments of requests that are not JSON bodies: ids in paths, pages and filters in queries, sets
 * of regions. Everything is bounded and checked here, before any of it reaches SQL. Called by
 * handlers; thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/json/reader.h"
#include "core/model/page.h"
#include "core/model/residency.h"
#include "server/http/request.h"

enum {
	ARGS_METADATA_MAX = 16,
	ARGS_METADATA_KEY_MAX = 64,    /* characters */
	ARGS_METADATA_VALUE_MAX = 512, /* characters */
};

/* The path parameter as an id of this prefix. Anything else is answered like an id that is
 * unknown: NOT_FOUND, "There is no such <noun>". Borrowed from the request. */
int args_id(const struct request *req, const char *param, const char *prefix, const char *noun,
	const char **ret, struct err *err) must_check;

/* after, before and limit. */
int args_page(
	const struct request *req, const char *prefix, struct page *ret, struct err *err) must_check;

/* Refuses query arguments that are neither in the NULL-terminated list nor tenant_id. A name that
 * ends in '[' stands for name[anything]. */
int args_only(const struct request *req, const char *const *names, struct err *err) must_check;

/* One of the NULL-terminated words, or NULL when absent. */
int args_word(const struct request *req, const char *name, const char *const *words,
	const char **ret, struct err *err) must_check;
/* A short name ([A-Za-z0-9._-]), or NULL when absent. */
int args_name(const struct request *req, const char *name, size_t max, const char **ret,
	struct err *err) must_check;

/* metadata[k]=v of the query as a JSON object in the request's arena; NULL when there is none. */
int args_metadata(struct request *req, const char **ret_json, struct err *err) must_check;

/* Regions separated by commas. INVALID_VALUE naming param. */
int args_regions(
	const char *text, const char *param, struct residency_set *ret, struct err *err) must_check;
/* A JSON array of regions at key, inside an object being read; left empty when absent. */
void args_json_regions(struct json_obj *o, const char *key, struct residency_set *ret);

/* Text that people wrote: valid UTF-8, no control characters, within max characters. */
int args_check_text(const char *text, const char *param, size_t max, struct err *err) must_check;
