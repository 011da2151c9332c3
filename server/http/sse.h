/* SPDX-License-Identifier: Apache-2.0
 * Server-sent events: a source that a handler hands over; the daemon suspends the connection and
 * asks the source for more whenever the hub says so, at least every stream_heartbeat_s (then a
 * comment line is sent). */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "server/app.h"

enum {
	SSE_BATCH_MAX = 200,          /* events fetched at once */
	SSE_BUFFER_MAX = 1024 * 1024, /* bytes of one fetch; none is made while half of it is unsent */
};

struct stream_source {
	char topic[64];
	/* Appends whatever is new ("id: …\nevent: …\ndata: …\n\n"), whole events only, even when it
	 * fails, and sets *ret_done after the terminal event. After a failure with status 503 it is
	 * called again; any other ends the stream. Runs on a worker thread with the database at hand.
	 */
	int (*more)(
		struct stream_source *s, struct app *app, struct buf *out, bool *ret_done, struct err *err);
	void (*destroy)(struct stream_source *s);
};
