/* SPDX-License-Identifier: Apache-2.0
 * A streaming parser of multipart/form-data (RFC 7578): takes any slicing of the body, holds no
 * more than one delimiter and one header block. Used by upload.c. Pure: what it finds goes to the
 * sink. */
#pragma once

#include "core/base/err.h"

#include <stdbool.h>

enum {
	MULTIPART_BOUNDARY_MAX = 70, /* RFC 2046 */
	MULTIPART_HEADERS_MAX = 2048,
	MULTIPART_NAME_MAX = 256,
	MULTIPART_PARTS_MAX = 32,
	MULTIPART_DELIMITER_MAX = MULTIPART_BOUNDARY_MAX + 4, /* CR LF "--" boundary */
};

struct multipart_part {
	char name[MULTIPART_NAME_MAX];
	char filename[MULTIPART_NAME_MAX];
	bool has_filename;
};

struct multipart_sink {
	int (*begin)(void *ctx, const struct multipart_part *part, struct err *err);
	int (*data)(void *ctx, const char *data, size_t bytes, struct err *err);
	int (*end)(void *ctx, struct err *err);
};

enum multipart_state {
	MULTIPART_PREAMBLE,
	MULTIPART_AFTER_DELIMITER,
	MULTIPART_HEADERS,
	MULTIPART_DATA,
	MULTIPART_EPILOGUE,
};

struct multipart_parser {
	const struct multipart_sink *sink;
	void *ctx;
	enum multipart_state state;
	char delimiter[MULTIPART_DELIMITER_MAX + 1];
	size_t delimiter_len;
	size_t matched; /* bytes of the delimiter that the input has ended with so far */
	char line[MULTIPART_HEADERS_MAX]; /* what follows a delimiter, or a block of part headers */
	size_t line_len;
	int parts;
};

/* Reads the boundary of a Content-Type value. MEDIA_TYPE when it is not multipart/form-data,
 * INVALID_REQUEST when the boundary is missing or not well formed. */
int multipart_boundary(const char *content_type,
	char ret_boundary[static MULTIPART_BOUNDARY_MAX + 1], struct err *err) must_check;

void multipart_parser_init(
	struct multipart_parser *p, const char *boundary, const struct multipart_sink *sink, void *ctx);
int multipart_parser_feed(
	struct multipart_parser *p, const char *data, size_t bytes, struct err *err) must_check;
/* The body is over: INVALID_REQUEST unless the closing delimiter was there. */
int multipart_parser_end(const struct multipart_parser *p, struct err *err) must_check;
