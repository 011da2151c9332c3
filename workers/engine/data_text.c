/* SPDX-License-Identifier: Apache-2.0
 * Plain text with the byte tokenizer: the files follow each other as one stream of bytes; sample i
 * predicts bytes i*T+1 .. i*T+T from bytes i*T .. i*T+T-1. Called by data.c. */
#include "core/base/utf8.h"
#include "workers/engine/data_private.h"

#include <math.h>

static int check_utf8(const struct data_map *m, const char *param, struct err *err)
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
	int64_t total = 0;
	for (int i = 0; i < d->map_count; i++) {
		for (size_t k = 0; k < d->map[i].size; k++)
			count[d->map[i].bytes[k]]++;
		total += (int64_t)d->map[i].size;
	}
	double bits = 0;
	for (int i = 0; i < 256; i++)
		if (count[i] > 0)
			bits -= (double)count[i] * log2((double)count[i] / (double)total);
	return bits / (double)total;
}

int data_text_open(struct data *d, const char *param, struct err *err)
{
	for (int i = 0; i < d->map_count; i++) {
		int rc = check_utf8(&d->map[i], param, err);
		if (rc)
			return rc;
		d->begin[i + 1] = d->begin[i] + (int64_t)d->map[i].size;
	}
	int64_t bytes = d->begin[d->map_count];
	if (bytes < d->window + 1)
		return err_set(err, ERR_INVALID_DATA, param,
			"the text (%s) has %lld bytes; one sample of sequence_length %lld needs %lld",
			d->map[0].label, (long long)bytes, (long long)d->window, (long long)d->window + 1);
	d->info.tokens = bytes - 1;
	d->info.samples = d->info.tokens / d->window;
	d->info.entropy_bits_per_byte = entropy_bits(d);
	return 0;
}

void data_text_read(const struct data *d, int64_t index, int32_t *tokens, int32_t *labels)
{
	int64_t at = index * d->window, end = d->begin[d->map_count];
	int file = 0;
	while (at >= d->begin[file + 1])
		file++;
	const unsigned char *p = d->map[file].bytes + (at - d->begin[file]);
	int32_t next = *p;
	for (int64_t i = 0; i < d->window; i++) {
		tokens[i] = next;
		at++;
		p++;
		if (at >= end) {
			/* The last, partial window of an evaluation. */
			for (; i < d->window; i++) {
				tokens[i] = next;
				labels[i] = -1;
				next = 0;
			}
			return;
		}
		if (at == d->begin[file + 1])
			p = d->map[++file].bytes;
		next = *p;
		labels[i] = next;
	}
}
