/* SPDX-License-Identifier: Apache-2.0
 * The config of dlrm: dense features, tables, and the two networks around their products. Called by
 * spec_json_model.c. */
#include "core/spec/spec_json_private.h"

enum {
	DENSE_MAX = 4096,
	EMBEDDING_MAX = 1024,
	LOOKUPS_MAX = 256,
};

static void check_networks(struct json_obj *o, const struct spec_model *m)
{
	if (o->code)
		return;
	if (m->table_count == 0)
		json_obj_fail(o, ERR_INVALID_VALUE, "table_rows",
			"%s.table_rows must have a number for each table, and at least one", o->path);
	else if (m->hidden_count == 0 || m->hidden[m->hidden_count - 1] != m->embedding_dim)
		json_obj_fail(o, ERR_INVALID_VALUE, "bottom",
			"%s.bottom must end in embedding_dim (%lld): its output is multiplied with the "
			"embeddings",
			o->path, (long long)m->embedding_dim);
	else if (m->top_count > 0 && m->top[m->top_count - 1] == 1)
		json_obj_fail(o, ERR_INVALID_VALUE, "top",
			"%s.top has the hidden layers only: the one logit follows them, leave the last 1 out",
			o->path);
}

void spec_json_dlrm_read(struct json_obj *o, struct spec_model *m)
{
	m->lookups = 1;
	spec_json_need_i64(o, "dense_features", 1, DENSE_MAX, &m->dense_features);
	spec_json_need_i64(o, "embedding_dim", 1, EMBEDDING_MAX, &m->embedding_dim);
	json_obj_i64(o, "lookups", 1, LOOKUPS_MAX, &m->lookups);
	json_obj_need(o, "table_rows");
	spec_json_widths(
		o, "table_rows", SPEC_TABLES_MAX, SPEC_TABLE_ROWS_MAX, m->table_rows, &m->table_count);
	json_obj_need(o, "bottom");
	spec_json_widths(
		o, "bottom", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->hidden, &m->hidden_count);
	json_obj_need(o, "top");
	spec_json_widths(o, "top", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->top, &m->top_count);
	check_networks(o, m);
}
