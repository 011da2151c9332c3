/* SPDX-License-Identifier: Apache-2.0
 * Ranks of one machine meet: through the store they find out that they are on one, over Unix
 * sockets they hand each other their memory. Sockets and segments have no names in any file system
 * and go with their processes; a socket takes only processes of the same user that know its random
 * address. Called by comm_shm.c, on the opening thread. */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/num.h"
#include "workers/comm/comm_shm_private.h"
#include "workers/comm/comm_store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	HELLO_MAGIC = 0x54795331, /* changes with what ranks say to each other, and with the layout */
	BOOT_MAX = 40,            /* bytes of the machine's boot id */
	SECRET_BYTES = 16,
	ADDRESS_MAX = 48, /* "trainyard-" and the secret */
	/* Ranks that are all here connect at once. Later than that, they go over TCP. */
	CONNECT_MS = 20000,
	SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
};

/* What a rank puts into the store. */
struct hello {
	uint32_t magic, size, check, transport;
	uint32_t able; /* it has a segment, and listens */
	uint32_t user;
	uint64_t network_device, network; /* abstract addresses are of a network namespace */
	char boot[BOOT_MAX], address[ADDRESS_MAX];
};

/* What both sides of a connection say, together with the descriptor of their segment. */
struct greeting {
	uint32_t magic, rank;
	char address[ADDRESS_MAX]; /* of the one that is told: only the store can have said it */
};

struct meeting {
	const struct comm_options *o;
	struct comm_shm_links *l;
	int64_t deadline_us;
	int listener, memory;
	struct hello *hellos; /* by rank */
};

static int64_t now_us(void)
{
	return clock_mono_us(clock_system());
}

/* ------------------------------------------------------------------ memory */

static void lay_out(struct comm_shm_links *l)
{
	l->chunk_bytes = COMM_SHM_CHUNK_MAX;
	while (l->chunk_bytes > COMM_SHM_CHUNK_MIN &&
		l->chunk_bytes * COMM_SHM_SLOTS * (l->size - 1) > COMM_SHM_INBOUND_BYTES)
		l->chunk_bytes /= 2;
	l->segment_bytes =
		COMM_SHM_PAGE * (int64_t)(1 + l->size) + l->chunk_bytes * COMM_SHM_SLOTS * (int64_t)l->size;
}

/* The ring from rank `from`, in a segment. */
static struct comm_shm_ring *ring_at(void *segment, int from)
{
	return (struct comm_shm_ring *)(void *)((char *)segment + COMM_SHM_PAGE * (int64_t)(1 + from));
}

static char *data_at(const struct comm_shm_links *l, void *segment, int from)
{
	return (char *)segment + COMM_SHM_PAGE * (int64_t)(1 + l->size) +
		l->chunk_bytes * COMM_SHM_SLOTS * (int64_t)from;
}

/* Sealed: nobody can take its end away, which would be a signal for whoever touches it. */
static int make_segment(struct meeting *m, struct err *err)
{
	m->memory = memfd_create("trainyard-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m->memory < 0 || ftruncate(m->memory, m->l->segment_bytes) < 0 ||
		fcntl(m->memory, F_ADD_SEALS, SEALS) < 0)
		return err_errno(err, ERR_UNAVAILABLE, errno, "memory cannot be shared");
	return 0;
}

static int map(struct meeting *m, int fd, void **ret, struct err *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0 || st.st_size != m->l->segment_bytes ||
		(fcntl(fd, F_GET_SEALS) & SEALS) != SEALS)
		return err_set(err, ERR_UNAVAILABLE, NULL, "a rank's memory is not what it should be");
	void *p = mmap(NULL, (size_t)m->l->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return err_errno(err, ERR_UNAVAILABLE, errno, "a rank's memory cannot be mapped");
	*ret = p;
	return 0;
}

static void take_link(struct meeting *m, int rank, int socket, void *segment)
{
	struct comm_shm_links *l = m->l;
	l->links[rank] = (struct comm_shm_link){
		.socket = socket,
		.segment = segment,
		.bell = segment,
		.in = ring_at(l->segment, rank),
		.out = ring_at(segment, l->rank),
		.in_data = data_at(l, l->segment, rank),
		.out_data = data_at(l, segment, l->rank),
	};
}

