/* SPDX-License-Identifier: Apache-2.0
 * Documents of tokens, several in a window: a document of n tokens fills n - 1 places, each token
 * but the last predicting the next. Behind data_read for jsonl. */
#include "workers/engine/data/data_private.h"

void data_language_blank(const struct data *d, int64_t slot, const struct data_batch *b)
{
	for (int64_t i = 0; i < d->window; i++) {
		int64_t at = slot * d->window + i;
		((int32_t *)b->input)[at] = 0;
		((int32_t *)b->labels)[at] = -1;
		if (b->positions)
			b->positions[at] = 0;
		if (b->starts)
			b->starts[at] = (int32_t)i;
	}
}

static int64_t first_of(const struct data_documents *x, int64_t window)
{
	return x->first ? x->first[window] : window;
}

static void documents_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b)
{
	const struct data_documents *x = &d->documents;
	data_language_blank(d, slot, b);
	int64_t place = 0, base = slot * d->window;
	for (int64_t doc = first_of(x, index); doc < first_of(x, index + 1); doc++) {
		const uint32_t *t = x->tokens + x->begin[doc];
		int64_t pairs = x->begin[doc + 1] - x->begin[doc] - 1, start = place;
		for (int64_t i = 0; i < pairs; i++, place++) {
			((int32_t *)b->input)[base + place] = (int32_t)(t[i] & DATA_TOKEN_MASK);
			if (t[i + 1] & DATA_TOKEN_TRAINED)
				((int32_t *)b->labels)[base + place] = (int32_t)(t[i + 1] & DATA_TOKEN_MASK);
			if (b->positions)
				b->positions[base + place] = (int32_t)i;
			if (b->starts)
				b->starts[base + place] = (int32_t)start;
		}
	}
}

static int64_t documents_valid(const struct data *d, int64_t index)
{
	const struct data_documents *x = &d->documents;
	int64_t valid = 0;
	for (int64_t doc = first_of(x, index); doc < first_of(x, index + 1); doc++)
		for (int64_t i = x->begin[doc] + 1; i < x->begin[doc + 1]; i++)
			valid += x->tokens[i] >> 31;
	return valid;
}

const struct data_reader data_documents_reader = {
	.read = documents_read, .blank = data_language_blank, .valid_rows = documents_valid
};
