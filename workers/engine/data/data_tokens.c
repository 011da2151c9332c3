/* SPDX-License-Identifier: Apache-2.0
 * Token files: what somebody tokenized before. A one-dimensional .npy of u2, u4 or i4, or llm.c's
 * .bin: 256 int32 (magic 20240520, version 1, number of tokens, zeros), then u2. The files follow
 * each other as one stream. Called by data.c. */
#include "workers/engine/data/data_private.h"

#include <stdlib.h>
#include <string.h>

enum { BIN_MAGIC = 20240520, BIN_VERSION = 1, BIN_HEADER_BYTES = 256 * 4 };

static uint32_t little_endian(const unsigned char *p, int bytes)
{
	uint32_t v = 0;
	for (int i = bytes - 1; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

static int open_bin(const struct data_map *m, const char *param, struct data_segment *ret,
	int64_t *ret_count, struct err *err)
{
	if (m->size < BIN_HEADER_BYTES)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s is truncated: %zu bytes, its header has %d", m->label, m->size,
			BIN_HEADER_BYTES);
	uint32_t version = little_endian(m->bytes + 4, 4), count = little_endian(m->bytes + 8, 4);
	if (version != BIN_VERSION)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s has version %u at offset 4; only version %d (tokens of 16 bits) is read",
			m->label, version, BIN_VERSION);
	if (count > INT32_MAX || m->size - BIN_HEADER_BYTES != (size_t)count * 2)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: the header promises %u tokens of 16 bits (offset 8) behind offset %d, the "
			"file has %zu bytes",
			m->label, count, BIN_HEADER_BYTES, m->size);
	*ret = (struct data_segment){ .at = m->bytes + BIN_HEADER_BYTES, .token_bytes = 2 };
	*ret_count = count;
	return 0;
}

static int open_npy(const struct data_map *m, const char *param, struct data_segment *ret,
	int64_t *ret_count, struct err *err)
{
	struct data_array a;
	int rc = data_npy_read(m, param, &a, err);
	if (rc)
		return rc;
	bool fits = a.type == DATA_U16 || a.type == DATA_U32 || a.type == DATA_I32;
	if (a.rank != 1 || !fits || a.big_endian)
		return err_set(err, ERR_INVALID_DATA, param,
			"file %s: tokens are one dimension of u2, u4 or i4, little-endian (header at offset 0)",
			m->label);
	*ret = (struct data_segment){ .at = a.bytes, .token_bytes = data_array_item_bytes(a.type) };
	*ret_count = a.dim[0];
	return 0;
}

static int open_file(const struct data_map *m, const char *param, struct data_segment *ret,
	int64_t *ret_count, struct err *err)
{
	static const unsigned char npy[] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
	if (m->size >= sizeof(npy) && memcmp(m->bytes, npy, sizeof(npy)) == 0)
		return open_npy(m, param, ret, ret_count, err);
	if (m->size >= 4 && little_endian(m->bytes, 4) == BIN_MAGIC)
		return open_bin(m, param, ret, ret_count, err);
	return err_set(err, ERR_INVALID_DATA, param,
		"file %s is neither .npy nor a .bin of tokens (no magic at offset 0)", m->label);
}

/* The largest token, so far; all must be below the limit. */
static int check_tokens(const struct data_map *m, const struct data_segment *s, int64_t count,
	int64_t limit, const char *param, uint32_t *largest, struct err *err)
{
	for (int64_t i = 0; i < count; i++) {
		const unsigned char *p = s->at + i * s->token_bytes;
		uint32_t token = little_endian(p, s->token_bytes);
		if (token >= limit)
			return err_set(err, ERR_INVALID_DATA, param,
				"file %s: token %lld of item %lld (offset %lld) is out of range 0 to %lld",
				m->label, s->token_bytes == 4 ? (long long)(int32_t)token : (long long)token,
				(long long)i, (long long)(p - m->bytes), (long long)limit - 1);
		*largest = token > *largest ? token : *largest;
	}
	return 0;
}

int data_tokens_open(struct data *d, const struct data_source *s, struct err *err)
{
	int64_t counts[SPEC_FILES_MAX], total = 0;
	int64_t limit = s->spec->model.vocab_size > 0 ? s->spec->model.vocab_size : INT32_MAX;
	uint32_t largest = 0;
	struct data_segment *segments = calloc((size_t)d->map_count + 1, sizeof(*segments));
	if (!segments)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the data set");
	d->stream.segment = segments; /* data_close frees it */
	for (int i = 0; i < d->map_count; i++) {
		const struct data_map *m = &d->map[i];
		int rc = open_file(m, s->param, &segments[i], &counts[i], err);
		if (!rc)
			rc = check_tokens(m, &segments[i], counts[i], limit, s->param, &largest, err);
		if (rc)
			return rc;
		total += counts[i];
	}
	if (total < d->window + 1)
		return err_set(err, ERR_INVALID_DATA, s->param,
			"the files (%s) have %lld tokens; one sample of sequence_length %lld needs %lld",
			d->map[0].label, (long long)total, (long long)d->window, (long long)d->window + 1);
	data_stream_attach(d, segments, counts, d->map_count);
	d->info.vocabulary = (int64_t)largest + 1;
	return 0;
}
