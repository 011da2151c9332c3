/* SPDX-License-Identifier: Apache-2.0
 * The order of a pipeline's passes, for all small shapes: each pass comes once; ranks that send
 * without buffering and receive one item ahead never wait for each other in a circle; what is under
 * way fits the slots; and the time lost is the formula's. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include "workers/plan/plan_schedule.h"

#include <stdio.h>

enum {
	RANKS = 8,
	CHUNKS = 4,
	MICROS = 16,
	ITEMS = 2 * CHUNKS * MICROS,
	FORWARD_TIME = 1,
	BACKWARD_TIME = 2,
	UNKNOWN = -1,
};

/* Items that go from one rank to another in one direction, in order: when each was sent and asked
 * for; a transfer is done at the later of the two, at once. */
struct edge {
	int sent, asked;
	int64_t sent_at[ITEMS], asked_at[ITEMS];
	int sent_what[ITEMS], asked_what[ITEMS];
};

/* Where a rank is: item, and the part of it. */
enum part { POST, RECEIVED, SENT_BEFORE, DONE };
struct runner {
	int64_t item;
	enum part part;
	int64_t now;
	int last_sent[2][CHUNKS][2]; /* by phase, chunk and turn: number on the edge, UNKNOWN = none */
	int received[2][CHUNKS][2];
};

struct world {
	struct plan_schedule s;
	struct edge edge[2][RANKS]; /* by phase and sender */
	struct runner rank[RANKS];
};

static int what_of(const struct plan_item *i)
{
	return i->chunk * MICROS + (int)i->micro;
}

/* The chunk that reads what this one sends, UNKNOWN = none. */
static int next_chunk(const struct world *w, int rank, const struct plan_item *i)
{
	int stages = w->s.ranks * w->s.chunks, stage = i->chunk * w->s.ranks + rank;
	stage += i->phase == PLAN_FORWARD ? 1 : -1;
	return stage < 0 || stage >= stages ? UNKNOWN : stage / w->s.ranks;
}

static bool receives(const struct world *w, int rank, const struct plan_item *i)
{
	int stage = i->chunk * w->s.ranks + rank;
	return i->phase == PLAN_FORWARD ? stage > 0 : stage < w->s.ranks * w->s.chunks - 1;
}

static struct edge *edge_out(struct world *w, int rank, const struct plan_item *i)
{
	return &w->edge[i->phase][rank];
}

static struct edge *edge_in(struct world *w, int rank, const struct plan_item *i)
{
	int from = i->phase == PLAN_FORWARD ? rank + w->s.ranks - 1 : rank + 1;
	return &w->edge[i->phase][from % w->s.ranks];
}

/* True, and the clock is there, when transfer number n of an edge is done. */
static bool wait_until(const struct edge *e, int n, int64_t *now)
{
	if (n >= e->sent || n >= e->asked)
		return false;
	int64_t at = e->sent_at[n] > e->asked_at[n] ? e->sent_at[n] : e->asked_at[n];
	*now = at > *now ? at : *now;
	return true;
}

/* Forward passes send from one buffer, backward passes from two in turn. */
static int turn_of(const struct plan_item *i)
{
	return i->phase == PLAN_FORWARD ? 0 : (int)(i->micro % 2);
}

static bool buffer_is_free(struct world *w, int rank, const struct plan_item *i)
{
	struct runner *r = &w->rank[rank];
	int last = r->last_sent[i->phase][i->chunk][turn_of(i)];
	return last == UNKNOWN || wait_until(edge_out(w, rank, i), last, &r->now);
}

static bool post(struct world *w, int rank, int64_t item)
{
	struct runner *r = &w->rank[rank];
	if (item >= plan_schedule_count(&w->s))
		return true;
	struct plan_item i = plan_schedule_at(&w->s, item);
	if (!receives(w, rank, &i))
		return true;
	if (i.phase == PLAN_BACKWARD && !buffer_is_free(w, rank, &i))
		return false;
	struct edge *e = edge_in(w, rank, &i);
	r->received[i.phase][i.chunk][i.micro % 2] = e->asked;
	e->asked_at[e->asked] = r->now;
	e->asked_what[e->asked++] = what_of(&i);
	return true;
}

