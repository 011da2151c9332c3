/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic of strided stretches. See span.h. */
#include "workers/trainer/span.h"

static int64_t min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t end_of(const struct span *s)
{
	return s->begin + s->count;
}

static bool same_cut(const struct plan_cut *a, const struct plan_cut *b)
{
	return a->first == b->first && a->run == b->run && a->period == b->period;
}

int64_t span_behind(const struct plan_cut *c, int64_t at)
{
	int64_t before = at / c->period * c->run, in = at % c->period - c->first;
	return before + (in < 0 ? 0 : min(in, c->run));
}

struct span span_inside(const struct span *s, int64_t begin, int64_t end)
{
	int64_t from = max(s->begin, span_behind(&s->cut, begin));
	int64_t to = min(end_of(s), span_behind(&s->cut, end));
	return (struct span){ s->cut, from, max(to - from, 0) };
}

/* Columns of which none is in both. */
static bool apart(const struct plan_cut *a, const struct plan_cut *b)
{
	return a->period == b->period &&
		(a->first + a->run <= b->first || b->first + b->run <= a->first);
}

bool span_next(const struct span *a, const struct span *b, struct span_run *run)
{
	const int64_t a_end = end_of(a), b_end = end_of(b);
	const bool same = same_cut(&a->cut, &b->cut);
	int64_t i = a->begin + run->a + run->count, j = b->begin + run->b + run->count;
	if (apart(&a->cut, &b->cut))
		return false;
	if (same)
		i = j = max(i, j);
	while (i < a_end && j < b_end) {
		int64_t x = plan_cut_at(&a->cut, i), y = plan_cut_at(&b->cut, j);
		if (x < y)
			i = span_behind(&a->cut, y);
		else if (y < x)
			j = span_behind(&b->cut, x);
		else
			break;
	}
	if (i >= a_end || j >= b_end)
		return false;
	*run = (struct span_run){ i - a->begin, j - b->begin, min(a_end - i, b_end - j) };
	if (!same)
		run->count = min(
			run->count, min(plan_cut_run_end(&a->cut, i) - i, plan_cut_run_end(&b->cut, j) - j));
	return true;
}

void span_copy(const struct span *to, enum half_type to_type, void *to_data,
	const struct span *from, enum half_type from_type, const void *from_data)
{
	struct span_run run = { 0 };
	while (span_next(to, from, &run))
		half_convert(run.count, from_type, (const char *)from_data + run.b * half_bytes(from_type),
			to_type, (char *)to_data + run.a * half_bytes(to_type));
}

/* ------------------------------------------------------------------------------ a whole of many */

static int order(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

int span_compare(const struct span *a, const struct span *b)
{
	int by_first = order(a->cut.first, b->cut.first), by_run = order(a->cut.run, b->cut.run);
	if (by_first != 0 || by_run != 0)
		return by_first != 0 ? by_first : by_run;
	int by_period = order(a->cut.period, b->cut.period);
	return by_period != 0 ? by_period : order(a->begin, b->begin);
}

static bool is_complete(const struct span_tiling *t, int64_t total)
{
	return t->at == total / t->cut.period * t->cut.run;
}

enum span_fit span_add(struct span_tiling *t, const struct span *s, int64_t total)
{
	const struct plan_cut *c = &s->cut;
	int64_t next = t->cut.first + t->cut.run; /* of the period, behind the cut at hand */
	if (total % c->period != 0 || (t->count > 0 && c->period != t->cut.period))
		return SPAN_OF_ANOTHER_CUT;
	if (t->count == 0 || !same_cut(c, &t->cut)) {
		if (t->count > 0 && !is_complete(t, total))
			return SPAN_LEAVES_GAP;
		if (c->first != next)
			return c->first < next ? SPAN_OVERLAPS : SPAN_LEAVES_GAP;
		t->cut = *c;
		t->at = 0;
	}
	if (s->begin != t->at)
		return s->begin < t->at ? SPAN_OVERLAPS : SPAN_LEAVES_GAP;
	t->at += s->count;
	t->count += s->count;
	return SPAN_FITS;
}

bool span_is_whole(const struct span_tiling *t, int64_t total)
{
	return t->count == total;
}

int64_t span_missing(const struct span_tiling *t, int64_t total)
{
	if (t->count == 0)
		return 0;
	return is_complete(t, total) ? t->cut.first + t->cut.run : plan_cut_at(&t->cut, t->at);
}
