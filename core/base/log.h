/* SPDX-License-Identifier: Apache-2.0
 * Structured logs: one JSON object a line on standard error. Thread-safe. Only programs log;
 * libraries return errors. log_info("job.assigned", LOG_STR("job_id", id), LOG_INT("devices", 2));
 */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_kind { LOG_KIND_END, LOG_KIND_STR, LOG_KIND_INT, LOG_KIND_F64, LOG_KIND_BOOL };

struct log_field {
	enum log_kind kind;
	const char *key;
	const char *str; /* NULL prints null */
	int64_t i64;
	double f64;
};

#define LOG_STR(k, v) ((struct log_field){ .kind = LOG_KIND_STR, .key = (k), .str = (v) })
#define LOG_INT(k, v) ((struct log_field){ .kind = LOG_KIND_INT, .key = (k), .i64 = (int64_t)(v) })
#define LOG_F64(k, v) ((struct log_field){ .kind = LOG_KIND_F64, .key = (k), .f64 = (v) })
#define LOG_BOOL(k, v) ((struct log_field){ .kind = LOG_KIND_BOOL, .key = (k), .i64 = (v) })
#define LOG_END ((struct log_field){ .kind = LOG_KIND_END })

#define log_debug(event, ...) \
	log_emit(LOG_DEBUG, event, (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ) LOG_END })
#define log_info(event, ...) \
	log_emit(LOG_INFO, event, (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ) LOG_END })
#define log_warn(event, ...) \
	log_emit(LOG_WARN, event, (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ) LOG_END })
#define log_error(event, ...) \
	log_emit(LOG_ERROR, event, (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ) LOG_END })
/* The fields of a struct err, for use inside a log call. */
#define LOG_ERR(e)                                                                 \
	LOG_STR("error", err_info((e)->code)->slug), LOG_STR("message", (e)->message), \
		LOG_STR("param", (e)->param)

/* Process-wide: program name in each line, and the least level that is written. Call once from
 * main. */
void log_setup(const char *program, enum log_level least);
/* Thread-local request id, added to each line of this thread; NULL clears it. Not copied: must
 * outlive its use. */
void log_set_request_id(const char *id);
void log_emit(enum log_level level, const char *event, const struct log_field *fields);
