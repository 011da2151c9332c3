/* SPDX-License-Identifier: Apache-2.0
 * The collectives over a wire. A flight is a set of messages that are finished together; the
 * reductions have several in the air, so that the wire is busy while a piece is summed. */
#include "workers/comm/comm_collect.h"

#include "core/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PIECE_BYTES_MAX = 1 << 20, /* of a reduction, in flight from one rank */
	PIECE_ALIGN = 4096,
	SCRATCH_BYTES_MAX = 64 << 20,      /* pieces that wait to be summed: two for each rank */
	BROADCAST_WHOLE_BYTES = 64 * 1024, /* up to here the root sends everything to everyone */
	COPY_BYTES = 1 << 20,              /* between two looks at the deadline */
};

/* What a rank tells another before it does anything. */
struct header {
	int64_t number;          /* of this collective, or of this message between the two */
	int64_t sends, receives; /* elements, from and to the rank that tells */
	int32_t op, type, reduce, root;
};

struct flight {
	int count, finished;
	int *handles, *peers; /* [2 * size] */
};

struct comm_collect {
	struct comm_wire *wire;
	int rank, size;
	bool check;
	int64_t collectives;      /* begun */
	int64_t *sent, *received; /* messages begun, by rank */
	struct header *mine, *theirs;
	struct flight in[2], out[2], gather[2];
	char *scratch; /* [2][size][piece_bytes] */
	int64_t piece_bytes;
	const void **parts;
	int64_t deadline_us; /* of the call that runs */
	int peer;            /* that it fails because of */
};

/* ------------------------------------------------------------------ flights */

static int start(struct comm_collect *k, struct flight *f, int peer, enum comm_slot slot, bool out,
	const void *data, int64_t bytes, struct err *err)
{
	if (bytes == 0)
		return 0;
	struct comm_message m = {
		.peer = peer, .slot = slot, .out = out, .data = (void *)data, .bytes = bytes
	};
	k->peer = peer;
	int rc = k->wire->ops->start(k->wire, &m, k->deadline_us, &f->handles[f->count], err);
	if (rc == 0)
		f->peers[f->count++] = peer;
	return rc;
}

/* The nth piece that a rank sends for my part: it stays where the wire has it until it is summed.
 */
static int start_lent(struct comm_collect *k, struct flight *f, int peer, void *scratch,
	int64_t bytes, struct err *err)
{
	if (bytes == 0)
		return 0;
	struct comm_message m = {
		.peer = peer, .slot = COMM_SLOT_SCATTER, .lend = true, .data = scratch, .bytes = bytes
	};
	k->peer = peer;
	int rc = k->wire->ops->start(k->wire, &m, k->deadline_us, &f->handles[f->count], err);
	if (rc == 0)
		f->peers[f->count++] = peer;
	return rc;
}

/* Waits for what is lent; parts[r] is that of rank r. */
static int borrow(struct comm_collect *k, struct flight *f, struct err *err)
{
	int rc = 0;
	for (int i = 0; i < f->count && rc == 0; i++) {
		k->peer = f->peers[i];
		rc = k->wire->ops->borrow(
			k->wire, f->handles[i], k->deadline_us, &k->parts[f->peers[i]], &k->peer, err);
	}
	return rc;
}

static void give_back(struct comm_collect *k, struct flight *f)
{
	for (int i = 0; i < f->count; i++)
		k->wire->ops->give_back(k->wire, f->handles[i]);
	f->count = 0;
}

static int finish(struct comm_collect *k, struct flight *f, struct err *err)
{
	while (f->finished < f->count) {
		k->peer = f->peers[f->finished];
		int rc =
			k->wire->ops->finish(k->wire, f->handles[f->finished], k->deadline_us, &k->peer, err);
		if (rc < 0)
			return rc;
		f->finished++;
	}
	f->count = f->finished = 0;
	return 0;
}

