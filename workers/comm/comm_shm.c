/* SPDX-License-Identifier: Apache-2.0
 * The wire between ranks of one machine: a message is cut into the slots of a ring in the memory of
 * the rank it goes to. The group's thread moves all bytes, of every message, while it waits for
 * one; so nothing touches a buffer behind its back, and it looks at the clock between two slots. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "workers/comm/comm_shm_private.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	/* How often a rank that waits looks whether the others are still there. */
	PULSE_US = 20000,
	/* Looks at the rings before it sleeps, where each rank has a processor of its own. */
	SPINS = 2000,
	NONE = -1,
};

struct message {
	struct comm_message m;
	int64_t moved;
	unsigned end;     /* out, all moved: the slots that are then filled */
	const void *lent; /* in: it lies in the ring and has not been given back */
	int next;         /* the handle behind it in its line, or NONE */
};

/* Messages of one direction between two ranks that are not moved, in order. */
struct line {
	int first, last;
};

/* What is between us and another rank. Our own counts are never read back from shared memory. */
struct side {
	struct line in, out;
	unsigned filled, emptied; /* by us: of its ring, of ours */
	bool gone;
};

struct shm {
	struct comm_wire base;
	struct comm_shm_links links;
	struct message *flight; /* by handle */
	int *unused, unused_count;
	struct side *sides; /* by rank */
	struct pollfd *polls;
	int spins;
	int64_t look_us; /* when to look for the others again */
	atomic_bool interrupted;
};

static int64_t now_us(void)
{
	return clock_mono_us(clock_system());
}

/* ------------------------------------------------------------------ bells */

