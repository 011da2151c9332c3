/* SPDX-License-Identifier: Apache-2.0
 * The channel's thread. One connection at a time: descriptor 3 at first, later whoever connected to
 * the socket last. Messages wait in a list until acknowledged; `unsent` is the first that the
 * present connection has not been given. */
#include "workers/trainer/channel.h"

#include "core/base/buf.h"
#include "core/json/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 4096, LISTEN_BACKLOG = 4 };

struct message {
	struct message *next;
	int64_t seq;
	size_t len;
	char text[];
};

struct channel {
	const struct clock *clock;
	struct lease *lease;
	pthread_t thread;
	int wake, listener;

	pthread_mutex_t lock; /* guards what follows up to `acked` */
	pthread_cond_t changed;
	struct message *first, *last, *unsent;
	size_t waiting_bytes;
	int64_t next_seq, acked_seq;

	/* only the channel's thread */
	int conn;
	bool greeted; /* hello was read on this connection */
	struct buf in, out;
	int64_t alive_told, alive_at_us;

	_Atomic int64_t alive_count, alive_step;
	_Atomic int stop;
	_Atomic bool checkpoint, leave;
};

static void poke(struct channel *c)
{
	uint64_t one = 1;
	ssize_t n = write(c->wake, &one, sizeof(one)); /* full = already awake */
	(void)n;
}

/* ------------------------------------------------------------------------------ the queue */

static void forget_up_to(struct channel *c, int64_t seq)
{
	pthread_mutex_lock(&c->lock);
	while (c->first != NULL && c->first->seq <= seq) {
		struct message *m = c->first;
		if (c->unsent == m)
			c->unsent = m->next;
		c->first = m->next;
		if (c->first == NULL)
			c->last = NULL;
		c->waiting_bytes -= m->len;
		free(m);
	}
	if (seq > c->acked_seq && seq < c->next_seq)
		c->acked_seq = seq;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static void rewind_queue(struct channel *c)
{
	pthread_mutex_lock(&c->lock);
	c->unsent = c->first;
	pthread_mutex_unlock(&c->lock);
}

/* Moves waiting messages into the empty output buffer, as many as fit. */
static void fill_output(struct channel *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->unsent != NULL && c->out.failed == 0 &&
		c->out.len + c->unsent->len <= c->out.max_bytes) {
		buf_append(&c->out, c->unsent->text, c->unsent->len);
		c->unsent = c->unsent->next;
	}
	pthread_mutex_unlock(&c->lock);
	int64_t count = atomic_load(&c->alive_count), now = clock_boot_us(c->clock);
	if (c->out.len == 0 && count != c->alive_told &&
		now - c->alive_at_us >= CHANNEL_ALIVE_MS * 1000LL) {
		buf_printf(
			&c->out, "{\"t\":\"alive\",\"step\":%lld}\n", (long long)atomic_load(&c->alive_step));
		c->alive_told = count;
		c->alive_at_us = now;
	}
}

int channel_post(
	struct channel *c, const char *json, bool droppable, int64_t *ret_seq, struct err *err)
{
	size_t bytes = strlen(json);
	if (bytes < 3 || json[0] != '{' || bytes > CHANNEL_LINE_MAX - 64)
		return err_set(err, ERR_TOO_LARGE, NULL, "a message of %zu bytes cannot be sent", bytes);
	struct message *m = malloc(sizeof(*m) + bytes + 64);
	if (m == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a message");
	m->next = NULL;

	int64_t seq = 0; /* once unlocked, the message may be acknowledged and freed */
	pthread_mutex_lock(&c->lock);
	bool drop = droppable && c->waiting_bytes + bytes > CHANNEL_DROPPABLE_MAX;
	if (!drop) {
		seq = m->seq = c->next_seq++;
		m->len = (size_t)snprintf(
			m->text, bytes + 64, "{\"seq\":%lld,%s\n", (long long)m->seq, json + 1);
		if (c->last != NULL)
			c->last->next = m;
		else
			c->first = m;
		c->last = m;
		if (c->unsent == NULL)
			c->unsent = m;
		c->waiting_bytes += m->len;
	}
	pthread_mutex_unlock(&c->lock);
	if (ret_seq != NULL)
		*ret_seq = seq;
	if (drop)
		free(m);
	else
		poke(c);
	return 0;
}

int64_t channel_acked_seq(struct channel *c)
{
	pthread_mutex_lock(&c->lock);
	int64_t seq = c->acked_seq;
	pthread_mutex_unlock(&c->lock);
	return seq;
}

bool channel_drain(struct channel *c, int64_t max_ms)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += max_ms / 1000;
	until.tv_nsec += max_ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	int rc = 0;
	pthread_mutex_lock(&c->lock);
	while (c->first != NULL && rc == 0)
		rc = max_ms < 0 ? pthread_cond_wait(&c->changed, &c->lock)
						: pthread_cond_timedwait(&c->changed, &c->lock, &until);
	bool empty = c->first == NULL;
	pthread_mutex_unlock(&c->lock);
	return empty;
}

