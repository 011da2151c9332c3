/* SPDX-License-Identifier: Apache-2.0
 * A server on a thread of its own that answers each connection with a given text. */
#pragma once

#include "tests/support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SERVER_REQUEST_MAX = 16384 };

struct server {
	int listener;
	char url[64];
	const char *reply;
	size_t reply_bytes;
	atomic_int calls;
	char request[SERVER_REQUEST_MAX]; /* of the last connection */
	size_t request_bytes;
	pthread_t thread;
};

/* True once the request is whole: its headers, and as many bytes as they promise. */
static inline bool server_has_whole(const struct server *s)
{
	const char *end = strstr(s->request, "\r\n\r\n");
	const char *length = strstr(s->request, "Content-Length: ");
	if (end == NULL)
		return false;
	size_t body = length == NULL ? 0 : strtoul(length + 16, NULL, 10);
	return s->request_bytes >= (size_t)(end - s->request) + 4 + body;
}

static inline void *server_answer(void *arg)
{
	struct server *s = arg;
	int fd;
	while ((fd = accept(s->listener, NULL, NULL)) >= 0) {
		ssize_t n = 1;
		atomic_fetch_add(&s->calls, 1);
		s->request_bytes = 0;
		s->request[0] = '\0';
		while (!server_has_whole(s) && n > 0) {
			n = recv(
				fd, s->request + s->request_bytes, sizeof(s->request) - 1 - s->request_bytes, 0);
			s->request_bytes += n > 0 ? (size_t)n : 0;
			s->request[s->request_bytes] = '\0';
		}
		(void)send(fd, s->reply, s->reply_bytes, MSG_NOSIGNAL);
		shutdown(fd, SHUT_RDWR);
		close(fd);
	}
	return NULL;
}

static inline struct server *server_start(void)
{
	struct server *s = calloc(1, sizeof(*s));
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	s->listener = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(s->listener, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(s->listener, 8), 0);
	assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &len), 0);
	snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%d", ntohs(a.sin_port));
	assert_int_equal(pthread_create(&s->thread, NULL, server_answer, s), 0);
	return s;
}

static inline void server_stop(struct server *s)
{
	shutdown(s->listener, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->listener);
	free(s);
}

static inline void reply_with(struct server *s, const char *text)
{
	s->reply = text;
	s->reply_bytes = strlen(text);
}
