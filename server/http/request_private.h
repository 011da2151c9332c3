/* SPDX-License-Identifier: Apache-2.0
 * What a request was made of, behind request.h's accessors. Filled by exchange.c (and by tests);
 * lives in the exchange's memory. */
#pragma once

#include "server/http/request.h"

enum {
	REQUEST_HEADERS_MAX = 64,
	REQUEST_HEADER_BYTES_MAX = 16 * 1024,
	REQUEST_TARGET_MAX = 4096,
	REQUEST_SEGMENTS_MAX = 16,
	REQUEST_QUERY_MAX = 64,
};

struct name_value {
	const char *name;
	const char *value;
};

struct request_data {
	struct name_value headers[REQUEST_HEADERS_MAX];
	int header_count;
	struct name_value query[REQUEST_QUERY_MAX]; /* decoded */
	int query_count;
	const char *segments[REQUEST_SEGMENTS_MAX]; /* of the path, each decoded on its own */
	int segment_count;
};
