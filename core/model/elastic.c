/* SPDX-License-Identifier: Apache-2.0
 * The data axes that a job may have. No state. */
#include "core/model/elastic.h"

struct elastic elastic_of(int64_t device_count, int64_t min_data, int64_t others)
{
	struct elastic e = { .others = others > 0 ? others : 1 };
	e.data = device_count / e.others;
	e.min_data = min_data > 0 && min_data < e.data ? min_data : e.data;
	return e;
}

int64_t elastic_next(const struct elastic *e, int64_t data)
{
	for (int64_t d = data - 1; d >= e->min_data && d > 0; d--)
		if (e->data % d == 0)
			return d;
	return 0;
}

bool elastic_allows(const struct elastic *e, int64_t devices, int64_t *ret_data)
{
	int64_t data = devices / e->others;
	if (devices <= 0 || devices % e->others != 0 || data < e->min_data || e->data % data != 0)
		return false;
	*ret_data = data;
	return true;
}
