/* SPDX-License-Identifier: Apache-2.0
 * Pieces of SQL text that several stores share. */
#pragma once

/* A timestamptz as RFC 3339, UTC, milliseconds; null stays null. */
#define SQL_TIME(expr) "to_char((" expr ") at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
/* Whole seconds since 1970, where the wire shape is OpenAI's. */
#define SQL_UNIX(expr) "floor(extract(epoch from " expr "))::bigint"
