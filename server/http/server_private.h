/* SPDX-License-Identifier: Apache-2.0
 * The inside of the HTTP side: what server.c, exchange.c, reply.c and stream.c share. */
#pragma once

#include "server/auth/credentials.h"
#include "server/http/framing.h"
#include "server/http/hub_private.h"
#include "server/http/peers.h"
#include "server/http/request_private.h"
#include "server/http/response_private.h"
#include "server/http/router.h"
#include "server/http/server.h"
#include "server/http/stats.h"
#include "server/http/workqueue.h"
#include "server/limits/rate.h"
#include "server/settings.h"

#include <microhttpd.h>
#include <stdatomic.h>

enum {
	EXCHANGE_ARENA_MAX = 256 * 1024, /* copies of the target, names of parameters */
	EXCHANGE_DRAIN_MAX =
		1024 * 1024, /* a refused body up to this is read, and the connection kept */
	EXCHANGE_LINGER_MAX = 64 * 1024 * 1024,
	FORM_OVERHEAD_MAX = 64 * 1024, /* of a multipart body around its file */
	OVERLOADED_RETRY_S = 1,
};

struct http_port_state {
	struct http_server *server;
	enum http_port which;
	const struct route *routes;
	size_t route_count;
	enum workqueue_lane lane;
	struct MHD_Daemon *daemon;
	int listen_fd;
	int port;
};

struct http_server {
	struct app *app;
	struct workqueue *queue;
	struct peers *peers;
	atomic_bool stopping; /* replies close their connections, nobody waits */
	atomic_bool ended; /* no connection is suspended any more: the library is about to be stopped */
	atomic_int active; /* exchanges between their headers and the end of their reply */
	struct http_port_state ports[HTTP_PORTS];
};

enum exchange_state {
	EXCHANGE_NEW,     /* headers are not complete */
	EXCHANGE_ASKING,  /* suspended: a worker asks the database who this is */
	EXCHANGE_ASKED,   /* resumed: as if the headers had just been completed */
	EXCHANGE_BODY,    /* reading the body, or dropping it when failed */
	EXCHANGE_WORK,    /* suspended: queued, running or waiting */
	EXCHANGE_READY,   /* resumed: the reply may be queued */
	EXCHANGE_REPLIED, /* the library has it */
	EXCHANGE_LINGER,  /* answered on the socket itself: what still comes is dropped */
};

struct upload_receiver;
struct stream;

/* One request and its reply. Owned by the event loop of its connection, except while
 * EXCHANGE_ASKING and EXCHANGE_WORK: then by the queue, a worker or the hub. */
struct exchange {
	struct work work;         /* first member: workers get this */
	struct hub_waiter waiter; /* long polls */
	struct request req;
	struct request_data data;
	struct response res;
	struct err err;
	int failed; /* 0 or the code in err */
	enum exchange_state state;
	struct http_port_state *port;
	struct MHD_Connection *mhd;
	struct peer *peer;
	const char *target_at; /* in the library's memory */
	size_t target_len;
	char *target; /* copy */
	char method[16];
	struct arena own; /* lives as long as the exchange; req.arena is emptied between runs */
	struct framing framing;
	struct rate_verdict rate;
	char allow[ROUTER_ALLOW_MAX];
	bool close; /* after this reply */
	bool handled;
	bool slow;    /* a stream, or a long poll that waited */
	bool counted; /* in GAUGE_IN_FLIGHT */
	struct buf body;
	int64_t received_bytes;
	struct upload_receiver *upload;
	struct json_doc *json;
	bool waiting; /* counted in GAUGE_WAITS */
	int64_t wait_until_us;
	struct stream *stream;
	int64_t started_us;
	int status; /* of the reply, for the log */
	int64_t sent_bytes;
};

/* exchange.c: callbacks of the library. */
void *exchange_create(void *port, const char *target, struct MHD_Connection *mhd);
enum MHD_Result exchange_step(void *port, struct MHD_Connection *mhd, const char *url,
	const char *method, const char *version, const char *data, size_t *data_bytes, void **ctx);
void exchange_completed(
	void *port, struct MHD_Connection *mhd, void **ctx, enum MHD_RequestTerminationCode how);

/* The most bytes that the route's body may have. */
int64_t gate_body_max(const struct exchange *x);
/* gate.c: everything that is decided before the body. Fills x->err and returns its code. Never
 * blocks: *ret_ask is true when gate_ask must go on, on a worker. */
int gate_check(
	struct exchange *x, const char *method, const char *version, bool *ret_ask) must_check;
int gate_ask(struct exchange *x) must_check;

/* run.c: asks who this is, on a worker. */
void run_gate(struct work *w);
/* Runs the handler on a worker, and again when a long poll asked for it. */
void run_exchange(struct work *w);
/* The same on the event loop, for ROUTE_INLINE. */
void run_inline(struct exchange *x);

/* reply.c */
enum MHD_Result reply_queue(struct exchange *x);
/* Answers on the socket, past the library, which takes no reply before the body has ended. */
void reply_raw(struct exchange *x);

/* stream.c */
int stream_create(struct exchange *x, struct stream **ret, struct err *err) must_check;
/* Gives the stream to a reply; NULL when out of memory (the stream is gone then). */
struct MHD_Response *stream_response(struct stream *s, struct MHD_Connection *mhd);
/* For an exchange that ends without having replied. NULL accepted. */
void stream_abandon(struct stream *s);