static void ring(struct comm_shm_bell *b)
{
	atomic_fetch_add(&b->rings, 1);
	if (atomic_exchange(&b->sleeps, 0) != 0)
		(void)syscall(SYS_futex, &b->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Until the bell rings, if it has not since `rings`, or for a while. Says that it sleeps first and
 * looks then; who rings does it the other way round: one of the two sees the other. */
static void sleep_until_rung(struct comm_shm_bell *b, unsigned rings, int64_t us)
{
	struct timespec wait = { .tv_nsec = num_min(us, PULSE_US) * 1000 };
	atomic_store(&b->sleeps, 1);
	if (us > 0 && atomic_load(&b->rings) == rings)
		(void)syscall(SYS_futex, &b->rings, FUTEX_WAIT, rings, &wait, NULL, 0);
	atomic_store(&b->sleeps, 0);
}

/* ------------------------------------------------------------------ moving */

static int broken(int peer, int *ret_peer, struct err *err)
{
	*ret_peer = peer;
	return err_set(err, ERR_NETWORK, NULL, "the shared memory makes no sense");
}

static void line_add(struct shm *s, struct line *l, int handle)
{
	s->flight[handle].next = NONE;
	if (l->first == NONE)
		l->first = handle;
	else
		s->flight[l->last].next = handle;
	l->last = handle;
}

static void empty_slot(struct shm *s, int peer)
{
	struct comm_shm_link *link = &s->links.links[peer];
	atomic_store_explicit(&link->in->emptied, ++s->sides[peer].emptied, memory_order_release);
	ring(link->bell);
}

/* Fills a slot of the ring to a rank, when there is something for it. */
static int push(struct shm *s, int peer, bool *moved, int *ret_peer, struct err *err)
{
	struct comm_shm_link *link = &s->links.links[peer];
	struct side *side = &s->sides[peer];
	if (side->out.first == NONE)
		return 0;
	struct message *m = &s->flight[side->out.first];
	unsigned used = side->filled - atomic_load_explicit(&link->out->emptied, memory_order_acquire);
	if (used > COMM_SHM_SLOTS)
		return broken(peer, ret_peer, err);
	if (used == COMM_SHM_SLOTS)
		return 0;
	unsigned slot = side->filled % COMM_SHM_SLOTS;
	int64_t bytes = num_min(s->links.chunk_bytes, m->m.bytes - m->moved);
	memcpy(link->out_data + slot * s->links.chunk_bytes, (const char *)m->m.data + m->moved,
		(size_t)bytes);
	link->out->frames[slot] = (struct comm_shm_frame){ m->m.bytes, m->m.slot };
	atomic_store_explicit(&link->out->filled, ++side->filled, memory_order_release);
	ring(link->bell);
	*moved = true;
	m->moved += bytes;
	if (m->moved == m->m.bytes) {
		m->end = side->filled;
		side->out.first = m->next;
	}
	return 0;
}

/* Empties a slot of the ring from a rank into the message that it is for. */
static int pull(struct shm *s, int peer, bool *moved, int *ret_peer, struct err *err)
{
	struct comm_shm_link *link = &s->links.links[peer];
	struct side *side = &s->sides[peer];
	if (side->in.first == NONE)
		return 0;
	struct message *m = &s->flight[side->in.first];
	unsigned used = atomic_load_explicit(&link->in->filled, memory_order_acquire) - side->emptied;
	if (used > COMM_SHM_SLOTS)
		return broken(peer, ret_peer, err);
	if (used == 0 || m->lent != NULL)
		return 0;
	unsigned slot = side->emptied % COMM_SHM_SLOTS;
	const char *data = link->in_data + slot * s->links.chunk_bytes;
	struct comm_shm_frame frame = link->in->frames[slot];
	if (frame.slot != (int64_t)m->m.slot)
		return 0; /* the other is about something else, and comes to an end of its own */
	if (frame.bytes != m->m.bytes) {
		*ret_peer = peer;
		return err_set(err, ERR_CONFLICT, NULL,
			"made another call: its message has %lld bytes, here it has %lld",
			(long long)frame.bytes, (long long)m->m.bytes);
	}
	*moved = true;
	if (m->m.lend && m->m.bytes <= s->links.chunk_bytes) {
		m->lent = data;
		return 0;
	}
	int64_t bytes = num_min(s->links.chunk_bytes, m->m.bytes - m->moved);
	memcpy((char *)m->m.data + m->moved, data, (size_t)bytes);
	m->moved += bytes;
	if (m->moved == m->m.bytes)
		side->in.first = m->next;
	empty_slot(s, peer);
	return 0;
}

/* A slot each way, for every rank. */
static int move_some(struct shm *s, bool *moved, int *ret_peer, struct err *err)
{
	int rc = 0;
	for (int i = 1; i < s->links.size && rc == 0; i++) {
		int peer = (s->links.rank + i) % s->links.size;
		rc = push(s, peer, moved, ret_peer, err);
		if (rc == 0)
			rc = pull(s, peer, moved, ret_peer, err);
	}
	return rc;
}

/* ------------------------------------------------------------------ messages */

static int shm_check(struct comm_wire *w, int64_t deadline_us, struct err *err)
{
	struct shm *s = (struct shm *)w;
	if (atomic_load_explicit(&s->interrupted, memory_order_relaxed))
		return err_set(err, ERR_CANCELLED, NULL, "interrupted");
	if (now_us() >= deadline_us)
		return err_set(err, ERR_TIMEOUT, NULL, "the deadline passed");
	return 0;
}

static int shm_start(struct comm_wire *w, const struct comm_message *m, int64_t deadline_us,
	int *ret_handle, struct err *err)
{
	struct shm *s = (struct shm *)w;
	struct side *side = &s->sides[m->peer];
	(void)deadline_us; /* nothing here takes long */
	if (s->unused_count == 0)
		return err_set(err, ERR_OVERLOADED, NULL, "too many messages are in flight");
	int handle = s->unused[--s->unused_count], peer = m->peer;
	bool moved = false;
	s->flight[handle] = (struct message){ .m = *m };
	line_add(s, m->out ? &side->out : &side->in, handle);
	int rc = m->out ? push(s, m->peer, &moved, &peer, err) : 0;
	if (rc == 0)
		*ret_handle = handle;
	return rc;
}

/* A message out is through when the other rank has it: it has come to its side of the call. */
static bool is_done(const struct shm *s, const struct message *m)
{
	if (!m->m.out)
		return m->lent != NULL || m->moved == m->m.bytes;
	unsigned emptied =
		atomic_load_explicit(&s->links.links[m->m.peer].out->emptied, memory_order_acquire);
	return m->moved == m->m.bytes && (int)(emptied - m->end) >= 0;
}

/* Marks the ranks whose process is gone, from time to time; true when there is a new one. */
static bool look_around(struct shm *s)
{
	int64_t now = now_us();
	bool found = false;
	if (now < s->look_us)
		return false;
	s->look_us = now + PULSE_US;
	if (poll(s->polls, (nfds_t)s->links.size, 0) <= 0)
		return false;
	for (int r = 0; r < s->links.size; r++) {
		if (s->polls[r].revents == 0)
			continue;
		s->sides[r].gone = found = true;
		s->polls[r].fd = -1;
	}
	return found;
}

/* NETWORK when any rank is gone, the awaited one if it can be: one that is here but waits for the
 * lost one would keep us waiting with it. What the lost one had sent has been taken before. */
static int check_gone(const struct shm *s, int *ret_peer, struct err *err)
{
	int gone = s->sides[*ret_peer].gone ? *ret_peer : NONE;
	for (int r = 0; r < s->links.size && gone == NONE; r++)
		if (s->sides[r].gone)
			gone = r;
	if (gone == NONE)
		return 0;
	*ret_peer = gone;
	return err_set(err, ERR_NETWORK, NULL, "its process is gone");
}

static int await(struct shm *s, int handle, int64_t deadline_us, int *ret_peer, struct err *err)
{
	const struct message *m = &s->flight[handle];
	*ret_peer = m->m.peer;
	for (int idle = 0;; idle++) {
		unsigned rings = atomic_load(&s->links.bell->rings);
		bool moved = false;
		int rc = is_done(s, m) ? 0 : move_some(s, &moved, ret_peer, err);
		if (rc < 0 || is_done(s, m))
			return rc;
		rc = shm_check(&s->base, deadline_us, err);
		if (rc < 0)
			return rc;
		if (moved) {
			idle = 0;
			continue;
		}
		if (idle < s->spins) {
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
			continue;
		}
		if (look_around(s))
			continue; /* what it sent before it went may still be there */
		rc = check_gone(s, ret_peer, err);
		if (rc < 0)
			return rc;
		sleep_until_rung(s->links.bell, rings, deadline_us - now_us());
	}
}

static void forget(struct shm *s, int handle)
{
	s->unused[s->unused_count++] = handle;
}

static int shm_finish(
	struct comm_wire *w, int handle, int64_t deadline_us, int *ret_peer, struct err *err)
{
	struct shm *s = (struct shm *)w;
	int rc = await(s, handle, deadline_us, ret_peer, err);
	if (rc == 0)
		forget(s, handle);
	return rc;
}

static int shm_borrow(struct comm_wire *w, int handle, int64_t deadline_us, const void **ret_data,
	int *ret_peer, struct err *err)
{
	struct shm *s = (struct shm *)w;
	const struct message *m = &s->flight[handle];
	int rc = await(s, handle, deadline_us, ret_peer, err);
	if (rc == 0)
		*ret_data = m->lent != NULL ? m->lent : m->m.data;
	return rc;
}

static void shm_give_back(struct comm_wire *w, int handle)
{
	struct shm *s = (struct shm *)w;
	struct message *m = &s->flight[handle];
	if (m->lent != NULL) {
		s->sides[m->m.peer].in.first = m->next;
		empty_slot(s, m->m.peer);
	}
	forget(s, handle);
}

static int shm_look(struct comm_wire *w, int *ret_peer, struct err *err)
{
	struct shm *s = (struct shm *)w;
	(void)look_around(s);
	int peer = s->links.rank;
	int rc = check_gone(s, &peer, err);
	if (rc < 0)
		*ret_peer = peer;
	return rc;
}

static void shm_interrupt(struct comm_wire *w)
{
	struct shm *s = (struct shm *)w;
	atomic_store(&s->interrupted, true);
	ring(s->links.bell);
}

static void shm_drop(struct comm_wire *w)
{
	struct shm *s = (struct shm *)w;
	for (int r = 0; r < s->links.size; r++)
		s->sides[r].in.first = s->sides[r].out.first = NONE;
	comm_shm_part(&s->links);
}

static void shm_destroy(struct comm_wire *w)
{
	struct shm *s = (struct shm *)w;
	comm_shm_links_finish(&s->links);
	free(s->flight);
	free(s->unused);
	free(s->sides);
	free(s->polls);
	free(s);
}

/* ------------------------------------------------------------------ opening */

static int count_processors(void)
{
	cpu_set_t set;
	return sched_getaffinity(0, sizeof(set), &set) < 0 ? 1 : CPU_COUNT(&set);
}

int comm_shm_open(
	const struct comm_options *o, int64_t deadline_us, struct comm_wire **ret, struct err *err)
{
	static const struct comm_wire_ops ops = { shm_start, shm_finish, shm_borrow, shm_give_back,
		shm_check, shm_look, shm_interrupt, shm_drop, shm_destroy };
	size_t size = (size_t)o->size, handles = size * COMM_WIRE_FLIGHT;
	struct shm *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	s->flight = calloc(handles, sizeof(*s->flight));
	s->unused = calloc(handles, sizeof(*s->unused));
	s->sides = calloc(size, sizeof(*s->sides));
	s->polls = calloc(size, sizeof(*s->polls));
	int rc = s->flight == NULL || s->unused == NULL || s->sides == NULL || s->polls == NULL
		? err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name)
		: comm_shm_meet(o, deadline_us, &s->links, err);
	if (rc < 0) {
		shm_destroy(&s->base);
		return rc;
	}
	for (size_t n = handles; n-- > 0;)
		forget(s, (int)n);
	for (int r = 0; r < o->size; r++) {
		s->sides[r].in = s->sides[r].out = (struct line){ NONE, NONE };
		s->polls[r] = (struct pollfd){ .fd = s->links.links[r].socket, .events = POLLIN };
	}
	s->spins = count_processors() >= o->size ? SPINS : 0;
	s->base = (struct comm_wire){ .ops = &ops, .piece_bytes = s->links.chunk_bytes };
	*ret = &s->base;
	return 0;
}
