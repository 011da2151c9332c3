/* SPDX-License-Identifier: Apache-2.0
 * Listens, starts the library's event loops, and stops everything in the order that the library
 * needs: it aborts when it is stopped while a connection is suspended. Called by main. */
#include "server/http/server_private.h"

#include "core/base/log.h"
#include "server/http/route.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	CONNECTION_MEMORY_BYTES = 64 * 1024,
	CONNECTION_INCREMENT_BYTES = 16 * 1024,
	LISTEN_BACKLOG = 1024,
	DRAIN_TICK_MS = 20,
	DRAIN_LAST_MS = 2000, /* after the sockets were shut down */
	NS_PER_MS = 1000000,
	US_PER_MS = 1000,
	MS_PER_S = 1000,
	PORT_TEXT_MAX = 8,
};

static const char *const port_names[HTTP_PORTS] = { "api", "agent" };

/* ---------------------------------------------------------------- listening */

static int bound_port(int fd)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);
	char text[PORT_TEXT_MAX];
	if (getsockname(fd, (struct sockaddr *)&a, &len) < 0 ||
		getnameinfo((struct sockaddr *)&a, len, NULL, 0, text, sizeof(text), NI_NUMERICSERV) != 0)
		return 0;
	return (int)strtol(text, NULL, 10);
}

static int listen_on(const char *address, int64_t port, int *ret_fd, struct err *err)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE };
	struct addrinfo *found = NULL;
	char text[PORT_TEXT_MAX];
	(void)snprintf(text, sizeof(text), "%" PRId64, port);
	if (getaddrinfo(address, text, &hints, &found) != 0)
		return err_set(
			err, ERR_INVALID_VALUE, "address", "\"%s\" is not a numeric address", address);
	cleanup(closep) int fd =
		socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int yes = 1;
	bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
		bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0;
	int failed = errno;
	freeaddrinfo(found);
	if (!ok)
		return err_errno(err, ERR_NETWORK, failed, "listening on %s port %s", address, text);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* ---------------------------------------------------------------- the library */

static void connection_event(void *port, struct MHD_Connection *mhd, void **socket_ctx,
	enum MHD_ConnectionNotificationCode what)
{
	struct http_port_state *p = port;
	struct http_server *s = p->server;
	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *fd =
			MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
		*socket_ctx = fd ? peers_add(s->peers, fd->connect_fd) : NULL;
		if (*socket_ctx)
			http_stats_gauge_add(s->app->stats, GAUGE_CONNECTIONS, 1);
	} else if (*socket_ctx) {
		http_stats_gauge_add(s->app->stats, GAUGE_CONNECTIONS, -1);
		peers_remove(s->peers, *socket_ctx);
		*socket_ctx = NULL;
	}
}

/* Paths and queries are decoded by target.c, after they were split. */
static size_t keep_escapes(void *ctx, struct MHD_Connection *mhd, char *text)
{
	return strlen(text);
}

static void library_log(void *ctx, const char *fmt, va_list args)
{
	char text[256];
	(void)vsnprintf(text, sizeof(text), fmt, args);
	text[strcspn(text, "\n")] = '\0';
	log_debug("http.library", LOG_STR("text", text));
}

static int start_port(struct http_server *s, enum http_port which, struct err *err)
{
	const struct settings_server *set = s->app->settings;
	struct http_port_state *p = &s->ports[which];
	unsigned int threads = (unsigned int)set->http_threads;
	if (threads == 0)
		threads = (unsigned int)sysconf(_SC_NPROCESSORS_ONLN);
	/* A pool of one is a plain loop: the library wants no pool option then. */
	struct MHD_OptionItem pool[] = { { MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)threads, NULL },
		{ MHD_OPTION_END, 0, NULL } };
	if (threads == 1)
		pool[0] = (struct MHD_OptionItem){ MHD_OPTION_END, 0, NULL };
	p->daemon = MHD_start_daemon(
		MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG,
		0, NULL, NULL, exchange_step, p, MHD_OPTION_LISTEN_SOCKET, p->listen_fd,
		MHD_OPTION_EXTERNAL_LOGGER, library_log, NULL, MHD_OPTION_URI_LOG_CALLBACK, exchange_create,
		p, MHD_OPTION_NOTIFY_COMPLETED, exchange_completed, p, MHD_OPTION_NOTIFY_CONNECTION,
		connection_event, p, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)set->connections_max,
		MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned int)set->connections_per_ip_max,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)set->idle_timeout_s,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES,
		MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)CONNECTION_INCREMENT_BYTES,
		MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, pool, MHD_OPTION_END);
	if (!p->daemon)
		return err_set(err, ERR_NETWORK, NULL, "starting the HTTP library failed");
	log_info("http.listening", LOG_STR("name", port_names[which]), LOG_INT("port", p->port),
		LOG_INT("threads", threads));
	return 0;
}

