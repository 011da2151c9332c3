/* SPDX-License-Identifier: Apache-2.0
 * Augmentation of training images, as a function of one random key: a crop of the image padded with
 * zeros, then a mirror image with probability 1/2. Called by data_array.c. */
#include "workers/engine/data/data_private.h"
#include "workers/engine/rng.h"

enum { DRAW_ROW, DRAW_COLUMN, DRAW_MIRROR };

static int64_t offset(const struct data *d, uint64_t draw, uint64_t which)
{
	double places = (double)(2 * d->crop_padding + 1);
	return (int64_t)(rng_uniform(draw, which) * places) - d->crop_padding;
}

struct data_shift data_augment_shift(const struct data *d, uint64_t draw)
{
	struct data_shift s = { 0 };
	if (!draw)
		return s;
	if (d->crop_padding > 0) {
		s.rows = offset(d, draw, DRAW_ROW);
		s.columns = offset(d, draw, DRAW_COLUMN);
	}
	s.mirror = d->flip && rng_uniform(draw, DRAW_MIRROR) < 0.5;
	return s;
}
