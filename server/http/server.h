/* SPDX-License-Identifier: Apache-2.0
 * Both ports of trainyard-server on libmicrohttpd: started and stopped by main. Event loops read
 * and write, workers run handlers. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "server/app.h"

#include <stdbool.h>

struct http_server;

enum http_port { HTTP_PORT_API, HTTP_PORT_AGENT, HTTP_PORTS };

/* app must be complete and outlive the server. */
int http_server_start(struct app *app, struct http_server **ret, struct err *err) must_check;
/* The number that was bound. */
int http_server_port(const struct http_server *s, enum http_port which);

/* Stops listening, lets running requests end (streams and long polls at once), frees everything.
 * UNAVAILABLE when some would not end in drain_timeout_s: then nothing was freed, and only exiting
 * the process is safe. */
int http_server_stop(struct http_server *s) must_check;