static bool received(struct world *w, int rank, const struct plan_item *i)
{
	return !receives(w, rank, i) ||
		wait_until(edge_in(w, rank, i), w->rank[rank].received[i->phase][i->chunk][i->micro % 2],
			&w->rank[rank].now);
}

static void finish(struct world *w, int rank, const struct plan_item *i)
{
	struct runner *r = &w->rank[rank];
	r->now += i->phase == PLAN_FORWARD ? FORWARD_TIME : BACKWARD_TIME;
	int chunk = next_chunk(w, rank, i);
	if (chunk == UNKNOWN)
		return;
	struct edge *e = edge_out(w, rank, i);
	struct plan_item there = *i;
	there.chunk = chunk;
	r->last_sent[i->phase][i->chunk][turn_of(i)] = e->sent;
	e->sent_at[e->sent] = r->now;
	e->sent_what[e->sent++] = what_of(&there);
}

/* One part further; false where it must wait for another rank, or is through. */
static bool advance(struct world *w, int rank)
{
	struct runner *r = &w->rank[rank];
	if (r->item == plan_schedule_count(&w->s))
		return false;
	struct plan_item i = plan_schedule_at(&w->s, r->item);
	bool ok = true;
	switch (r->part) {
	case POST: ok = post(w, rank, r->item + 1); break;
	case RECEIVED: ok = received(w, rank, &i); break;
	case SENT_BEFORE: ok = next_chunk(w, rank, &i) == UNKNOWN || buffer_is_free(w, rank, &i); break;
	case DONE: finish(w, rank, &i); break;
	}
	if (!ok)
		return false;
	r->part = r->part == DONE ? POST : r->part + 1;
	r->item += r->part == POST;
	return true;
}

static void check_edges(const struct world *w, const char *name)
{
	for (int phase = 0; phase < 2; phase++)
		for (int rank = 0; rank < w->s.ranks; rank++) {
			const struct edge *e = &w->edge[phase][rank];
			assert_int_equal(e->sent, e->asked);
			for (int i = 0; i < e->sent; i++)
				if (e->sent_what[i] != e->asked_what[i])
					fail_msg(
						"%s: rank %d sends other passes than the next one asks for", name, rank);
		}
}

static void simulate(const struct plan_schedule *s, const char *name)
{
	static struct world w;
	memset(&w, 0, sizeof(w));
	w.s = *s;
	for (int rank = 0; rank < s->ranks; rank++) {
		memset(w.rank[rank].last_sent, 0xff, sizeof(w.rank[rank].last_sent));
		assert_true(post(&w, rank, 0));
	}
	for (bool moved = true; moved;) {
		moved = false;
		for (int rank = 0; rank < s->ranks; rank++) {
			w.s.rank = rank;
			while (advance(&w, rank))
				moved = true;
		}
	}
	int64_t end = 0;
	for (int rank = 0; rank < s->ranks; rank++) {
		if (w.rank[rank].item != plan_schedule_count(s))
			fail_msg("%s: rank %d never comes to its item %lld", name, rank,
				(long long)w.rank[rank].item);
		end = w.rank[rank].now > end ? w.rank[rank].now : end;
	}
	check_edges(&w, name);
	double busy = (double)(s->micros * s->chunks * (FORWARD_TIME + BACKWARD_TIME));
	double bubble = ((double)end - busy) / (double)end;
	if (fabs(bubble - plan_schedule_bubble(s)) > 1e-9)
		fail_msg("%s: the bubble is %.4f, not %.4f", name, bubble, plan_schedule_bubble(s));
}

/* Each once, forward before backward, both in the order of micro-batches; never more under way than
 * there are slots, and once as many. */