/* The nth other rank: everyone begins with another one, so that no rank is everyone's first. */
static int other(const struct comm_collect *k, int n, bool out)
{
	return (k->rank + (out ? n : k->size - n)) % k->size;
}

/* ------------------------------------------------------------------ comparing calls */

static int differ(struct comm_collect *k, int peer, const char *what, const char *theirs,
	const char *mine, struct err *err)
{
	k->peer = peer;
	return err_set(err, ERR_CONFLICT, NULL, "made another call: its %s is %s, here it is %s", what,
		theirs, mine);
}

static int differ_number(struct comm_collect *k, int peer, const char *what, int64_t theirs,
	int64_t mine, struct err *err)
{
	char a[24], b[24];
	snprintf(a, sizeof(a), "%lld", (long long)theirs);
	snprintf(b, sizeof(b), "%lld", (long long)mine);
	return differ(k, peer, what, a, b, err);
}

static const char *name_of(int32_t op)
{
	return (uint32_t)op < COMM_OP_COUNT ? comm_op_name((enum comm_op)op) : "unknown";
}

static const char *type_of(int32_t type)
{
	return (uint32_t)type < COMM_TYPE_COUNT ? comm_type_name((enum comm_type)type) : "unknown";
}

static int compare(struct comm_collect *k, int peer, struct err *err)
{
	const struct header *m = &k->mine[peer], *t = &k->theirs[peer];
	int32_t op = m->op == COMM_SEND ? COMM_RECV : m->op == COMM_RECV ? COMM_SEND : m->op;
	if (t->op != op)
		return differ(k, peer, "operation", name_of(t->op), name_of(m->op), err);
	if (t->number != m->number)
		return differ_number(k, peer, "number", t->number, m->number, err);
	if (t->type != m->type)
		return differ(k, peer, "type", type_of(t->type), type_of(m->type), err);
	if (t->reduce != m->reduce)
		return differ(k, peer, "reduction", t->reduce == COMM_MAX ? "max" : "sum",
			m->reduce == COMM_MAX ? "max" : "sum", err);
	if (t->root != m->root)
		return differ_number(k, peer, "root", t->root, m->root, err);
	if (t->sends != m->receives)
		return differ_number(k, peer, "count", t->sends, m->receives, err);
	if (t->receives != m->sends)
		return differ_number(k, peer, "count", t->receives, m->sends, err);
	return 0;
}

/* Headers go both ways between the ranks from first to last of `other`. */
static int exchange_headers(struct comm_collect *k, const int *peers, int n, struct err *err)
{
	int rc = 0;
	for (int i = 0; i < n && rc == 0; i++) {
		rc = start(k, &k->in[0], peers[i], COMM_SLOT_HEADER, false, &k->theirs[peers[i]],
			sizeof(struct header), err);
		if (rc == 0)
			rc = start(k, &k->out[0], peers[i], COMM_SLOT_HEADER, true, &k->mine[peers[i]],
				sizeof(struct header), err);
	}
	if (rc == 0)
		rc = finish(k, &k->in[0], err);
	/* Ours must be with everyone before we may fail, or they see us leave instead. */
	if (rc == 0)
		rc = finish(k, &k->out[0], err);
	for (int i = 0; i < n && rc == 0; i++)
		rc = compare(k, peers[i], err);
	return rc;
}

static int64_t count_of(const int64_t *counts, int64_t count, int r)
{
	return counts != NULL ? counts[r] : count;
}

