/* SPDX-License-Identifier: Apache-2.0
 * Elements of a whole tensor that a rank keeps or a file has: a stretch of what a cut takes from
 * it. Two of them have runs in common, found without looking at single elements; many may make up
 * the whole. Pure. Used by the shards, gather and hf files. */
#pragma once

#include "workers/engine/engine.h"
#include "workers/plan/plan_cut.h"
#include "workers/trainer/half.h"

#include <stdbool.h>
#include <stdint.h>

/* Elements [begin, begin + count) of those that cut takes from the whole, in their order. */
struct span {
	struct plan_cut cut;
	int64_t begin, count;
};

static inline struct span span_of(const struct engine_tensor *t)
{
	return (struct span){ t->cut, t->begin, t->count };
}

/* Elements [begin, end) of a whole tensor of so many. */
static inline struct span span_stretch(int64_t total, int64_t begin, int64_t end)
{
	return (struct span){ plan_cut_none(total), begin, end - begin };
}

/* The cut's first element that is the whole's element `at` or lies behind it. */
int64_t span_behind(const struct plan_cut *c, int64_t at);
/* What s has of the whole's [begin, end): neighbours in memory, in the order of the whole. */
struct span span_inside(const struct span *s, int64_t begin, int64_t end);

/* Elements that lie side by side in both: where, from the begin of each. */
struct span_run {
	int64_t a, b, count;
};
/* The next run that two spans of one tensor have in common, from front to back; *run starts as
 * zeros. */
bool span_next(const struct span *a, const struct span *b, struct span_run *run);
/* What to and from have in common. Both lie packed, in memory that does not overlap. */
void span_copy(const struct span *to, enum half_type to_type, void *to_data,
	const struct span *from, enum half_type from_type, const void *from_data);

/* How spans that come in the order of span_compare make up a whole. */
struct span_tiling {
	struct plan_cut cut;
	int64_t at;    /* elements of the cut so far */
	int64_t count; /* elements in all */
};
enum span_fit {
	SPAN_FITS,
	SPAN_OVERLAPS, /* begins with an element that another has had */
	SPAN_LEAVES_GAP,
	SPAN_OF_ANOTHER_CUT, /* whose parts are not beside one another in each period */
};
int span_compare(const struct span *a, const struct span *b);
/* tiling starts as zeros. */
enum span_fit span_add(struct span_tiling *tiling, const struct span *s, int64_t total);
/* Every element has come, once. */
bool span_is_whole(const struct span_tiling *tiling, int64_t total);
/* The first element that has not come. */
int64_t span_missing(const struct span_tiling *tiling, int64_t total);
