/* SPDX-License-Identifier: Apache-2.0
 * Pieces of SQL text that several stores share. */
#pragma once

/* A timestamptz as RFC 3339, UTC, milliseconds; null stays null. */
#define SQL_TIME(expr) "to_char((" expr ") at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
/* Whole seconds since 1970, where the wire shape is OpenAI's. */
#define SQL_UNIX(expr) "floor(extract(epoch from " expr "))::bigint"
/* Microseconds since 1970, exactly (extract is numeric). */
#define SQL_MICROS(expr) "(extract(epoch from " expr ") * 1000000)::bigint"
/* Length of a range in milliseconds and in microseconds; null when it is empty. */
#define SQL_RANGE_MS(range) \
	"(extract(epoch from upper(" range ") - lower(" range ")) * 1000)::bigint"
#define SQL_RANGE_MICROS(range) \
	"(extract(epoch from upper(" range ") - lower(" range ")) * 1000000)::bigint"
