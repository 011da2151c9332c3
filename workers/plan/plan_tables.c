/* SPDX-License-Identifier: Apache-2.0
 * Cuts tables for ranks. Each rank in turn takes its share of the rows that are left: so many small
 * tables, whole, that the rest of its slots is worth their place, and a cut of the largest. The
 * small ones so run out as fast as the slots do. Called by plan_family_dlrm.c. */
#include "workers/plan/plan_tables.h"

#include "core/base/num.h"
#include "core/spec/spec.h"
#include "workers/plan/plan_op.h"

/* What is left of the tables, the smallest first. */
struct rest {
	struct plan_piece item[SPEC_TABLES_MAX];
	int count;
};

int plan_tables_slots(int tables, int ranks)
{
	/* With T <= n (slots - 1) + 1 tables for n ranks, one that takes slots - 1 whole tables and a
	 * cut of another leaves as much for n - 1; and when fewer fill it, the others are so large that
	 * it holds as well. */
	return (int)num_ceil_div(tables - 1, ranks) + 1;
}

static bool before(const struct plan_piece *a, const struct plan_piece *b)
{
	return a->rows != b->rows ? a->rows < b->rows : a->table < b->table;
}

static void sort(struct rest *r)
{
	for (int i = 1; i < r->count; i++) {
		struct plan_piece x = r->item[i];
		int at = i;
		for (; at > 0 && before(&x, &r->item[at - 1]); at--)
			r->item[at] = r->item[at - 1];
		r->item[at] = x;
	}
}

/* At most `room` rows of what is left of a table. */
static void take(struct plan_piece *from, int64_t *room, struct plan_piece *to, int *count)
{
	int64_t n = num_min(from->rows, *room);
	if (n == 0)
		return;
	to[(*count)++] = (struct plan_piece){ from->table, from->first, n };
	from->first += n;
	from->rows -= n;
	*room -= n;
}

/* Exactly `room` rows of what is left. Returns how many pieces they are. */
static int fill(struct rest *r, int64_t room, int slots, struct plan_piece *ret)
{
	int whole = (int)num_min(slots, r->count) - 1, at = 0, count = 0;
	int64_t sum = 0;
	for (int i = 0; i < whole; i++)
		sum += r->item[i].rows;
	/* The smallest of those with which the largest fills the room. */
	for (; at + whole < r->count - 1 && sum + r->item[r->count - 1].rows < room; at++)
		sum += r->item[at + whole].rows - r->item[at].rows;
	for (int i = at; i < at + whole; i++)
		take(&r->item[i], &room, ret, &count);
	if (r->count > 0)
		take(&r->item[r->count - 1], &room, ret, &count);
	int left = 0;
	for (int i = 0; i < r->count; i++)
		if (r->item[i].rows > 0)
			r->item[left++] = r->item[i];
	r->count = left;
	sort(r);
	return count;
}

/* Tables of which the rank has nothing take the slots that are left; all in the order of tables. */
static void finish(struct plan_piece *piece, int count, int slots)
{
	struct plan_piece all[SPEC_TABLES_MAX] = { 0 };
	bool named[SPEC_TABLES_MAX] = { false };
	for (int i = 0; i < count; i++) {
		all[piece[i].table] = piece[i];
		named[piece[i].table] = true;
	}
	for (int t = 0; count < slots; t++)
		if (!named[t]) {
			all[t].table = t;
			named[t] = true;
			count++;
		}
	for (int t = 0, i = 0; i < slots; t++)
		if (named[t])
			piece[i++] = all[t];
}

static int64_t bytes_of(const struct plan_piece *piece, int slots, int64_t row_bytes)
{
	int64_t sum = 0;
	for (int i = 0; i < slots; i++)
		sum += num_round_up(piece[i].rows * row_bytes, PLAN_ALIGN_BYTES);
	return sum;
}

void plan_tables_cut(
	const int64_t *rows, int tables, int ranks, int64_t row_bytes, struct plan_piece *ret_pieces)
{
	const int slots = plan_tables_slots(tables, ranks);
	struct rest r = { .count = tables };
	int64_t left = 0, most = -1;
	int largest = 0;
	for (int t = 0; t < tables; t++) {
		r.item[t] = (struct plan_piece){ t, 0, rows[t] };
		left += rows[t];
	}
	sort(&r);
	for (int rank = 0; rank < ranks; rank++) {
		struct plan_piece *own = ret_pieces + rank * slots;
		int64_t room = num_ceil_div(left, ranks - rank);
		finish(own, fill(&r, room, slots, own), slots);
		left -= room;
		int64_t bytes = bytes_of(own, slots, row_bytes);
		if (bytes > most) {
			most = bytes;
			largest = rank;
		}
	}
	for (int i = 0; i < slots; i++) {
		struct plan_piece *a = &ret_pieces[i], *b = &ret_pieces[largest * slots + i], swap = *a;
		*a = *b;
		*b = swap;
	}
}