void channel_alive(struct channel *c, int64_t step)
{
	atomic_store(&c->alive_step, step);
	atomic_fetch_add(&c->alive_count, 1);
}

enum channel_stop channel_stop(struct channel *c)
{
	return (enum channel_stop)atomic_load(&c->stop);
}

bool channel_take_checkpoint(struct channel *c)
{
	return atomic_exchange(&c->checkpoint, false);
}

/* ------------------------------------------------------------------------------ lines from the
 * agent */

static void take_lease(struct channel *c, const struct json_val *v)
{
	int64_t now = clock_boot_us(c->clock);
	int64_t remaining_ms = json_i64_or(json_get(v, "remaining_ms"), -1);
	/* The deadline on the machine's own boot clock: a line that waited in the socket gives no more
	 * time than one that did not. */
	int64_t until_ms = json_i64_or(json_get(v, "until_boot_ms"), INT64_MAX / 1000);
	if (remaining_ms < 0 || remaining_ms > 24LL * 3600 * 1000)
		return;
	int64_t until = now + remaining_ms * 1000;
	if (until_ms < until / 1000)
		until = until_ms * 1000;
	lease_extend(c->lease, until);
}

static void take_stop(struct channel *c, const struct json_val *v)
{
	const char *why = json_str_or(json_get(v, "why"), "");
	if (strcmp(why, "cancel") == 0)
		atomic_store(&c->stop, CHANNEL_STOP_CANCEL);
	else if (strcmp(why, "pause") == 0)
		atomic_store(&c->stop, CHANNEL_STOP_PAUSE);
}

/* Lines that are not understood are skipped: a newer agent may say more. */
static void take_line(struct channel *c, const char *line, size_t bytes)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	if (json_doc_parse(line, bytes, CHANNEL_LINE_MAX, &doc, NULL) < 0)
		return;
	const struct json_val *v = json_doc_root(doc);
	const char *t = json_str_or(json_get(v, "t"), "");
	if (strcmp(t, "hello") == 0) {
		forget_up_to(c, json_i64_or(json_get(v, "acked_seq"), 0));
		rewind_queue(c);
		c->greeted = true;
	} else if (strcmp(t, "ack") == 0) {
		forget_up_to(c, json_i64_or(json_get(v, "seq"), 0));
	} else if (strcmp(t, "lease") == 0) {
		take_lease(c, v);
	} else if (strcmp(t, "checkpoint") == 0) {
		atomic_store(&c->checkpoint, true);
	} else if (strcmp(t, "stop") == 0) {
		take_stop(c, v);
	}
}

/* ------------------------------------------------------------------------------ the connection */

static void adopt(struct channel *c, int fd)
{
	if (c->conn >= 0)
		close(c->conn);
	c->conn = fd;
	c->greeted = false;
	buf_reset(&c->in);
	buf_reset(&c->out);
	if (fd >= 0)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static void accept_agent(struct channel *c)
{
	struct ucred peer = { 0 };
	socklen_t len = sizeof(peer);
	int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid()) {
		close(fd);
		return;
	}
	adopt(c, fd);
}

