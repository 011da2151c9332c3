/* SPDX-License-Identifier: Apache-2.0
 * Refuses requests whose framing two readers could understand differently (RFC 9112), which the
 * HTTP library lets through. Used by exchange.c before anything else looks at a request. Pure. */
#pragma once

#include "core/base/err.h"
#include "server/http/request_private.h"

#include <stdbool.h>
#include <stdint.h>

struct framing {
	int64_t content_length; /* -1 when not given */
	bool chunked;
	bool expects_continue;
};

/* method and version as sent ("HTTP/1.1"). BAD_FRAMING, naming the header. */
int framing_check(const char *method, const char *version, const struct name_value *headers,
	int count, struct framing *ret, struct err *err) must_check;

/* Where the library found the parts of the header block, which it parses in place. */
struct framing_block {
	const char *method;
	const char *target;
	size_t target_len; /* as it was before the library cut it */
	const char *version;
	size_t bytes; /* from method to the empty line's end */
};

/* Checks that method, target, version, names and values cover the block, in order and without a
 * gap: a NUL inside one of them, a folded line, a bare LF, or blanks before a colon leave one. */
int framing_check_block(const struct framing_block *b, const struct name_value *headers, int count,
	struct err *err) must_check;