static void check_rank(const struct plan_schedule *s, const char *name)
{
	int64_t begun[CHUNKS] = { 0 }, ended[CHUNKS] = { 0 }, most[CHUNKS] = { 0 };
	for (int64_t i = 0; i < plan_schedule_count(s); i++) {
		struct plan_item item = plan_schedule_at(s, i);
		assert_in_range(item.chunk, 0, s->chunks - 1);
		int64_t *next = item.phase == PLAN_FORWARD ? begun : ended;
		if (item.micro != next[item.chunk]++)
			fail_msg("%s: item %lld is out of order", name, (long long)i);
		assert_true(ended[item.chunk] <= begun[item.chunk]);
		for (int c = 1; c < s->chunks; c++)
			assert_true(begun[c] <= begun[c - 1] && ended[c] >= ended[c - 1]);
		int64_t now = begun[item.chunk] - ended[item.chunk];
		if (most[item.chunk] < now)
			most[item.chunk] = now;
	}
	for (int c = 0; c < s->chunks; c++) {
		assert_int_equal(begun[c], s->micros);
		assert_int_equal(ended[c], s->micros);
		assert_int_equal(plan_schedule_slots(s, c), most[c]);
	}
	if (s->chunks == 1)
		assert_int_equal(most[0], s->ranks - s->rank < s->micros ? s->ranks - s->rank : s->micros);
}

static void test_every_small_shape(void **state)
{
	(void)state;
	for (int ranks = 2; ranks <= RANKS; ranks++)
		for (int chunks = 1; chunks <= CHUNKS; chunks++)
			for (int micros = 1; micros <= MICROS; micros++) {
				char name[64];
				if (chunks > 1 && micros % ranks != 0)
					continue;
				snprintf(name, sizeof(name), "%d ranks, %d chunks, %d micro-batches", ranks, chunks,
					micros);
				struct plan_schedule s = { ranks, 0, chunks, micros };
				simulate(&s, name);
				for (s.rank = 0; s.rank < ranks; s.rank++)
					check_rank(&s, name);
			}
}

/* Many micro-batches need no more slots than a few. */
static void test_slots_of_many(void **state)
{
	(void)state;
	for (int ranks = 2; ranks <= RANKS; ranks++)
		for (int chunks = 1; chunks <= CHUNKS; chunks++)
			for (int rank = 0; rank < ranks; rank++) {
				struct plan_schedule s = { ranks, rank, chunks, 20 * ranks };
				check_rank(&s, "many micro-batches");
			}
}

/* The last stage's backward pass follows its forward pass at once: they share their buffers. */
static void test_the_last_stage_turns_at_once(void **state)
{
	(void)state;
	for (int ranks = 2; ranks <= RANKS; ranks++)
		for (int chunks = 1; chunks <= CHUNKS; chunks++) {
			struct plan_schedule s = { ranks, ranks - 1, chunks, 3 * ranks };
			for (int64_t i = 0; i < plan_schedule_count(&s); i++) {
				struct plan_item item = plan_schedule_at(&s, i);
				if (item.phase != PLAN_FORWARD || item.chunk != chunks - 1)
					continue;
				struct plan_item next = plan_schedule_at(&s, i + 1);
				assert_int_equal(next.phase, PLAN_BACKWARD);
				assert_int_equal(next.chunk, item.chunk);
				assert_int_equal(next.micro, item.micro);
			}
		}
}

/* A forward pass alone goes over any number of micro-batches, each chunk once. */
static void test_forward_alone(void **state)
{
	(void)state;
	for (int micros = 1; micros <= MICROS; micros++) {
		struct plan_schedule s = { 4, 0, 3, micros };
		int seen[3][MICROS] = { 0 };
		for (int64_t k = 0; k < 3 * (int64_t)micros; k++) {
			struct plan_item i = plan_schedule_forward(&s, k);
			assert_in_range(i.micro, 0, micros - 1);
			assert_true(i.chunk == 0 || seen[i.chunk - 1][i.micro] == 1);
			assert_int_equal(seen[i.chunk][i.micro]++, 0);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_small_shape),
		cmocka_unit_test(test_slots_of_many),
		cmocka_unit_test(test_the_last_stage_turns_at_once),
		cmocka_unit_test(test_forward_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
