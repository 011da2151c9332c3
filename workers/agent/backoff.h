/* SPDX-License-Identifier: Apache-2.0
 * Waiting between tries: doubles up to a maximum, with jitter, so that a fleet does not return in
 * step. Owned by one thread. */
#pragma once

#include <stdint.h>

struct backoff {
	int64_t first_ms, max_ms;
	int64_t next_ms; /* 0 = the first try comes next */
};

/* How long to wait now: between half of and the whole present step. Moves to the next step. */
int64_t backoff_next_ms(struct backoff *b);
/* After a success. */
void backoff_reset(struct backoff *b);
