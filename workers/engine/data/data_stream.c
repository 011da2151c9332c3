/* SPDX-License-Identifier: Apache-2.0
 * A stream of tokens cut into windows: sample i predicts tokens i*T+1 .. i*T+T from tokens i*T ..
 * i*T+T-1. Behind data_read for running text and token files. */
#include "workers/engine/data/data_private.h"

#include <string.h>

void data_stream_attach(
	struct data *d, struct data_segment *segments, const int64_t *counts, int64_t count)
{
	int64_t begin = 0, kept = 0;
	for (int64_t i = 0; i < count; i++) {
		struct data_segment s = segments[i];
		s.begin = begin;
		if (counts[i] > 0)
			segments[kept++] = s;
		begin += counts[i];
	}
	segments[kept] = (struct data_segment){ .begin = begin };
	d->stream = (struct data_stream){ .segment = segments, .count = kept };
	d->info.tokens = begin > 0 ? begin - 1 : 0;
	d->info.samples = d->info.tokens / d->window;
	d->reader = &data_stream_reader;
}

static int64_t total(const struct data *d)
{
	return d->stream.segment[d->stream.count].begin;
}

/* The last segment that begins at or before a position. */
static int64_t find(const struct data_stream *s, int64_t at)
{
	int64_t low = 0, high = s->count;
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (s->segment[middle].begin <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void widen(const struct data_segment *s, int64_t skip, int64_t count, int32_t *into)
{
	const unsigned char *p = s->at + skip * s->token_bytes;
	if (s->token_bytes == 1) {
		for (int64_t i = 0; i < count; i++)
			into[i] = p[i];
	} else if (s->token_bytes == 2) {
		for (int64_t i = 0; i < count; i++)
			into[i] = p[2 * i] | p[2 * i + 1] << 8;
	} else {
		memcpy(into, p, (size_t)count * sizeof(int32_t));
	}
}

static void copy(const struct data_stream *s, int64_t at, int64_t count, int32_t *into)
{
	for (int64_t i = find(s, at); count > 0; i++) {
		const struct data_segment *piece = &s->segment[i];
		int64_t here = piece[1].begin - at;
		here = here < count ? here : count;
		widen(piece, at - piece->begin, here, into);
		into += here;
		at += here;
		count -= here;
	}
}

static int64_t stream_valid(const struct data *d, int64_t index)
{
	int64_t left = d->info.tokens - index * d->window;
	return left < d->window ? left : d->window;
}

static void stream_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b)
{
	int64_t window = d->window, at = index * window;
	int64_t valid = stream_valid(d, index);
	int64_t tokens = total(d) - at < window ? total(d) - at : window;
	int32_t *input = (int32_t *)b->input + slot * window;
	int32_t *labels = (int32_t *)b->labels + slot * window;
	copy(&d->stream, at, tokens, input);
	copy(&d->stream, at + 1, valid, labels);
	/* Only the last, partial window of an evaluation is shorter. */
	for (int64_t i = tokens; i < window; i++)
		input[i] = 0;
	for (int64_t i = valid; i < window; i++)
		labels[i] = -1;
	if (b->positions)
		for (int64_t i = 0; i < window; i++)
			b->positions[slot * window + i] = (int32_t)i;
	if (b->starts)
		memset(b->starts + slot * window, 0, (size_t)window * sizeof(int32_t));
}

const struct data_reader data_stream_reader = {
	.read = stream_read, .blank = data_language_blank, .valid_rows = stream_valid
};
