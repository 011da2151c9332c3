/* SPDX-License-Identifier: Apache-2.0
 * POST /agent/v1/register: a machine and its devices enter service. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/model/agent_store.h"
#include "core/model/attempt.h"
#include "core/model/device_store.h"
#include "server/scheduler/scheduler.h"

#include <stdio.h>
#include <string.h>

enum { RATES_MAX = 16 * 1024, HOST_MAX = 255, VERSION_MAX = 80 };

struct registration {
	struct agent_machine machine;
	struct device_listed devices[DEVICE_STORE_MAX];
	int device_count;
	char agent_id[IDENT_MAX];
};

static int read_device(
	const struct json_val *v, const char *path, struct registration *reg, struct err *err)
{
	struct device_listed d = { .index = -1 };
	struct json_obj o;
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "index");
	json_obj_need(&o, "name");
	json_obj_need(&o, "memory_bytes");
	json_obj_i64(&o, "index", 0, 1023, &d.index);
	json_obj_str(&o, "name", 1, DEVICE_STORE_NAME_MAX, &d.name);
	json_obj_str(&o, "uuid", 1, DEVICE_STORE_NAME_MAX, &d.uuid);
	json_obj_i64(&o, "memory_bytes", 1, INT64_MAX, &d.memory_bytes);
	for (int i = 0; i < reg->device_count; i++)
		if (reg->devices[i].index == d.index)
			json_obj_fail(
				&o, ERR_INVALID_VALUE, "index", "Index %lld is listed twice.", (long long)d.index);
	int rc = json_obj_close(&o);
	if (rc == 0)
		reg->devices[reg->device_count++] = d;
	return rc;
}

/* Kept as it is, and shown to operators: the agent itself refuses a driver that does not do. */
static int read_cuda(const struct json_val *v, char **ret_text, struct err *err)
{
	const char *driver, *driver_cuda, *build_cuda;
	struct json_obj o;
	json_obj_open(&o, v, "$.cuda", err);
	json_obj_need(&o, "driver");
	json_obj_need(&o, "driver_cuda");
	json_obj_need(&o, "build_cuda");
	json_obj_str(&o, "driver", 1, VERSION_MAX, &driver);
	json_obj_str(&o, "driver_cuda", 1, VERSION_MAX, &driver_cuda);
	json_obj_str(&o, "build_cuda", 1, VERSION_MAX, &build_cuda);
	int rc = json_obj_close(&o);
	if (rc < 0)
		return rc;
	*ret_text = json_dump(v);
	return *ret_text != NULL ? 0 : err_set(err, ERR_NO_MEMORY, NULL, "No memory.");
}

static int read_body(struct request *req, struct registration *reg, char **ret_rates,
	char **ret_cuda, struct err *err)
{
	struct agent_machine *m = &reg->machine;
	const struct json_val *devices = NULL, *rates = NULL, *cuda = NULL;
	struct json_obj o;
	json_obj_open(&o, req->json, "$", err);
	static const char *const needed[] = { "name", "boot_id", "engine_build", "region",
		"instance_type", "devices" };
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		json_obj_need(&o, needed[i]);
	json_obj_str(&o, "name", 1, 64, &m->name);
	json_obj_str(&o, "boot_id", 1, 64, &m->boot_id);
	json_obj_str(&o, "engine_build", 1, 64, &m->engine_build);
	json_obj_str(&o, "region", 1, 40, &m->region);
	json_obj_str(&o, "instance_type", 1, 64, &m->instance_type);
	json_obj_array(&o, "devices", DEVICE_STORE_MAX, &devices);
	json_obj_object(&o, "rates", &rates);
	json_obj_str(&o, "host", 1, HOST_MAX, &m->host);
	json_obj_object(&o, "cuda", &cuda);
	int rc = json_obj_close(&o);
	if (rc < 0)
		return rc;
	char path[JSON_PATH_MAX];
	for (size_t i = 0; rc == 0 && i < json_array_len(devices); i++) {
		snprintf(path, sizeof(path), "$.devices[%zu]", i);
		rc = read_device(json_array_at(devices, i), path, reg, err);
	}
	if (rc == 0 && cuda != NULL)
		rc = read_cuda(cuda, ret_cuda, err);
	if (rc < 0 || rates == NULL)
		return rc;
	cleanup(freep) char *text = json_dump(rates);
	if (text == NULL || strlen(text) > RATES_MAX)
		return err_set(err, text == NULL ? ERR_NO_MEMORY : ERR_TOO_LARGE, "$.rates",
			"The rates take more than %d bytes.", RATES_MAX);
	*ret_rates = take_ptr(text);
	return 0;
}

static int register_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct registration *reg = ctx;
	int rc = agent_store_register(conn, &reg->machine, reg->agent_id, err);
	return rc < 0 ? rc
				  : device_store_sync(conn, reg->agent_id, reg->devices, reg->device_count, err);
}

static void write_answer(const struct registration *reg, struct json_writer *w)
{
	json_begin_object(w);
	json_field_str(w, "agent_id", reg->agent_id);
	json_field_i64(w, "beat_ms", ATTEMPT_BEAT_MS);
	json_field_i64(w, "self_kill_ms", ATTEMPT_SELF_KILL_MS);
	json_field_i64(w, "lease_ms", ATTEMPT_LEASE_MS);
	json_key(w, "devices");
	json_begin_array(w);
	for (int i = 0; i < reg->device_count; i++) {
		json_begin_object(w);
		json_field_i64(w, "index", reg->devices[i].index);
		json_field_str(w, "id", reg->devices[i].id[0] == '\0' ? NULL : reg->devices[i].id);
		json_end_object(w);
	}
	json_end_array(w);
	json_end_object(w);
}

int agent_register(struct request *req, struct response *res, struct err *err)
{
	struct registration *reg = arena_alloc(&req->arena, sizeof(*reg));
	if (reg == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the registration.");
	cleanup(freep) char *rates = NULL, *cuda = NULL;
	int rc = read_body(req, reg, &rates, &cuda, err);
	if (rc < 0)
		return rc;
	reg->machine.key_id = req->principal.id;
	reg->machine.key_region = req->principal.agent_region;
	reg->machine.rates_json = rates;
	reg->machine.cuda_json = cuda;
	rc = db_tx(req->app->pool, APP_DB_WAIT_MS, register_in_tx, reg, err);
	if (rc < 0)
		return rc;
	scheduler_wake(req->app->scheduler);
	write_answer(reg, &res->json);
	return 0;
}
