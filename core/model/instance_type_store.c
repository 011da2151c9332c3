/* SPDX-License-Identifier: Apache-2.0
 * SQL of the catalogue. One connection, one thread. */
#include "core/model/instance_type_store.h"

#include "core/base/num.h"
#include "core/model/sql_text.h"

#include <stdio.h>

int instance_type_store_get(
	struct db_conn *conn, const char *name, struct instance_type *ret, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err,
		"select name, memory_bytes, bandwidth_bytes_per_s,"
		" coalesce((tflops->>'fp32')::float8, 0) * 1e12,"
		" coalesce((tflops->>'tf32')::float8, 0) * 1e12,"
		" coalesce((tflops->>'bf16')::float8, (tflops->>'fp16')::float8, 0) * 1e12,"
		" coalesce((select max(m.count) from (select count(*) from devices where instance_type = $1"
		"  and deregistered_at is null group by agent_id) m), 0)"
		" from instance_types where name = $1",
		DB_TEXT(name));
	if (rc < 0)
		return rc;
	if (db_rows(r) == 0)
		return err_set(err, ERR_NOT_FOUND, NULL, "the catalogue has no instance type %s", name);
	struct instance_type type = {
		.memory_bytes = db_i64(r, 0, 1),
		.bandwidth_bytes_per_s = db_i64(r, 0, 2),
		.fp32_flops = db_f64(r, 0, 3),
		.tf32_flops = db_f64(r, 0, 4),
		.half_flops = db_f64(r, 0, 5),
		.machine_devices = db_i64(r, 0, 6),
	};
	(void)snprintf(type.name, sizeof(type.name), "%s", db_str(r, 0, 0));
	*ret = type;
	return 0;
}

/* A device is free when its machine is ready, it is not on its way out, not cordoned, and no
 * attempt holds it. */
static const char list_sql[] =
	"with by_region as ("
	" select d.instance_type, d.region, count(*) as total,"
	"  count(*) filter (where a.status = 'ready' and not d.withdrawn and d.cordoned_at is null and"
	"   not exists (select from"
	"   attempt_devices h where h.device_id = d.id and not h.released)) as free"
	" from devices d join agents a on a.id = d.agent_id"
	" where d.deregistered_at is null group by d.instance_type, d.region"
	"), by_type as ("
	" select instance_type, sum(total)::bigint as total, sum(free)::bigint as free,"
	"  json_agg(json_build_object('region', region, 'total', total, 'free', free)"
	"   order by region)::text as regions"
	" from by_region group by instance_type"
	") "
	"select t.name, t.description, t.kind, t.memory_bytes, t.bandwidth_bytes_per_s,"
	" t.tflops::text, array_to_json(t.regions)::text, p.micros_per_hour, p.currency,"
	" " SQL_TIME("p.effective_from") ", coalesce(n.total, 0), coalesce(n.free, 0),"
									 " coalesce(n.regions, '[]') "
									 "from instance_types t "
									 "left join by_type n on n.instance_type = t.name "
									 "left join lateral (select * from prices q where "
									 "q.instance_type = t.name"
									 " and q.effective_from <= yard_now() order by "
									 "q.effective_from desc limit 1) p on true "
									 "order by t.sort_order, t.name";

static void write_price(struct json_writer *w, const struct db_result *r, int row)
{
	json_key(w, "price");
	if (db_is_null(r, row, 7)) {
		json_put_null(w);
		return;
	}
	char price[NUM_F64_MAX];
	num_format_micros(db_i64(r, row, 7), price);
	json_begin_object(w);
	json_field_str(w, "per_device_hour", price);
	json_field_str(w, "currency", db_str(r, row, 8));
	json_field_str(w, "effective_from", db_str(r, row, 9));
	json_end_object(w);
}

static void write_row(struct json_writer *w, const struct db_result *r, int row)
{
	json_begin_object(w);
	json_field_str(w, "object", "instance_type");
	json_field_str(w, "id", db_str(r, row, 0));
	json_field_str(w, "description", db_str(r, row, 1));
	json_field_str(w, "kind", db_str(r, row, 2));
	json_field_i64(w, "memory_bytes", db_i64(r, row, 3));
	json_field_i64(w, "bandwidth_bytes_per_s", db_i64(r, row, 4));
	json_field_raw(w, "tflops", db_str(r, row, 5));
	json_field_raw(w, "regions", db_str(r, row, 6));
	write_price(w, r, row);
	json_key(w, "devices");
	json_begin_object(w);
	json_field_i64(w, "total", db_i64(r, row, 10));
	json_field_i64(w, "free", db_i64(r, row, 11));
	json_field_raw(w, "by_region", db_str(r, row, 12));
	json_end_object(w);
	json_end_object(w);
}

int instance_type_store_list(struct db_conn *conn, struct json_writer *w, struct err *err)
{
	cleanup(db_result_freep) struct db_result *r = NULL;
	int rc = db_exec(conn, &r, err, list_sql);
	if (rc < 0)
		return rc;
	int count = db_rows(r);
	json_begin_object(w);
	json_field_str(w, "object", "list");
	json_key(w, "data");
	json_begin_array(w);
	for (int i = 0; i < count; i++)
		write_row(w, r, i);
	json_end_array(w);
	json_field_str(w, "first_id", count ? db_str(r, 0, 0) : NULL);
	json_field_str(w, "last_id", count ? db_str(r, count - 1, 0) : NULL);
	json_field_bool(w, "has_more", false);
	json_end_object(w);
	return 0;
}
