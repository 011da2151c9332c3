/* SPDX-License-Identifier: Apache-2.0
 * The catalogue on a real database: what it promises, which devices are free. Run by with_pg.sh. */
#include "core/model/instance_type_store.h"
#include "core/spec/region.h"
#include "tests/unit/core/model/money_fixture.h"

static const struct json_val *listed(struct store_json *j, struct db_conn *conn, const char *id)
{
	struct err err = { 0 };
	store_json_init(j);
	assert_ok(instance_type_store_list(conn, &j->w, &err));
	const struct json_val *data = json_get(store_json_root(j), "data");
	assert_int_equal(json_array_len(data), 8);
	for (size_t i = 0; i < json_array_len(data); i++)
		if (strcmp(json_str_or(json_get(json_array_at(data, i), "id"), ""), id) == 0)
			return json_array_at(data, i);
	fail_msg("%s is not listed", id);
	return NULL;
}

static void the_catalogue_has_its_prices(void **state)
{
	struct store_fixture *fx = *state;
	static const struct {
		const char *id;
		const char *price;
	} want[] = { { "h100-80gb", "3.00" }, { "a100-80gb", "1.50" }, { "a100-40gb", "1.50" },
		{ "a100-slice", "0.50" }, { "v100-32gb", "0.45" }, { "rtx-4090", "0.60" },
		{ "rtx-3090", "0.30" }, { "cpu-dev", "0.36" } };
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct store_json j;
		const struct json_val *t = listed(&j, fx->conn, want[i].id);
		const struct json_val *price = json_get(t, "price"), *regions = json_get(t, "regions");
		assert_string_equal(json_str_or(json_get(price, "per_device_hour"), ""), want[i].price);
		assert_string_equal(json_str_or(json_get(price, "currency"), ""), "USD");
		assert_true(json_f64_or(json_get(json_get(t, "tflops"), "fp32"), 0) > 0);
		assert_true(json_array_len(regions) > 0);
		for (size_t k = 0; k < json_array_len(regions); k++)
			assert_true(region_known(json_str_or(json_array_at(regions, k), "")));
		store_json_finish(&j);
	}
}

static void devices_are_counted_by_region(void **state)
{
	struct store_fixture *fx = *state;
	money_yard(fx->conn);
	money_sql(fx->conn,
		"update attempt_devices set released = false where attempt_id = 'att_1'"
		" and device_id = 'dev_0'");
	struct store_json j;
	const struct json_val *devices = json_get(listed(&j, fx->conn, "cpu-dev"), "devices");
	assert_int_equal(json_i64_or(json_get(devices, "total"), -1), 2);
	assert_int_equal(json_i64_or(json_get(devices, "free"), -1), 1);
	const struct json_val *region = json_array_at(json_get(devices, "by_region"), 0);
	assert_string_equal(json_str_or(json_get(region, "region"), ""), "us-east-1");
	assert_int_equal(json_i64_or(json_get(region, "free"), -1), 1);
	store_json_finish(&j);
	static const struct {
		const char *sql;
		int64_t total, free;
	} changes[] = { { "update devices set withdrawn = true where id = 'dev_1'", 2, 0 },
		{ "update devices set deregistered_at = open_since where id = 'dev_1'", 1, 0 },
		{ "update agents set status = 'lost'", 2, 0 },
		{ "update attempt_devices set released = true", 2, 2 } };
	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		money_sql(fx->conn, "savepoint change");
		money_sql(fx->conn, "%s", changes[i].sql);
		devices = json_get(listed(&j, fx->conn, "cpu-dev"), "devices");
		assert_int_equal(json_i64_or(json_get(devices, "total"), -1), changes[i].total);
		assert_int_equal(json_i64_or(json_get(devices, "free"), -1), changes[i].free);
		store_json_finish(&j);
		money_sql(fx->conn, "rollback to savepoint change");
	}
}

static void one_type_is_found(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	struct instance_type type;
	assert_ok(instance_type_store_get(fx->conn, "cpu-dev", &type, &err));
	assert_int_equal(type.memory_bytes, INT64_C(2) << 30);
	assert_true(type.fp32_flops == 0.05e12 && type.half_flops == 0);
	assert_int_equal(type.machine_devices, 0);
	money_yard(fx->conn);
	assert_ok(instance_type_store_get(fx->conn, "cpu-dev", &type, &err));
	assert_int_equal(type.machine_devices, 2);
	assert_ok(instance_type_store_get(fx->conn, "v100-32gb", &type, &err));
	assert_true(type.fp32_flops == 15.7e12 && type.half_flops == 125e12);
	assert_int_equal(instance_type_store_get(fx->conn, "tpu", &type, &err), ERR_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(the_catalogue_has_its_prices),
		store_test(devices_are_counted_by_region),
		store_test(one_type_is_found),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}
