/* SPDX-License-Identifier: Apache-2.0
 * Rows of a table: dense features, a label, bags of ids. Behind data_read for csv. */
#include "workers/engine/data/data_private.h"

#include <math.h>
#include <string.h>

static bool has_class(const struct data *d)
{
	return d->task == SPEC_CLASSIFICATION;
}

static void rows_read(
	const struct data *d, int64_t index, int64_t slot, uint64_t draw, const struct data_batch *b)
{
	const struct data_rows *r = &d->rows;
	const unsigned char *p = r->bytes + index * r->row_bytes;
	memcpy((float *)b->input + slot * r->dense, p, (size_t)r->dense * sizeof(float));
	p += r->dense * (int64_t)sizeof(float);
	if (has_class(d))
		memcpy((int32_t *)b->labels + slot, p, sizeof(int32_t));
	else
		memcpy((float *)b->labels + slot, p, sizeof(float));
	p += sizeof(float);
	size_t bag = (size_t)r->lookups * sizeof(int32_t);
	for (int t = 0; t < r->table_count; t++, p += bag)
		memcpy(b->bags + (t * b->samples + slot) * r->lookups, p, bag);
}

static void rows_blank(const struct data *d, int64_t slot, const struct data_batch *b)
{
	const struct data_rows *r = &d->rows;
	memset((float *)b->input + slot * r->dense, 0, (size_t)r->dense * sizeof(float));
	if (has_class(d))
		((int32_t *)b->labels)[slot] = -1;
	else
		((float *)b->labels)[slot] = NAN;
	for (int t = 0; t < r->table_count; t++)
		for (int64_t k = 0; k < r->lookups; k++)
			b->bags[(t * b->samples + slot) * r->lookups + k] = -1;
}

static int64_t rows_valid(const struct data *d, int64_t index)
{
	return 1;
}

const struct data_reader data_rows_reader = {
	.read = rows_read, .blank = rows_blank, .valid_rows = rows_valid
};