static int meet(struct comm_collect *k, enum comm_op op, const struct comm_args *a, struct err *err)
{
	bool pair = op == COMM_SEND || op == COMM_RECV, reduces = op <= COMM_REDUCE_SCATTER;
	bool counts = op == COMM_ALL_TO_ALL;
	int peers[COMM_RANKS_MAX], n = 0;
	if (pair) {
		int64_t *number = op == COMM_SEND ? k->sent : k->received;
		k->mine[a->root] = (struct header){ .number = ++number[a->root] };
		peers[n++] = a->root;
	} else {
		k->collectives++;
		for (int i = 1; i < k->size; i++) {
			peers[n++] = other(k, i, true);
			k->mine[peers[n - 1]] = (struct header){ .number = k->collectives };
		}
	}
	if (!k->check && op != COMM_BARRIER)
		return 0;
	for (int i = 0; i < n; i++) {
		struct header *h = &k->mine[peers[i]];
		h->op = (int32_t)op;
		if (op == COMM_BARRIER)
			continue;
		h->type = (int32_t)a->type;
		h->reduce = reduces ? (int32_t)a->reduce : 0;
		h->root = op == COMM_BROADCAST ? a->root : 0;
		h->sends =
			op == COMM_RECV ? 0 : count_of(counts ? a->send_counts : NULL, a->count, peers[i]);
		h->receives =
			op == COMM_SEND ? 0 : count_of(counts ? a->recv_counts : NULL, a->count, peers[i]);
	}
	return exchange_headers(k, peers, n, err);
}

/* ------------------------------------------------------------------ reductions */

/* A buffer cut into parts of whole elements, one for each rank, and these into pieces. */
struct cut {
	char *data;
	int64_t count, unit; /* elements of all parts; bytes of one */
	int size;
	int64_t piece; /* elements */
};

static int64_t part_begin(const struct cut *c, int r)
{
	return c->count / c->size * r + num_min(r, c->count % c->size);
}

/* Elements of the nth piece of part r; 0 behind its end. */
static int64_t piece_count(const struct cut *c, int r, int64_t n)
{
	int64_t left = part_begin(c, r + 1) - part_begin(c, r) - n * c->piece;
	return left < 0 ? 0 : num_min(left, c->piece);
}

static char *piece_at(const struct cut *c, int r, int64_t n)
{
	return c->data + (part_begin(c, r) + n * c->piece) * c->unit;
}

static char *scratch_at(const struct comm_collect *k, int64_t n, int r)
{
	return k->scratch + ((n & 1) * k->size + r) * k->piece_bytes;
}

/* Everyone's nth piece of my part comes in, mine of their parts go out. */
static int start_scatter(struct comm_collect *k, const struct cut *c, int64_t n, struct err *err)
{
	int rc = finish(k, &k->out[n & 1], err);
	for (int i = 1; i < k->size && rc == 0; i++) {
		int from = other(k, i, false), to = other(k, i, true);
		rc = start_lent(k, &k->in[n & 1], from, scratch_at(k, n, from),
			piece_count(c, k->rank, n) * c->unit, err);
		if (rc == 0)
			rc = start(k, &k->out[n & 1], to, COMM_SLOT_SCATTER, true, piece_at(c, to, n),
				piece_count(c, to, n) * c->unit, err);
	}
	return rc;
}

/* The nth piece of my part, summed, goes to everyone, and theirs come to their places: they have
 * been given what was there, or they could not have summed it. */
static int start_gather(struct comm_collect *k, const struct cut *c, int64_t n, struct err *err)
{
	int rc = finish(k, &k->gather[n & 1], err);
	for (int i = 1; i < k->size && rc == 0; i++) {
		int from = other(k, i, false), to = other(k, i, true);
		rc = start(k, &k->gather[n & 1], from, COMM_SLOT_GATHER, false, piece_at(c, from, n),
			piece_count(c, from, n) * c->unit, err);
		if (rc == 0)
			rc = start(k, &k->gather[n & 1], to, COMM_SLOT_GATHER, true, piece_at(c, k->rank, n),
				piece_count(c, k->rank, n) * c->unit, err);
	}
	return rc;
}

static struct cut cut_of(
	const struct comm_collect *k, const void *data, int64_t count, enum comm_type type)
{
	int64_t unit = comm_type_bytes(type);
	return (struct cut){ (char *)data, count, unit, k->size, k->piece_bytes / unit };
}

