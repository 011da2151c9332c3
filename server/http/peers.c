/* SPDX-License-Identifier: Apache-2.0
 * Whole-request deadlines. The kernel's byte counters (TCP_INFO) say whether an idle connection
 * has begun a request, and whether a client takes its reply. */
#include "server/http/peers.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { US_PER_S = 1000000, US_PER_MS = 1000, NS_PER_US = 1000 };

struct peer {
	int fd;
	enum peer_phase phase;
	bool begun; /* PEER_IDLE: the next request has begun; since_us is when */
	bool ended;
	int64_t since_us;
	uint64_t counter; /* the kernel's, when the phase began */
	atomic_int_least64_t body_bytes;
	struct peer *prev, *next;
};

struct peers {
	const struct clock *clock;
	struct peer_limits limits;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t tick;
	bool ending;
	struct peer *head;
};

static bool read_counters(int fd, struct tcp_info *ret)
{
	socklen_t len = sizeof(*ret);
	memset(ret, 0, sizeof(*ret));
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret, &len) == 0;
}

static bool late(const struct peers *p, const struct peer *peer, int64_t now_us, int64_t limit_s)
{
	return now_us - peer->since_us > limit_s * US_PER_S;
}

/* Bytes so far against the least that the time since the grace asks for. */
static bool slow(const struct peers *p, const struct peer *peer, int64_t now_us, int64_t bytes)
{
	int64_t counted_us = now_us - peer->since_us - p->limits.body_timeout_s * US_PER_S;
	return counted_us > 0 && bytes < counted_us / US_PER_S * p->limits.min_bytes_per_s;
}

static bool idle_is_late(const struct peers *p, struct peer *peer, int64_t now_us)
{
	struct tcp_info info;
	if (!peer->begun) {
		if (!read_counters(peer->fd, &info) || info.tcpi_bytes_received == peer->counter)
			return false; /* silence is the library's to end */
		peer->begun = true;
		peer->since_us = now_us;
	}
	return late(p, peer, now_us, p->limits.headers_timeout_s);
}

static bool reply_is_slow(const struct peers *p, const struct peer *peer, int64_t now_us)
{
	struct tcp_info info;
	if (!late(p, peer, now_us, p->limits.body_timeout_s) || !read_counters(peer->fd, &info))
		return false;
	return slow(p, peer, now_us, (int64_t)(info.tcpi_bytes_acked - peer->counter));
}

static bool over(const struct peers *p, struct peer *peer, int64_t now_us)
{
	switch (peer->phase) {
	case PEER_CONNECTED: return late(p, peer, now_us, p->limits.headers_timeout_s);
	case PEER_IDLE: return idle_is_late(p, peer, now_us);
	case PEER_BODY_SMALL: return late(p, peer, now_us, p->limits.body_timeout_s);
	case PEER_BODY_LARGE: return slow(p, peer, now_us, atomic_load(&peer->body_bytes));
	case PEER_REPLY: return reply_is_slow(p, peer, now_us);
	case PEER_LINGER: return late(p, peer, now_us, PEERS_LINGER_S);
	case PEER_WORK:
	case PEER_STREAM: return false;
	}
	return false;
}

static void end(struct peer *peer)
{
	if (peer->ended)
		return;
	peer->ended = true;
	(void)shutdown(peer->fd, SHUT_RDWR);
}

static void *loop(void *arg)
{
	struct peers *p = arg;
	pthread_mutex_lock(&p->lock);
	while (!p->ending) {
		int64_t now_us = clock_mono_us(p->clock);
		for (struct peer *peer = p->head; peer; peer = peer->next) {
			if (over(p, peer, now_us))
				end(peer);
		}
		struct timespec until;
		(void)clock_gettime(CLOCK_MONOTONIC, &until);
		int64_t us = until.tv_nsec / NS_PER_US + (int64_t)PEERS_TICK_MS * US_PER_MS;
		until.tv_sec += us / US_PER_S;
		until.tv_nsec = (us % US_PER_S) * NS_PER_US;
		while (!p->ending && pthread_cond_timedwait(&p->tick, &p->lock, &until) != ETIMEDOUT) {
		}
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int peers_create(const struct clock *clock, const struct peer_limits *limits, struct peers **ret,
	struct err *err)
{
	struct peers *p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	p->clock = clock;
	p->limits = *limits;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->tick, &attr);
	pthread_condattr_destroy(&attr);
	int failed = pthread_create(&p->thread, NULL, loop, p);
	if (failed) {
		free(p);
		return err_errno(err, ERR_NO_MEMORY, failed, "starting the thread of deadlines");
	}
	*ret = p;
	return 0;
}

void peers_destroy(struct peers *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->ending = true;
	pthread_cond_signal(&p->tick);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	pthread_cond_destroy(&p->tick);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

struct peer *peers_add(struct peers *p, int fd)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->fd = fd;
	peer->phase = PEER_CONNECTED;
	peer->since_us = clock_mono_us(p->clock);
	pthread_mutex_lock(&p->lock);
	peer->next = p->head;
	if (p->head)
		p->head->prev = peer;
	p->head = peer;
	pthread_mutex_unlock(&p->lock);
	return peer;
}

void peers_remove(struct peers *p, struct peer *peer)
{
	pthread_mutex_lock(&p->lock);
	if (peer->prev)
		peer->prev->next = peer->next;
	else
		p->head = peer->next;
	if (peer->next)
		peer->next->prev = peer->prev;
	pthread_mutex_unlock(&p->lock);
	free(peer);
}

void peers_enter(struct peers *p, struct peer *peer, enum peer_phase phase)
{
	struct tcp_info info;
	uint64_t counter = 0;
	if ((phase == PEER_IDLE || phase == PEER_REPLY) && read_counters(peer->fd, &info))
		counter = phase == PEER_IDLE ? info.tcpi_bytes_received : info.tcpi_bytes_acked;
	int64_t now_us = clock_mono_us(p->clock);
	pthread_mutex_lock(&p->lock);
	peer->phase = phase;
	peer->begun = false;
	peer->since_us = now_us;
	peer->counter = counter;
	atomic_store(&peer->body_bytes, 0);
	pthread_mutex_unlock(&p->lock);
}

void peers_received(struct peer *peer, size_t bytes)
{
	atomic_fetch_add(&peer->body_bytes, (int64_t)bytes);
}

int peers_fd(const struct peer *peer)
{
	return peer->fd;
}

void peers_shutdown_all(struct peers *p)
{
	pthread_mutex_lock(&p->lock);
	for (struct peer *peer = p->head; peer; peer = peer->next)
		end(peer);
	pthread_mutex_unlock(&p->lock);
}
