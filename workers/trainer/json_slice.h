/* SPDX-License-Identifier: Apache-2.0
 * Finds a member of a large JSON object without building a tree: vocabularies have more values than
 * a parsed text may. The text need not be valid: whatever is found lies inside it, and is parsed or
 * copied by the caller. Used for tokenizer files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct json_slice {
	const char *at;
	size_t bytes;
};

/* The value of a direct member; false when object is none, or has no such member. The key is
 * compared as it is written, without escapes. */
bool json_slice_member(struct json_slice object, const char *key, struct json_slice *ret);