/* Sums my part of c, piece by piece, to its place in `all`, from where everyone gets it; or to recv
 * when there is none. */
static int reduce(struct comm_collect *k, const struct cut *c, const struct comm_args *a,
	const struct cut *all, struct err *err)
{
	int64_t pieces = num_ceil_div(part_begin(c, 1), c->piece); /* the first part is the longest */
	int rc = pieces > 0 ? start_scatter(k, c, 0, err) : 0;
	for (int64_t n = 0; n < pieces && rc == 0; n++) {
		if (n + 1 < pieces)
			rc = start_scatter(k, c, n + 1, err);
		if (rc == 0)
			rc = borrow(k, &k->in[n & 1], err);
		if (rc < 0)
			break;
		k->parts[k->rank] = piece_at(c, k->rank, n);
		void *into =
			all != NULL ? piece_at(all, k->rank, n) : (char *)a->recv + n * c->piece * c->unit;
		comm_reduce_parts(a->type, a->reduce, into, k->parts, k->size, piece_count(c, k->rank, n));
		give_back(k, &k->in[n & 1]);
		if (all != NULL)
			rc = start_gather(k, all, n, err);
	}
	for (int i = 0; i < 2 && rc == 0; i++) {
		rc = finish(k, &k->out[i], err);
		if (rc == 0)
			rc = finish(k, &k->gather[i], err);
	}
	return rc;
}

static int all_reduce(struct comm_collect *k, const struct comm_args *a, struct err *err)
{
	struct cut from = cut_of(k, a->send != NULL ? a->send : a->recv, a->count, a->type);
	struct cut to = cut_of(k, a->recv, a->count, a->type);
	return reduce(k, &from, a, &to, err);
}

static int reduce_scatter(struct comm_collect *k, const struct comm_args *a, struct err *err)
{
	struct cut from = cut_of(k, a->send, a->count * k->size, a->type);
	return reduce(k, &from, a, NULL, err);
}

/* ------------------------------------------------------------------ moving */

/* Of an exchange: where what goes to r begins and how long it is; and the same of what comes. */
struct lane {
	char *data;
	const int64_t *counts; /* NULL: count each */
	int64_t count, unit;
	bool one; /* the same for all ranks */
};

static int64_t lane_begin(const struct lane *l, int r)
{
	int64_t begin = 0;
	if (l->one)
		return 0;
	if (l->counts == NULL)
		return l->count * r * l->unit;
	for (int i = 0; i < r; i++)
		begin += l->counts[i];
	return begin * l->unit;
}

/* What a rank sends to itself. The pages of `into` may come one by one, as the kernel finds them:
 * the deadline does not wait for the last. */