/* ------------------------------------------------------------------ sockets */

static socklen_t address_of(const char *name, struct sockaddr_un *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX; /* the path begins with a NUL: an abstract address */
	size_t length = strnlen(name, ADDRESS_MAX - 1);
	memcpy(ret->sun_path + 1, name, length);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int listen_somewhere(struct meeting *m, struct hello *mine, struct err *err)
{
	unsigned char secret[SECRET_BYTES];
	if (getrandom(secret, sizeof(secret), 0) != (ssize_t)sizeof(secret))
		return err_errno(err, ERR_UNAVAILABLE, errno, "no random bits");
	int n = snprintf(mine->address, sizeof(mine->address), "trainyard-");
	for (int i = 0; i < SECRET_BYTES; i++)
		n += snprintf(mine->address + n, sizeof(mine->address) - (size_t)n, "%02x", secret[i]);
	struct sockaddr_un where;
	socklen_t length = address_of(mine->address, &where);
	m->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&where, length) < 0 ||
		listen(m->listener, COMM_RANKS_MAX) < 0)
		return err_errno(err, ERR_UNAVAILABLE, errno, "no Unix socket");
	return 0;
}

/* Until there is something to read. */
static int await(const struct meeting *m, int fd, struct err *err)
{
	for (;;) {
		int64_t left_ms = (m->deadline_us - now_us()) / 1000;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int n = poll(&p, 1, (int)num_max(0, left_ms));
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return err_errno(err, ERR_UNAVAILABLE, errno, "no Unix socket");
		if (left_ms <= 0)
			return err_set(err, ERR_UNAVAILABLE, NULL, "a rank did not connect");
	}
}

static int greet(struct meeting *m, int socket, int rank, struct err *err)
{
	struct greeting g = { .magic = HELLO_MAGIC, .rank = (uint32_t)m->o->rank };
	memcpy(g.address, m->hellos[rank].address, sizeof(g.address));
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { &g, sizeof(g) };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &m->memory, sizeof(int));
	if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)sizeof(g))
		return err_errno(err, ERR_UNAVAILABLE, errno, "rank %d cannot be told", rank);
	return 0;
}

/* The greeting of one of the ranks from first to last, and its descriptor. */
static int take_greeting(struct meeting *m, int socket, int first, int last, int *ret_rank,
	int *ret_memory, struct err *err)
{
	struct greeting g = { 0 };
	struct ucred who = { 0 };
	socklen_t who_bytes = sizeof(who);
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { &g, sizeof(g) };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.room) };
	int rc = await(m, socket, err);
	if (rc < 0)
		return rc;
	ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	cleanup(closep) int fd = -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	if (n >= 0 && c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(c), sizeof(int));
	if (n != (ssize_t)sizeof(g) || fd < 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
		g.magic != HELLO_MAGIC || g.rank < (uint32_t)first || g.rank > (uint32_t)last ||
		memcmp(g.address, m->hellos[m->o->rank].address, sizeof(g.address)) != 0 ||
		getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) < 0 || who.uid != geteuid())
		return err_set(err, ERR_UNAVAILABLE, NULL, "a process that is no rank answered");
	*ret_rank = (int)g.rank;
	*ret_memory = fd;
	fd = -1;
	return 0;
}

/* The other's segment, from a socket that is connected; takes the socket over. */
static int link_up(
	struct meeting *m, int socket_taken, int first, int last, bool answer, struct err *err)
{
	cleanup(closep) int socket = socket_taken, memory = -1;
	int rank = -1;
	void *segment = NULL;
	int rc = take_greeting(m, socket, first, last, &rank, &memory, err);
	if (rc == 0 && m->l->links[rank].segment != NULL)
		rc = err_set(err, ERR_UNAVAILABLE, NULL, "rank %d came twice", rank);
	if (rc == 0)
		rc = map(m, memory, &segment, err);
	if (rc < 0)
		return rc;
	int mine = socket;
	socket = -1;
	take_link(m, rank, mine, segment);
	return answer ? greet(m, mine, rank, err) : 0;
}

