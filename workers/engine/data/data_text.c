/* SPDX-License-Identifier: Apache-2.0
 * Running text. With the byte tokenizer the files follow each other as one stream of bytes; with
 * another each is tokenized when it is opened, and their tokens follow each other. Called by
 * data.c. */
#include "core/base/utf8.h"
#include "workers/engine/data/data_private.h"

#include <math.h>
#include <stdlib.h>

int data_check_utf8(const struct data_map *m, const char *param, struct err *err)
{
	size_t at = utf8_valid_prefix((const char *)m->bytes, m->size);
	if (at == m->size)
		return 0;
	int64_t line = 1;
	for (size_t i = 0; i < at; i++)
		line += m->bytes[i] == '\n';
	return err_set(err, ERR_INVALID_DATA, param,
		"file %s is not UTF-8: byte 0x%02x at offset %zu (line %lld)", m->label, m->bytes[at], at,
		(long long)line);
}

static double entropy_bits(const struct data *d)
{
	int64_t count[256] = { 0 };
	for (int i = 0; i < d->map_count; i++)
		for (size_t k = 0; k < d->map[i].size; k++)
			count[d->map[i].bytes[k]]++;
	double bits = 0;
	for (int i = 0; i < 256; i++)
		if (count[i] > 0)
			bits -= (double)count[i] * log2((double)count[i] / (double)d->info.bytes);
	return bits / (double)d->info.bytes;
}

static int open_bytes(struct data *d, const struct data_source *s, struct err *err)
{
	if (d->info.bytes < d->window + 1)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"the text (%s) has %lld bytes; one sample of sequence_length %lld needs %lld",
			d->map[0].label, (long long)d->info.bytes, (long long)d->window,
			(long long)d->window + 1);
	struct data_segment *segments = calloc((size_t)d->map_count + 1, sizeof(*segments));
	if (!segments)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the data set");
	int64_t counts[SPEC_FILES_MAX];
	for (int i = 0; i < d->map_count; i++) {
		segments[i] = (struct data_segment){ .at = d->map[i].bytes, .token_bytes = 1 };
		counts[i] = (int64_t)d->map[i].size;
	}
	data_stream_attach(d, segments, counts, d->map_count);
	d->info.vocabulary = 256;
	d->info.bytes_per_token = 1;
	return 0;
}

int data_text_open(struct data *d, const struct data_source *s, struct err *err)
{
	for (int i = 0; i < d->map_count; i++) {
		int rc = data_check_utf8(&d->map[i], s->param, err);
		if (rc)
			return rc;
	}
	d->info.entropy_bits_per_byte = entropy_bits(d);
	return open_bytes(d, s, err);
}
