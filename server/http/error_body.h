/* SPDX-License-Identifier: Apache-2.0
 * The one place that turns an error into a body: RFC 9457 members and OpenAI's `error` object
 * together. Used by reply.c. Pure. */
#pragma once

#include "core/base/buf.h"
#include "core/base/err.h"

/* base is put in front of "/errors/<slug>". Messages of our own faults are replaced: they may name
 * hosts, files or SQL, and belong into the log. */
int error_body_write(
	struct buf *out, const struct err *err, const char *base, const char *request_id);