static int call(struct meeting *m, int rank, int *ret_socket, struct err *err)
{
	struct sockaddr_un where;
	socklen_t length = address_of(m->hellos[rank].address, &where);
	cleanup(closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&where, length) < 0)
		return err_errno(err, ERR_UNAVAILABLE, errno, "rank %d does not listen", rank);
	int rc = greet(m, fd, rank, err);
	if (rc < 0)
		return rc;
	*ret_socket = fd;
	fd = -1;
	return 0;
}

/* Calls the ranks before ours, then answers those behind it, then hears the first ones' answers:
 * everyone has called before anyone waits. */
static int connect_all(struct meeting *m, struct err *err)
{
	int rank = m->o->rank, calls[COMM_RANKS_MAX];
	for (int r = 0; r < rank; r++)
		calls[r] = -1;
	int rc = map(m, m->memory, &m->l->segment, err);
	m->l->bell = m->l->segment;
	for (int r = 0; r < rank && rc == 0; r++)
		rc = call(m, r, &calls[r], err);
	for (int r = rank + 1; r < m->o->size && rc == 0; r++) {
		rc = await(m, m->listener, err);
		int fd = rc == 0 ? accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
		if (fd >= 0)
			rc = link_up(m, fd, rank + 1, m->o->size - 1, true, err);
		else if (rc == 0)
			rc = err_errno(err, ERR_UNAVAILABLE, errno, "a rank's call was lost");
	}
	for (int r = 0; r < rank; r++) {
		if (rc == 0)
			rc = link_up(m, calls[r], r, r, false, err);
		else
			closep(&calls[r]);
	}
	return rc;
}

/* ------------------------------------------------------------------ the store */

static void key_of(
	const struct meeting *m, const char *what, int rank, char ret_key[static COMM_STORE_KEY_MAX])
{
	snprintf(ret_key, COMM_STORE_KEY_MAX, "%s.shm.%s.%d", m->o->name, what, rank);
}

static int tell(
	struct meeting *m, const char *what, const void *value, size_t bytes, struct err *err)
{
	char key[COMM_STORE_KEY_MAX];
	key_of(m, what, m->o->rank, key);
	return comm_store_put(m->o->store, key, value, bytes, err);
}

static int hear(struct meeting *m, const char *what, int rank, int64_t deadline_us,
	char **ret_value, size_t *ret_bytes, struct err *err)
{
	char key[COMM_STORE_KEY_MAX];
	const struct comm_options *o = m->o;
	key_of(m, what, rank, key);
	int64_t left_ms = num_max(0, (deadline_us - now_us()) / 1000);
	int rc = comm_store_get(o->store, key, left_ms, ret_value, ret_bytes, NULL);
	if (rc == ERR_TIMEOUT)
		return err_set(err, rc, NULL, "group %s (rank %d of %d): rank %d did not come in %lld ms",
			o->name, o->rank, o->size, rank,
			(long long)(o->open_ms > 0 ? o->open_ms : COMM_OPEN_MS));
	if (rc < 0)
		return err_set(err, rc, NULL, "group %s (rank %d of %d): what rank %d says cannot be read",
			o->name, o->rank, o->size, rank);
	return 0;
}

/* The machine, as far as it matters here. */
static int where_am_i(struct hello *ret, struct err *err)
{
	cleanup(freep) char *boot = NULL;
	size_t bytes = 0;
	struct stat network;
	int rc = file_read("/proc/sys/kernel/random/boot_id", BOOT_MAX, &boot, &bytes, err);
	if (rc == 0 && stat("/proc/self/ns/net", &network) < 0)
		rc = err_errno(err, ERR_UNAVAILABLE, errno, "the network's namespace is unknown");
	if (rc < 0)
		return rc;
	memcpy(ret->boot, boot, num_min((int64_t)bytes, BOOT_MAX - 1));
	ret->network_device = network.st_dev;
	ret->network = network.st_ino;
	ret->user = geteuid();
	return 0;
}

static int say_hello(struct meeting *m, struct err *err)
{
	const struct comm_options *o = m->o;
	struct hello *mine = &m->hellos[o->rank];
	*mine = (struct hello){ .magic = HELLO_MAGIC,
		.size = (uint32_t)o->size,
		.check = o->check,
		.transport = o->transport };
	int rc = where_am_i(mine, err);
	if (rc == 0)
		rc = make_segment(m, err);
	if (rc == 0)
		rc = listen_somewhere(m, mine, err);
	mine->able = rc == 0; /* the others need to know, or they would wait */
	return tell(m, "hello", mine, sizeof(*mine), err);
}

