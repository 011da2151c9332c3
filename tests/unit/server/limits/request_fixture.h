/* SPDX-License-Identifier: Apache-2.0
 * A request as the gate leaves it, made of a target and headers that the test names. One thread. */
#pragma once

#include "server/http/request_private.h"
#include "server/http/response_private.h"
#include "server/http/route.h"
#include "server/http/target.h"
#include "tests/support/check.h"

struct request_fixture {
	struct request req;
	struct request_data data;
};

static inline void request_open(struct request_fixture *f, const char *target)
{
	struct err err = { 0 };
	memset(f, 0, sizeof(*f));
	arena_init(&f->req.arena, REQUEST_ARENA_MAX);
	f->req.daemon_private = &f->data;
	if (target_parse(&f->req.arena, target, &f->data, &f->req.path, &err) < 0)
		fail_msg("%s", err.message);
}

static inline void request_close(struct request_fixture *f)
{
	arena_finish(&f->req.arena);
}