static int copy_own(
	struct comm_collect *k, char *into, const char *mine, int64_t bytes, struct err *err)
{
	if (into == mine)
		return 0;
	for (int64_t begin = 0; begin < bytes; begin += COPY_BYTES) {
		memcpy(into + begin, mine + begin, (size_t)num_min(COPY_BYTES, bytes - begin));
		k->peer = -1;
		int rc = k->wire->ops->check(k->wire, k->deadline_us, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int exchange(
	struct comm_collect *k, const struct lane *out, const struct lane *in, struct err *err)
{
	int rc = 0;
	for (int i = 1; i < k->size && rc == 0; i++) {
		int from = other(k, i, false), to = other(k, i, true);
		rc = start(k, &k->in[0], from, COMM_SLOT_DATA, false, in->data + lane_begin(in, from),
			count_of(in->counts, in->count, from) * in->unit, err);
		if (rc == 0)
			rc = start(k, &k->out[0], to, COMM_SLOT_DATA, true, out->data + lane_begin(out, to),
				count_of(out->counts, out->count, to) * out->unit, err);
	}
	int64_t own = count_of(in->counts, in->count, k->rank) * in->unit;
	if (rc == 0 && own > 0)
		rc = copy_own(
			k, in->data + lane_begin(in, k->rank), out->data + lane_begin(out, k->rank), own, err);
	if (rc == 0)
		rc = finish(k, &k->in[0], err);
	return rc < 0 ? rc : finish(k, &k->out[0], err);
}

static int all_gather(struct comm_collect *k, const struct comm_args *a, struct err *err)
{
	int64_t unit = comm_type_bytes(a->type);
	struct lane out = { .data = (char *)a->send, .count = a->count, .unit = unit, .one = true };
	struct lane in = { .data = a->recv, .count = a->count, .unit = unit };
	return exchange(k, &out, &in, err);
}

static int all_to_all(struct comm_collect *k, const struct comm_args *a, struct err *err)
{
	int64_t unit = comm_type_bytes(a->type);
	struct lane out = { (char *)a->send, a->send_counts, a->count, unit, false };
	struct lane in = { a->recv, a->recv_counts, a->count, unit, false };
	return exchange(k, &out, &in, err);
}

/* A large one goes out in parts, one to each rank, which these give to one another: the root sends
 * twice its bytes and not N times. */
static int broadcast(struct comm_collect *k, const struct comm_args *a, struct err *err)
{
	struct cut c = cut_of(k, a->recv, a->count, a->type);
	bool whole = c.count * c.unit <= BROADCAST_WHOLE_BYTES || k->size == 2,
		 root = k->rank == a->root;
	int64_t begin = whole ? 0 : part_begin(&c, k->rank);
	int64_t end = whole ? c.count : part_begin(&c, k->rank + 1);
	char *mine = c.data + begin * c.unit;
	int rc = 0;
	for (int i = 1; root && i < k->size && rc == 0; i++) {
		int to = other(k, i, true);
		int64_t from = whole ? 0 : part_begin(&c, to);
		int64_t until = whole ? c.count : part_begin(&c, to + 1);
		rc = start(k, &k->out[0], to, COMM_SLOT_SCATTER, true, c.data + from * c.unit,
			(until - from) * c.unit, err);
	}
	if (!root)
		rc = start(
			k, &k->in[0], a->root, COMM_SLOT_SCATTER, false, mine, (end - begin) * c.unit, err);
	if (rc == 0)
		rc = finish(k, &k->in[0], err);
	/* The root has everything and is given nothing. */
	for (int i = 1; !whole && i < k->size && rc == 0; i++) {
		int from = other(k, i, false), to = other(k, i, true);
		int64_t theirs = part_begin(&c, from);
		if (!root)
			rc = start(k, &k->gather[0], from, COMM_SLOT_GATHER, false, c.data + theirs * c.unit,
				(part_begin(&c, from + 1) - theirs) * c.unit, err);
		if (rc == 0 && to != a->root)
			rc = start(
				k, &k->gather[0], to, COMM_SLOT_GATHER, true, mine, (end - begin) * c.unit, err);
	}
	if (rc == 0)
		rc = finish(k, &k->out[0], err);
	return rc < 0 ? rc : finish(k, &k->gather[0], err);
}

static int point(struct comm_collect *k, const struct comm_args *a, bool out, struct err *err)
{
	int rc = start(k, &k->out[0], a->root, COMM_SLOT_DATA, out, out ? a->send : a->recv,
		a->count * comm_type_bytes(a->type), err);
	return rc < 0 ? rc : finish(k, &k->out[0], err);
}

int comm_collect_run(struct comm_collect *k, enum comm_op op, const struct comm_args *a,
	int64_t deadline_us, int *ret_peer, struct err *err)
{
	k->deadline_us = deadline_us;
	k->peer = -1;
	int rc = meet(k, op, a, err);
	if (rc == 0) {
		switch (op) {
		case COMM_ALL_REDUCE: rc = all_reduce(k, a, err); break;
		case COMM_REDUCE_SCATTER: rc = reduce_scatter(k, a, err); break;
		case COMM_ALL_GATHER: rc = all_gather(k, a, err); break;
		case COMM_BROADCAST: rc = broadcast(k, a, err); break;
		case COMM_ALL_TO_ALL: rc = all_to_all(k, a, err); break;
		case COMM_SEND: rc = point(k, a, true, err); break;
		case COMM_RECV: rc = point(k, a, false, err); break;
		case COMM_BARRIER:
		case COMM_OP_COUNT: break;
		}
	}
	if (rc < 0)
		*ret_peer = k->peer;
	return rc;
}

int comm_collect_compare(struct comm_collect *k, enum comm_op op, const struct comm_args *a,
	int64_t deadline_us, int *ret_peer, struct err *err)
{
	k->deadline_us = deadline_us;
	k->peer = -1;
	int rc = meet(k, op, a, err);
	if (rc < 0)
		*ret_peer = k->peer;
	return rc;
}

void comm_collect_goodbye(struct comm_collect *k, int64_t deadline_us)
{
	k->deadline_us = deadline_us;
	int rc = 0;
	for (int i = 1; i < k->size && rc == 0; i++) {
		int peer = other(k, i, true);
		rc = start(k, &k->in[0], peer, COMM_SLOT_GOODBYE, false, &k->theirs[peer], 1, NULL);
		if (rc == 0)
			rc = start(k, &k->out[0], peer, COMM_SLOT_GOODBYE, true, &k->mine[peer], 1, NULL);
	}
	if (rc == 0)
		rc = finish(k, &k->in[0], NULL);
	if (rc == 0)
		(void)finish(k, &k->out[0], NULL);
}

/* ------------------------------------------------------------------ memory */

static bool flight_init(struct flight *f, int size)
{
	f->handles = calloc(2 * (size_t)size, sizeof(*f->handles));
	f->peers = calloc(2 * (size_t)size, sizeof(*f->peers));
	return f->handles != NULL && f->peers != NULL;
}

int comm_collect_create(const struct comm_options *o, struct comm_wire *wire,
	struct comm_collect **ret, struct err *err)
{
	struct comm_collect *k = calloc(1, sizeof(*k));
	if (k == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	size_t size = (size_t)o->size;
	k->wire = wire;
	k->rank = o->rank;
	k->size = o->size;
	k->check = o->check;
	k->piece_bytes = num_min(num_min(PIECE_BYTES_MAX, wire->piece_bytes),
		SCRATCH_BYTES_MAX / 2 / o->size / PIECE_ALIGN * PIECE_ALIGN);
	k->sent = calloc(size, sizeof(*k->sent));
	k->received = calloc(size, sizeof(*k->received));
	k->mine = calloc(size, sizeof(*k->mine));
	k->theirs = calloc(size, sizeof(*k->theirs));
	k->parts = calloc(size, sizeof(*k->parts));
	k->scratch = malloc(2 * size * (size_t)k->piece_bytes);
	bool ok = k->sent && k->received && k->mine && k->theirs && k->parts && k->scratch;
	for (int i = 0; i < 2; i++) {
		ok = flight_init(&k->in[i], o->size) && ok;
		ok = flight_init(&k->out[i], o->size) && ok;
		ok = flight_init(&k->gather[i], o->size) && ok;
	}
	if (!ok) {
		comm_collect_destroy(k);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	}
	*ret = k;
	return 0;
}

static void flight_finish(struct flight *f)
{
	free(f->handles);
	free(f->peers);
}

void comm_collect_destroy(struct comm_collect *k)
{
	if (k == NULL)
		return;
	for (int i = 0; i < 2; i++) {
		flight_finish(&k->in[i]);
		flight_finish(&k->out[i]);
		flight_finish(&k->gather[i]);
	}
	free(k->sent);
	free(k->received);
	free(k->mine);
	free(k->theirs);
	free(k->parts);
	free(k->scratch);
	free(k);
}