/* Everyone reads all and comes to the same end. */
static int compare_hellos(struct meeting *m, int64_t deadline_us, struct err *err)
{
	const struct comm_options *o = m->o;
	const struct hello *mine = &m->hellos[o->rank];
	int apart = -1;
	for (int r = 0; r < o->size; r++) {
		cleanup(freep) char *value = NULL;
		size_t bytes = 0;
		struct hello *h = &m->hellos[r];
		int rc = r == o->rank ? 0 : hear(m, "hello", r, deadline_us, &value, &bytes, err);
		if (rc < 0)
			return rc;
		if (r != o->rank && bytes == sizeof(*h))
			memcpy(h, value, sizeof(*h));
		if (h->magic != mine->magic || h->size != mine->size || h->check != mine->check ||
			h->transport != mine->transport)
			return err_set(err, ERR_CONFLICT, NULL,
				"group %s (rank %d of %d): rank %d opened it with other options", o->name, o->rank,
				o->size, r);
		if (!h->able || h->user != mine->user || h->network != mine->network ||
			h->network_device != mine->network_device ||
			memcmp(h->boot, mine->boot, sizeof(h->boot)) != 0)
			apart = r;
	}
	if (apart >= 0)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"group %s (rank %d of %d): no memory is shared with rank %d", o->name, o->rank, o->size,
			apart);
	return 0;
}

/* One that cannot takes all others with it, to another transport. */
static int agree(struct meeting *m, int64_t deadline_us, struct err *err)
{
	struct err why = { 0 };
	const struct comm_options *o = m->o;
	int apart = -1;
	int rc = tell(m, "ready", connect_all(m, &why) == 0 ? "1" : "0", 1, err);
	for (int r = 0; r < o->size && rc == 0; r++) {
		cleanup(freep) char *value = NULL;
		size_t bytes = 0;
		rc = hear(m, "ready", r, deadline_us, &value, &bytes, err);
		if (rc == 0 && value[0] != '1')
			apart = r;
	}
	if (rc == 0 && apart >= 0)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"group %s (rank %d of %d): rank %d cannot share memory with all%s%s", o->name, o->rank,
			o->size, apart, why.code < 0 ? "; here " : "", why.message);
	return rc;
}

int comm_shm_meet(
	const struct comm_options *o, int64_t deadline_us, struct comm_shm_links *ret, struct err *err)
{
	cleanup(freep) struct hello *hellos = calloc((size_t)o->size, sizeof(*hellos));
	struct comm_shm_links l = { .rank = o->rank, .size = o->size };
	l.links = calloc((size_t)o->size, sizeof(*l.links));
	if (hellos == NULL || l.links == NULL) {
		free(l.links);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	}
	for (int r = 0; r < o->size; r++)
		l.links[r].socket = -1;
	lay_out(&l);
	struct meeting m = { .o = o, .l = &l, .listener = -1, .memory = -1, .hellos = hellos };
	int rc = say_hello(&m, err);
	if (rc == 0)
		rc = compare_hellos(&m, deadline_us, err);
	if (rc == 0) {
		m.deadline_us = num_min(deadline_us, now_us() + CONNECT_MS * INT64_C(1000));
		rc = agree(&m, deadline_us, err);
	}
	closep(&m.listener);
	closep(&m.memory);
	if (rc < 0) {
		comm_shm_links_finish(&l);
		return rc;
	}
	*ret = l;
	return 0;
}

void comm_shm_part(struct comm_shm_links *l)
{
	for (int r = 0; r < l->size; r++) {
		closep(&l->links[r].socket);
		l->links[r].socket = -1;
	}
}

void comm_shm_links_finish(struct comm_shm_links *l)
{
	comm_shm_part(l);
	for (int r = 0; r < l->size; r++)
		if (l->links[r].segment != NULL)
			munmap(l->links[r].segment, (size_t)l->segment_bytes);
	if (l->segment != NULL)
		munmap(l->segment, (size_t)l->segment_bytes);
	free(l->links);
}