static void read_input(struct channel *c)
{
	char chunk[READ_BYTES];
	ssize_t n = recv(c->conn, chunk, sizeof(chunk), 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || buf_append(&c->in, chunk, (size_t)n) < 0) {
		adopt(c, -1);
		return;
	}
	const char *end;
	while (c->in.len > 0 && (end = memchr(c->in.data, '\n', c->in.len)) != NULL) {
		size_t bytes = (size_t)(end - c->in.data);
		take_line(c, c->in.data, bytes);
		buf_consume(&c->in, bytes + 1);
	}
}

static void write_output(struct channel *c)
{
	ssize_t n = send(c->conn, c->out.data, c->out.len, MSG_NOSIGNAL);
	if (n > 0)
		buf_consume(&c->out, (size_t)n);
	else if (n < 0 && errno != EAGAIN && errno != EINTR)
		adopt(c, -1);
}

static void *talk(void *arg)
{
	struct channel *c = arg;
	while (!atomic_load(&c->leave)) {
		if (c->conn >= 0 && c->greeted && c->out.len == 0)
			fill_output(c);
		struct pollfd p[3] = {
			{ .fd = c->wake, .events = POLLIN },
			{ .fd = c->listener, .events = POLLIN },
			{ .fd = c->conn, .events = (short)(POLLIN | (c->out.len > 0 ? POLLOUT : 0)) },
		};
		if (poll(p, 3, CHANNEL_ALIVE_MS) < 0)
			continue;
		uint64_t drained;
		if (p[0].revents != 0 && read(c->wake, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
			break;
		if (p[2].revents & (POLLIN | POLLHUP | POLLERR))
			read_input(c);
		if (c->conn >= 0 && (p[2].revents & POLLOUT) && c->out.len > 0)
			write_output(c);
		if (p[1].revents != 0)
			accept_agent(c);
	}
	return NULL;
}

static int listen_at(const char *path, int *ret, struct err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(a.sun_path))
		return err_set(err, ERR_INVALID_VALUE, NULL, "the socket path %s is too long", path);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	cleanup(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "no socket");
	unlink(path);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return err_errno(err, ERR_IO, errno, "the socket %s cannot be opened", path);
	*ret = fd;
	fd = -1;
	return 0;
}

int channel_create(const struct channel_options *o, struct channel **ret, struct err *err)
{
	cleanup(channel_destroyp) struct channel *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the channel");
	c->clock = o->clock;
	c->lease = o->lease;
	c->next_seq = o->first_seq;
	c->acked_seq = o->first_seq - 1;
	c->listener = c->conn = -1;
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	buf_init(&c->in, CHANNEL_LINE_MAX + READ_BYTES);
	buf_init(&c->out, 2 * CHANNEL_LINE_MAX);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake < 0)
		return err_errno(err, ERR_IO, errno, "no event descriptor");
	int rc = o->socket_path != NULL ? listen_at(o->socket_path, &c->listener, err) : 0;
	if (rc < 0)
		return rc;
	adopt(c, o->fd);
	rc = pthread_create(&c->thread, NULL, talk, c);
	if (rc != 0) {
		c->conn = -1; /* stays the caller's */
		return err_errno(err, ERR_NO_MEMORY, rc, "the channel's thread cannot be started");
	}
	*ret = take_ptr(c);
	return 0;
}

void channel_destroy(struct channel *c)
{
	if (c == NULL)
		return;
	atomic_store(&c->leave, true);
	if (c->thread != 0) {
		poke(c);
		pthread_join(c->thread, NULL);
	}
	adopt(c, -1);
	if (c->listener >= 0)
		close(c->listener);
	if (c->wake >= 0)
		close(c->wake);
	while (c->first != NULL) {
		struct message *m = c->first;
		c->first = m->next;
		free(m);
	}
	buf_finish(&c->in);
	buf_finish(&c->out);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

void channel_destroyp(struct channel **c)
{
	channel_destroy(*c);
	*c = NULL;
}