static int prepare_port(struct http_server *s, enum http_port which, struct err *err)
{
	const struct settings_server *set = s->app->settings;
	struct http_port_state *p = &s->ports[which];
	bool api = which == HTTP_PORT_API;
	p->server = s;
	p->which = which;
	p->routes = api ? routes_api : routes_agent;
	p->route_count = api ? routes_api_count : routes_agent_count;
	p->lane = api ? LANE_API : LANE_AGENT;
	int r = listen_on(api ? set->api_address : set->agent_address,
		api ? set->api_port : set->agent_port, &p->listen_fd, err);
	if (r == 0)
		p->port = bound_port(p->listen_fd);
	return r;
}

static void free_server(struct http_server *s)
{
	for (int i = 0; i < HTTP_PORTS; i++) {
		if (s->ports[i].daemon)
			MHD_stop_daemon(s->ports[i].daemon);
		closep(&s->ports[i].listen_fd);
	}
	workqueue_destroy(s->queue);
	peers_destroy(s->peers);
	free(s);
}

int http_server_start(struct app *app, struct http_server **ret, struct err *err)
{
	const struct settings_server *set = app->settings;
	struct http_server *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	s->app = app;
	for (int i = 0; i < HTTP_PORTS; i++)
		s->ports[i].listen_fd = -1;
	struct peer_limits limits = {
		.headers_timeout_s = set->headers_timeout_s,
		.body_timeout_s = set->body_timeout_s,
		.min_bytes_per_s = set->body_min_bytes_per_s,
	};
	int r = peers_create(app->clock, &limits, &s->peers, err);
	if (r == 0 &&
		workqueue_create((int)set->workers, (int)set->queue_max, app->stats, &s->queue) < 0)
		r = err_set(err, ERR_NO_MEMORY, NULL, "starting the workers failed");
	for (int i = 0; r == 0 && i < HTTP_PORTS; i++)
		r = prepare_port(s, (enum http_port)i, err);
	for (int i = 0; r == 0 && i < HTTP_PORTS; i++)
		r = start_port(s, (enum http_port)i, err);
	if (r < 0) {
		free_server(s);
		return r;
	}
	*ret = s;
	return 0;
}

int http_server_port(const struct http_server *s, enum http_port which)
{
	return s->ports[which].port;
}

/* ---------------------------------------------------------------- stopping */

static bool wait_quiet(struct http_server *s, int64_t until_us)
{
	while (atomic_load(&s->active) > 0 || http_stats_gauge(s->app->stats, GAUGE_STREAMS) > 0) {
		if (clock_mono_us(s->app->clock) >= until_us)
			return false;
		struct timespec tick = { .tv_nsec = (long)DRAIN_TICK_MS * NS_PER_MS };
		(void)nanosleep(&tick, NULL);
	}
	return true;
}

/* Connections that are open may begin requests at any moment. One that began before `ended` was set
 * is counted and waited for; one that begins after is refused without being suspended. */
static bool drained(struct http_server *s, int64_t ms)
{
	int64_t until_us = clock_mono_us(s->app->clock) + ms * US_PER_MS;
	if (!wait_quiet(s, until_us))
		return false;
	atomic_store(&s->ended, true);
	return wait_quiet(s, until_us + (int64_t)DRAIN_LAST_MS * US_PER_MS);
}

int http_server_stop(struct http_server *s)
{
	for (int i = 0; i < HTTP_PORTS; i++) {
		/* The loops may still look at the socket, so it is closed only after them; shut down, it
		 * refuses connections at once, and a proxy tries another server. */
		(void)MHD_quiesce_daemon(s->ports[i].daemon);
		(void)shutdown(s->ports[i].listen_fd, SHUT_RDWR);
	}
	atomic_store(&s->stopping, true);
	hub_quit(s->app->hub);
	bool clean = drained(s, s->app->settings->drain_timeout_s * MS_PER_S);
	if (!clean) {
		log_warn(
			"http.drain", LOG_INT("in_flight", http_stats_gauge(s->app->stats, GAUGE_IN_FLIGHT)));
		peers_shutdown_all(s->peers);
		clean = drained(s, DRAIN_LAST_MS);
	}
	if (!clean)
		return ERR_UNAVAILABLE;
	free_server(s);
	return 0;
}
