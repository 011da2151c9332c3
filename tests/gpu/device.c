/* SPDX-License-Identifier: Apache-2.0
 * Linked into every test on a GPU: without one the test is skipped, and says what is missing. Runs
 * before main. */
#include "workers/engine/backend.h"
#include "workers/engine/engine.h"

#include <stdio.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static __attribute__((constructor)) void need_a_device(void)
{
	const struct backend *cuda = engine_backend_cuda(PLAN_F32);
	struct backend_ctx *ctx = NULL;
	struct err err = { 0 };
	if (cuda->open(1, &ctx, &err) == 0) {
		cuda->close(ctx);
		return;
	}
	(void)fprintf(stderr, "skipped: %s\n", err.message);
	_exit(SKIPPED);
}
