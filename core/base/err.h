/* SPDX-License-Identifier: Apache-2.0
 * The error type of the whole program. Every fallible function returns 0 or one of these negative
 * codes and may fill a caller's struct err with the detail that a reply or a log line needs.
 * Libraries return errors; programs log them once. */
#pragma once

#include "core/base/attr.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	ERR_MESSAGE_MAX = 768,
	ERR_PARAM_MAX = 160,
};

/* The one list: name, number, HTTP status, public slug (RFC 9457 `type` tail and OpenAI `code`),
 * OpenAI `type`, title. api-spec/errors.yaml repeats it; tests/lint compares the two. Numbers are
 * never reused. */
#define ERR_LIST(X)                                                                                \
	X(INVALID_REQUEST, 1, 400, "invalid_request", "invalid_request_error",                         \
		"The request is not valid")                                                                \
	X(INVALID_JSON, 2, 400, "invalid_json", "invalid_request_error", "The body is not valid JSON") \
	X(UNKNOWN_FIELD, 3, 400, "unknown_field", "invalid_request_error",                             \
		"The body has a field that is not known")                                                  \
	X(INVALID_TYPE, 4, 400, "invalid_type", "invalid_request_error", "A field has the wrong type") \
	X(INVALID_VALUE, 5, 400, "invalid_value", "invalid_request_error",                             \
		"A field has a value that is not allowed")                                                 \
	X(MISSING_FIELD, 6, 400, "missing_field", "invalid_request_error",                             \
		"A required field is missing")                                                             \
	X(INVALID_DATA, 7, 400, "invalid_data", "invalid_request_error", "A data file is not valid")   \
	X(PLAN_TOO_LARGE, 8, 400, "plan_exceeds_memory", "invalid_request_error",                      \
		"The plan does not fit the device")                                                        \
	X(BAD_FRAMING, 9, 400, "bad_framing", "invalid_request_error",                                 \
		"The HTTP request is not framed correctly")                                                \
	X(UNAUTHENTICATED, 20, 401, "unauthenticated", "authentication_error",                         \
		"No valid credential was given")                                                           \
	X(FORBIDDEN, 21, 403, "forbidden", "permission_error", "The credential does not allow this")   \
	X(RESIDENCY, 22, 403, "residency_refused", "permission_error",                                 \
		"Data residency does not allow this")                                                      \
	X(NOT_FOUND, 23, 404, "not_found", "invalid_request_error", "There is no such object")         \
	X(METHOD, 24, 405, "method_not_allowed", "invalid_request_error",                              \
		"The method is not allowed here")                                                          \
	X(TIMEOUT, 25, 408, "request_timeout", "timeout_error", "The request took too long to arrive") \
	X(CONFLICT, 26, 409, "conflict", "conflict_error", "The object's state does not allow this")   \
	X(IDEMPOTENCY_BUSY, 27, 409, "idempotency_in_flight", "conflict_error",                        \
		"The same request is still being served")                                                  \
	X(LENGTH_REQUIRED, 28, 411, "length_required", "invalid_request_error",                        \
		"A body length is required")                                                               \
	X(TOO_LARGE, 29, 413, "too_large", "invalid_request_error", "The request is too large")        \
	X(MEDIA_TYPE, 30, 415, "unsupported_media_type", "invalid_request_error",                      \
		"The content type is not supported")                                                       \
	X(RANGE, 31, 416, "range_not_satisfiable", "invalid_request_error",                            \
		"The range cannot be served")                                                              \
	X(IDEMPOTENCY_REUSE, 32, 422, "idempotency_key_reuse", "invalid_request_error",                \
		"The idempotency key was used with another request")                                       \
	X(RATE_LIMITED, 33, 429, "rate_limited", "rate_limit_error", "Too many requests")              \
	X(QUOTA, 34, 429, "quota_exceeded", "rate_limit_error", "A quota is used up")                  \
	X(HEADERS_TOO_LARGE, 35, 431, "headers_too_large", "invalid_request_error",                    \
		"The request headers are too large")                                                       \
	X(INTERNAL, 50, 500, "internal", "server_error", "Something failed on our side")               \
	X(NO_MEMORY, 51, 503, "out_of_memory", "server_error",                                         \
		"A memory limit of the service was reached")                                               \
	X(DATABASE, 52, 503, "database_unavailable", "server_error", "The database cannot be reached") \
	X(OVERLOADED, 53, 503, "overloaded", "server_error", "The service is busy")                    \
	X(UNAVAILABLE, 54, 503, "unavailable", "server_error", "The service is not available")         \
	X(IO, 55, 500, "io", "server_error", "Reading or writing a file failed")                       \
	X(LEASE_LOST, 60, 409, "lease_lost", "conflict_error",                                         \
		"The attempt's lease belongs to somebody else")                                            \
	X(NETWORK, 61, 503, "network", "server_error", "A peer could not be reached")                  \
	X(DB_CONFLICT, 62, 503, "database_conflict", "server_error",                                   \
		"A concurrent change won; try again")                                                      \
	X(DB_UNIQUE, 63, 409, "already_exists", "conflict_error", "Such an object exists already")     \
	X(CANCELLED, 64, 409, "cancelled", "conflict_error", "The work was cancelled")

enum err_code {
	ERR_OK = 0,
#define X(name, number, status, slug, type, title) ERR_##name = -(number),
	ERR_LIST(X)
#undef X
};

/* What one code is to the outside. */
struct err_info {
	int code;
	int http_status;
	const char *name; /* "INVALID_JSON" */
	const char *slug;
	const char *type;
	const char *title;
};

/* Detail of one failure. Zero-initialise (`struct err err = {0}`). Owned by the caller, holds no
 * memory. */
struct err {
	int code;
	char message[ERR_MESSAGE_MAX]; /* a sentence for people: what, where, what to do */
	char param[ERR_PARAM_MAX]; /* JSON path ("$.model.config.n_head"), file field or header; "" when
								  none */
	char sqlstate[6];          /* set by core/db */
	int retry_after_s;         /* > 0: sent as Retry-After */
};

/* Fills err (when not NULL) and returns code, so that `return err_set(...)` reads well. param may
 * be NULL. */
int err_set(struct err *err, int code, const char *param, const char *fmt, ...) printf_like(4, 5);

/* Like err_set for a failed system call: appends ": " and strerror(errnum). */
int err_errno(struct err *err, int code, int errnum, const char *fmt, ...) printf_like(4, 5);

/* Looks a code up; an unknown one reads as INTERNAL. Never NULL. Thread-safe. */
const struct err_info *err_info(int code);

/* All entries, for tests and for the OpenAPI comparison. */
const struct err_info *err_all(size_t *ret_count);
