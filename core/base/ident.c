/* SPDX-License-Identifier: Apache-2.0
 * ULIDs behind a prefix. Thread-safe: the kernel's random bytes, no state here. */
#include "core/base/ident.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char ALPHABET[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

static void fill_random(unsigned char *bytes, size_t count)
{
	size_t done = 0;
	while (done < count) {
		ssize_t n = getrandom(bytes + done, count - done, 0);
		if (n > 0)
			done += (size_t)n;
		else if (errno != EINTR)
			abort(); /* only a kernel without getrandom: an id that repeats would be worse */
	}
}

void ident_new(const struct clock *clock, const char *prefix, char ret_id[static IDENT_MAX])
{
	size_t prefix_len = strlen(prefix);
	assert(prefix_len > 0 && prefix_len <= IDENT_PREFIX_MAX);
	memcpy(ret_id, prefix, prefix_len);
	char *out = ret_id + prefix_len;
	*out++ = '_';

	uint64_t ms = (uint64_t)(clock_wall_us(clock) / 1000) & 0xFFFFFFFFFFFFULL;
	for (int i = 9; i >= 0; i--) {
		out[i] = ALPHABET[ms & 31];
		ms >>= 5;
	}
	/* 80 bits: twice 40 bits, each eight letters. */
	unsigned char random[10];
	fill_random(random, sizeof(random));
	for (int half = 0; half < 2; half++) {
		uint64_t bits = 0;
		for (int i = 0; i < 5; i++)
			bits = bits << 8 | random[half * 5 + i];
		for (int i = 7; i >= 0; i--) {
			out[10 + half * 8 + i] = ALPHABET[bits & 31];
			bits >>= 5;
		}
	}
	out[IDENT_ULID_LEN] = '\0';
}

bool ident_is(const char *text, const char *prefix)
{
	if (!text)
		return false;
	size_t prefix_len = strlen(prefix);
	if (strncmp(text, prefix, prefix_len) != 0 || text[prefix_len] != '_')
		return false;
	const char *ulid = text + prefix_len + 1;
	/* 26 letters hold 130 bits: the first one has only three of a ULID's 128. */
	return strlen(ulid) == IDENT_ULID_LEN && strspn(ulid, ALPHABET) == IDENT_ULID_LEN &&
		ulid[0] <= '7';
}
