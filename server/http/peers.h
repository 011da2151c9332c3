/* SPDX-License-Identifier: Apache-2.0
 * The connections of both ports, and the thread that ends those which are too slow as a whole: the
 * library's own timeout only sees silence, so one byte a second would outlive it. Event loops
 * report phases; the thread shuts sockets down and leaves closing to the library. Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"

#include <stdint.h>

struct peer;
struct peers;

enum peer_phase {
	PEER_CONNECTED,  /* headers must be complete headers_timeout_s after this */
	PEER_IDLE,       /* between requests: from the first byte on, as above */
	PEER_BODY_SMALL, /* complete within body_timeout_s */
	PEER_BODY_LARGE, /* at least body_min_bytes_per_s after body_timeout_s */
	PEER_WORK,       /* ours to bound */
	PEER_REPLY,      /* taken at body_min_bytes_per_s at least */
	PEER_STREAM,     /* events: the library's timeout does */
	PEER_LINGER,     /* refused: a few seconds to read the reply */
};

enum { PEERS_LINGER_S = 5, PEERS_TICK_MS = 500 };

struct peer_limits {
	int64_t headers_timeout_s;
	int64_t body_timeout_s;
	int64_t min_bytes_per_s;
};

int peers_create(const struct clock *clock, const struct peer_limits *limits, struct peers **ret,
	struct err *err) must_check;
/* All connections must be gone. NULL accepted. */
void peers_destroy(struct peers *p);

/* NULL when out of memory. */
struct peer *peers_add(struct peers *p, int fd) must_check;
void peers_remove(struct peers *p, struct peer *peer);
void peers_enter(struct peers *p, struct peer *peer, enum peer_phase phase);
void peers_received(struct peer *peer, size_t bytes);
int peers_fd(const struct peer *peer);
/* The daemon ends: nobody gets more time. */
void peers_shutdown_all(struct peers *p);
