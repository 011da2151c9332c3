/* SPDX-License-Identifier: Apache-2.0
 * Lines of JSON over a socket that never blocks. */
#include "workers/agent/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { READ_BYTES = 16 * 1024 };

void link_init(struct link *l)
{
	l->fd = -1;
	l->given = 0;
	buf_init(&l->in, LINK_LINE_MAX + READ_BYTES);
	buf_init(&l->out, LINK_OUT_MAX);
}

void link_finish(struct link *l)
{
	link_close(l);
	buf_finish(&l->in);
	buf_finish(&l->out);
}

int link_pair(struct link *l, int *ret_other, struct err *err)
{
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return err_errno(err, ERR_IO, errno, "no socket pair");
	link_close(l);
	l->fd = fds[0];
	fcntl(l->fd, F_SETFL, O_NONBLOCK);
	*ret_other = fds[1];
	return 0;
}

int link_connect(struct link *l, const char *rank_dir, struct err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	cleanup(closep) int dir = open(rank_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_errno(err, ERR_IO, errno, "%s", rank_dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/control.sock", dir);
	cleanup(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return err_errno(err, ERR_NETWORK, errno, "%s/control.sock", rank_dir);
	link_close(l);
	l->fd = fd;
	fd = -1;
	return 0;
}

void link_close(struct link *l)
{
	closep(&l->fd);
	l->fd = -1;
	l->given = 0;
	buf_reset(&l->in);
	buf_reset(&l->out);
}

void link_flush(struct link *l)
{
	while (l->fd >= 0 && l->out.len > 0) {
		ssize_t n = send(l->fd, l->out.data, l->out.len, MSG_NOSIGNAL);
		if (n > 0)
			buf_consume(&l->out, (size_t)n);
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && errno == EAGAIN)
			return;
		else /* what it wrote before it left is still to be read */
			buf_reset(&l->out);
	}
}

void link_send(struct link *l, const char *line)
{
	if (l->fd < 0)
		return;
	buf_str(&l->out, line);
	buf_char(&l->out, '\n');
	if (l->out.failed != 0) {
		link_close(l);
		return;
	}
	link_flush(l);
}

static void drop_given(struct link *l)
{
	buf_consume(&l->in, l->given);
	l->given = 0;
}

bool link_read(struct link *l)
{
	char chunk[READ_BYTES];
	drop_given(l);
	while (l->fd >= 0 && l->in.len <= LINK_LINE_MAX) {
		ssize_t n = recv(l->fd, chunk, sizeof(chunk), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0 || buf_append(&l->in, chunk, (size_t)n) < 0)
			return false;
	}
	return l->fd >= 0;
}

const char *link_line(struct link *l, size_t *ret_bytes)
{
	drop_given(l);
	char *end = l->in.len > 0 ? memchr(l->in.data, '\n', l->in.len) : NULL;
	if (end == NULL)
		return NULL;
	*end = '\0';
	*ret_bytes = (size_t)(end - l->in.data);
	l->given = *ret_bytes + 1;
	return l->in.data;
}
