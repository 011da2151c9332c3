/* SPDX-License-Identifier: Apache-2.0
 * Exponential backoff with jitter. */
#include "workers/agent/backoff.h"

#include "core/crypto/random.h"

int64_t backoff_next_ms(struct backoff *b)
{
	uint32_t r = 0;
	int64_t step = b->next_ms > 0 ? b->next_ms : b->first_ms;
	b->next_ms = step * 2 < b->max_ms ? step * 2 : b->max_ms;
	if (random_bytes(&r, sizeof(r)) < 0)
		r = UINT32_MAX / 2;
	return step / 2 + (int64_t)((double)(step - step / 2) * r / UINT32_MAX);
}

void backoff_reset(struct backoff *b)
{
	b->next_ms = 0;
}
