/* SPDX-License-Identifier: Apache-2.0
 * The agent's end of the talk with one trainer: lines of JSON both ways over a socket that never
 * blocks. Used on the agent's main thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LINK_LINE_MAX = 64 * 1024, LINK_OUT_MAX = 256 * 1024 };

struct link {
	int fd;       /* -1 = not connected */
	size_t given; /* bytes at the front of `in` that link_line handed out */
	struct buf in, out;
};

void link_init(struct link *l);
void link_finish(struct link *l);
/* A pair for a trainer that is about to start: this end is taken, the other is the caller's. */
int link_pair(struct link *l, int *ret_other, struct err *err) must_check;
/* Connects to rank_dir/control.sock, however long the path. */
int link_connect(struct link *l, const char *rank_dir, struct err *err) must_check;
void link_close(struct link *l);

/* Queues a line (its newline is added) and sends what the socket takes. A trainer that does not
 * read loses the connection. */
void link_send(struct link *l, const char *line);
void link_flush(struct link *l);
/* Reads what is there. False once the peer is gone (all lines read before that are in `in`). */
bool link_read(struct link *l);
/* The next whole line without its newline, NULL when there is none; valid until the next call. */
const char *link_line(struct link *l, size_t *ret_bytes);
