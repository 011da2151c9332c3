/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/jobs: reads the spec, settles its mesh, compiles its plan, checks files, residency and
 * the device's memory, and queues the job; all that is written is written in one transaction with
 * the idempotency record. Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/ident.h"
#include "core/model/base_store.h"
#include "core/model/elastic.h"
#include "core/model/file_store.h"
#include "core/model/instance_type_store.h"
#include "core/model/job.h"
#include "core/model/job_render.h"
#include "core/model/job_store.h"
#include "core/model/price_store.h"
#include "core/model/residency.h"
#include "core/model/tenant_store.h"
#include "core/spec/region.h"
#include "core/spec/spec_json.h"
#include "server/limits/idempotency.h"
#include "server/scheduler/scheduler.h"
#include "server/settings.h"
#include "workers/plan/plan.h"
#include "workers/plan/plan_job.h"
#include "workers/plan/scale_choose.h"
#include "workers/plan/scale_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	TYPE_NAMES_MAX = 400,
	SECONDS_PER_HOUR = 3600,
};

struct creation {
	struct request *req;
	struct response *res;
	char id[IDENT_MAX];
	struct job_spec spec;
	const char *base_id; /* model.base, NULL without */
	struct base base;    /* what it names */
	struct spec_open open;
	struct scale_chosen chosen; /* what became of that */
	struct plan *plan;          /* NULL while the data's shape is not known */
	struct plan_job job;        /* what all its ranks compute */
	const char *metadata_json;
	struct residency_set residency;
	bool refused;
};

/* A plan needs the shape of a sample; a spec that leaves it to the data is planned by the trainer,
 * once it has read the data. */
static int compile_plan(struct creation *c, struct err *err)
{
	struct err detail = { 0 };
	plan_destroy(c->plan); /* of a transaction that is repeated */
	c->plan = NULL;
	int rc = plan_compile(&c->spec, NULL, &c->plan, &detail);
	if (rc == 0)
		rc = plan_job_of(c->plan, &c->spec, &c->job, &detail);
	if (rc == ERR_MISSING_FIELD)
		return 0;
	if (rc < 0)
		*err = detail;
	return rc;
}

static int read_body(struct creation *c, struct err *err)
{
	const struct json_val *metadata = NULL;
	int rc = spec_json_read_from(
		c->req->json, c->base_id ? &c->base.spec : NULL, &c->spec, &metadata, err);
	if (rc < 0)
		return rc;
	c->open = spec_json_open(c->req->json, &c->spec);
	if (c->spec.lora.rank > 0 && !c->base_id)
		return err_set(err, ERR_INVALID_VALUE, "$.lora",
			"$.lora needs $.model.base: adapters change trained weights, and fresh ones would stay "
			"as they are");
	if (metadata) {
		cleanup(freep) char *text = json_dump(metadata);
		c->metadata_json = text ? arena_strdup(&c->req->arena, text) : NULL;
		if (!c->metadata_json)
			return err_set(err, ERR_NO_MEMORY, "$.metadata", "No memory for the metadata");
	}
	/* What is open depends on the device: settle_mesh. */
	return c->open.mesh ? 0 : compile_plan(c, err);
}

/* The narrower of each pair where one contains the other. */
static int narrow(struct residency_set *set, const struct residency_set *other, struct err *err)
{
	struct residency_set both = { 0 };
	for (int i = 0; i < set->count; i++) {
		for (int j = 0; j < other->count; j++) {
			const char *a = set->region[i], *b = other->region[j];
			const char *inner = region_contains(a, b) ? b : region_contains(b, a) ? a : NULL;
			int rc = inner ? residency_set_add(&both, inner, err) : 0;
			if (rc < 0)
				return rc;
		}
	}
	*set = both;
	return 0;
}

static int hold_file(struct creation *c, struct db_conn *conn, const char *path,
	const char *file_id, struct err *err)
{
	struct file file;
	int rc = file_store_hold(conn, c->req->principal.tenant_id, file_id, &file, err);
	if (rc == ERR_NOT_FOUND)
		return err_set(err, ERR_INVALID_VALUE, path, "%s: there is no file %s", path, file_id);
	if (rc < 0)
		return rc;
	if (!file.processed)
		return err_set(
			err, ERR_CONFLICT, path, "%s: the file %s is not processed yet", path, file_id);
	rc = narrow(&c->residency, &file.residency, err);
	if (rc == 0 && c->residency.count == 0)
		return err_set(err, ERR_RESIDENCY, path,
			"%s: no region that the job may use is allowed for the file %s", path, file_id);
	return rc;
}

static int hold_files(struct creation *c, struct db_conn *conn, const char *role,
	const char ids[][SPEC_ID_MAX], int count, struct err *err)
{
	int rc = 0;
	for (int i = 0; rc == 0 && i < count; i++) {
		char path[64];
		if (json_kind(json_get(c->req->json, role)) == JSON_STR)
			snprintf(path, sizeof(path), "$.%s", role);
		else
			snprintf(path, sizeof(path), "$.%s[%d]", role, i);
		rc = hold_file(c, conn, path, ids[i], err);
	}
	return rc;
}

/* What the spec is to start from decides how the rest of it reads. It is held from here on; a
 * repeated request is answered before, whatever has become of it since. */
static int read_body_with_base(struct creation *c, struct db_conn *conn, struct err *err)
{
	int rc = base_store_hold(conn, c->req->principal.tenant_id, c->base_id, &c->base, err);
	return rc < 0 ? rc : read_body(c, err);
}

static int narrow_to_base(struct creation *c, struct err *err)
{
	static const char path[] = "$.model.base";
	if (!c->base_id)
		return 0;
	int rc = narrow(&c->residency, &c->base.residency, err);
	if (rc == 0 && c->residency.count == 0)
		return err_set(err, ERR_RESIDENCY, path,
			"%s: no region that the job may use is allowed for %s", path, c->base_id);
	return rc;
}

/* A tokenizer that came with the base may have been deleted since; that is said of the base. */
static int hold_tokenizer(struct creation *c, struct db_conn *conn, struct err *err)
{
	const char *id = c->spec.data.tokenizer_file;
	bool given = json_get(json_get(c->req->json, "data"), "tokenizer") != NULL;
	int rc = hold_file(c, conn, given ? "$.data.tokenizer" : "$.model.base", id, err);
	if (rc == ERR_INVALID_VALUE && !given)
		return err_set(err, ERR_INVALID_VALUE, "$.model.base",
			"$.model.base: its tokenizer, %s, has been deleted; give $.data.tokenizer", id);
	return rc;
}

/* All that the job reads, each narrowing where it may be. */
static int hold_inputs(struct creation *c, struct db_conn *conn, struct err *err)
{
	const struct job_spec *s = &c->spec;
	int rc = hold_files(c, conn, "training_file", s->training_file, s->training_file_count, err);
	if (rc == 0)
		rc = hold_files(
			c, conn, "validation_file", s->validation_file, s->validation_file_count, err);
	if (rc == 0 && s->data.tokenizer == SPEC_TOKENIZER_FILE)
		rc = hold_tokenizer(c, conn, err);
	return rc < 0 ? rc : narrow_to_base(c, err);
}

/* The tenant's set, tightened by the spec's, narrowed by each input's. */
static int settle_residency(struct creation *c, struct db_conn *conn, struct err *err)
{
	struct residency_set tenants, asked = { 0 };
	int rc = tenant_store_residency(conn, c->req->principal.tenant_id, &tenants, err);
	for (int i = 0; rc == 0 && i < c->spec.residency_count; i++)
		rc = residency_set_add(&asked, c->spec.residency[i], err);
	if (rc == 0)
		rc = residency_tighten(&tenants, &asked, &c->residency, err);
	if (rc == ERR_RESIDENCY || rc == ERR_INVALID_VALUE)
		snprintf(err->param, sizeof(err->param), "$.residency");
	if (rc == 0)
		rc = hold_inputs(c, conn, err);
	if (rc < 0)
		return rc;
	/* Checkpoints and the model will be in this server's store: that is the place asked about. */
	bool allowed = false;
	rc = residency_decide(conn,
		&(struct residency_question){ .ask = RESIDENCY_SUBMIT,
			.tenant_id = c->req->principal.tenant_id,
			.subject = c->id,
			.allowed_set = &c->residency,
			.place = c->req->app->settings->region },
		&allowed, err);
	if (rc == 0)
		c->refused = !allowed; /* the decision's row stays: the transaction goes on */
	return rc;
}

static double gib(int64_t bytes)
{
	return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

/* From here on the spec says the mesh: all attempts, and each of their machines, have the same. */
static int settle_mesh(struct creation *c, const struct instance_type *t, struct err *err)
{
	struct scale_cluster cluster;
	const struct scale_type type = { .name = t->name,
		.memory_bytes = (double)t->memory_bytes,
		.memory_bytes_s = (double)t->bandwidth_bytes_per_s,
		.fp32_flops = t->fp32_flops,
		.tf32_flops = t->tf32_flops,
		.half_flops = t->half_flops,
		.machine_devices = (int)t->machine_devices };
	if (!c->open.mesh)
		return 0;
	scale_type_cluster(&type, (int)c->spec.device_count, &cluster);
	int rc = scale_choose(&c->spec, &c->open, &cluster, &c->chosen, err);
	return rc < 0 ? rc : compile_plan(c, err);
}

/* The fewer ranks share the model's state, the more each keeps of it: on the smallest mesh that an
 * attempt may have it must fit, too. */
static int check_smallest(struct creation *c, int64_t memory_bytes, struct err *err)
{
	static const char path[] = "$.parallelism.min_data";
	const struct spec_parallel *p = &c->spec.parallel;
	if (p->min_data == 0)
		return 0;
	int64_t others = c->spec.device_count / p->data, smallest = p->data;
	struct elastic e = elastic_of(c->spec.device_count, p->min_data, others);
	for (int64_t d = smallest; d > 0; d = elastic_next(&e, d))
		smallest = d;
	cleanup(plan_destroyp) struct plan *plan = NULL;
	cleanup(freep) struct job_spec *spec = malloc(sizeof(*spec));
	if (!spec)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for a plan");
	*spec = c->spec;
	spec->parallel.data = smallest;
	spec->device_count = smallest * others;
	int rc = plan_compile(spec, NULL, &plan, err);
	if (rc == ERR_MISSING_FIELD)
		return 0; /* what only the data tells: the trainer sees */
	if (rc < 0 || plan->total_bytes <= memory_bytes)
		return rc;
	return err_set(err, ERR_PLAN_TOO_LARGE, path,
		"%s: shared by %" PRId64 " the plan needs %" PRId64 " bytes (%.2f GiB); a device of %s has "
		"%" PRId64 " bytes (%.2f GiB)",
		path, smallest, plan->total_bytes, gib(plan->total_bytes), c->spec.instance_type,
		memory_bytes, gib(memory_bytes));
}

static int check_device(struct creation *c, struct db_conn *conn, struct err *err)
{
	static const char path[] = "$.resources.instance_type";
	struct instance_type type;
	int rc = instance_type_store_get(conn, c->spec.instance_type, &type, err);
	if (rc == ERR_NOT_FOUND) {
		char names[TYPE_NAMES_MAX];
		rc = job_store_instance_types(conn, names, sizeof(names), err);
		if (rc < 0)
			return rc;
		return err_set(err, ERR_INVALID_VALUE, path,
			"%s: there is no instance type %s; there are: %s", path, c->spec.instance_type, names);
	}
	if (rc == 0 && c->spec.precision == SPEC_TF32 && type.tf32_flops == 0)
		return err_set(err, ERR_INVALID_VALUE, "$.precision",
			"$.precision: devices of %s have no tf32; it needs an instance type whose tflops have "
			"it",
			type.name);
	if (rc == 0)
		rc = settle_mesh(c, &type, err);
	if (rc < 0)
		return rc;
	if (c->plan && c->plan->total_bytes > type.memory_bytes)
		return err_set(err, ERR_PLAN_TOO_LARGE, "$.model",
			"The plan needs %" PRId64 " bytes (%.2f GiB); a device of %s has %" PRId64
			" bytes (%.2f GiB)",
			c->plan->total_bytes, gib(c->plan->total_bytes), type.name, type.memory_bytes,
			gib(type.memory_bytes));
	return check_smallest(c, type.memory_bytes, err);
}

/* What the money pays for, at today's price, bounds the run like a runtime does. */
static int apply_max_cost(struct creation *c, struct db_conn *conn, struct err *err)
{
	struct spec_limits *limits = &c->spec.limits;
	if (limits->max_cost_micros == 0)
		return 0;
	struct price price;
	int rc = price_store_at(conn, c->spec.instance_type, PRICE_NOW, &price, err);
	if (rc == ERR_NOT_FOUND || (rc == 0 && price.micros_per_hour == 0))
		return 0; /* what costs nothing has no limit */
	if (rc < 0)
		return rc;
	__int128 seconds = (__int128)limits->max_cost_micros * SECONDS_PER_HOUR /
		((__int128)price.micros_per_hour * c->spec.device_count);
	if (seconds < 1)
		return err_set(err, ERR_INVALID_VALUE, "$.limits.max_cost",
			"$.limits.max_cost does not pay for one second of %s", c->spec.instance_type);
	if (limits->max_runtime_s == 0 || seconds < limits->max_runtime_s)
		limits->max_runtime_s = seconds > INT32_MAX ? INT32_MAX : (int64_t)seconds;
	return 0;
}

static void write_plan(struct buf *out, const struct plan *p, const struct plan_job *job)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	if (p) {
		json_field_i64(&w, "total_bytes", p->total_bytes);
		json_key(&w, "bytes");
		json_begin_object(&w);
		for (int k = 0; k < PLAN_KIND_COUNT; k++)
			json_field_i64(&w, plan_kind_word((enum plan_buffer_kind)k), p->kind_bytes[k]);
		json_end_object(&w);
		json_field_i64(&w, "parameters", p->parameter_count);
		json_field_i64(&w, "trained_parameters", p->trained_count);
		json_field_i64(&w, "batch", p->batch);
		json_field_i64(&w, "micro_batch", p->micro_batch);
		json_field_i64(&w, "micro_steps", p->micro_steps);
		json_field_f64(&w, "flops_per_step", job->flops_per_step);
		json_field_f64(&w, "flops_per_sample", job->flops_per_sample);
		json_key(&w, "steps");
		if (p->total_steps > 0)
			json_put_i64(&w, p->total_steps);
		else
			json_put_null(&w);
	}
	json_end_object(&w);
}

static void write_chosen(struct buf *out, const struct scale_chosen *chosen)
{
	struct json_writer w;
	const struct spec_parallel *p = &chosen->parallel;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_i64(&w, "data", p->data);
	json_field_i64(&w, "tensor", p->tensor);
	json_field_i64(&w, "pipeline", p->pipeline);
	json_field_i64(&w, "interleave", p->interleave > 1 ? p->interleave : 1);
	json_field_i64(&w, "zero_stage", p->zero_stage);
	json_field_str(&w, "reason", chosen->reason);
	json_end_object(&w);
}

/* What a row has as JSON. */
struct texts {
	struct buf spec, plan, chosen;
};

static int write_texts(struct creation *c, struct texts *t, struct err *err)
{
	int rc = spec_json_write(&c->spec, &t->spec);
	write_plan(&t->plan, c->plan, &c->job);
	if (c->open.mesh)
		write_chosen(&t->chosen, &c->chosen);
	if (rc < 0 || t->spec.failed || t->plan.failed || t->chosen.failed)
		return err_set(err, rc < 0 ? rc : ERR_NO_MEMORY, NULL, "Writing the spec failed");
	return 0;
}

static int insert_job(struct creation *c, struct db_conn *conn, struct texts *t, struct err *err)
{
	const char *training[SPEC_FILES_MAX], *validation[SPEC_FILES_MAX];
	for (int i = 0; i < c->spec.training_file_count; i++)
		training[i] = c->spec.training_file[i];
	for (int i = 0; i < c->spec.validation_file_count; i++)
		validation[i] = c->spec.validation_file[i];
	/* The stored spec says where the job may really be. */
	c->spec.residency_count = c->residency.count;
	memcpy(c->spec.residency, c->residency.region, sizeof(c->spec.residency));
	int rc = write_texts(c, t, err);
	if (rc < 0)
		return rc;
	struct job_new job = { .id = c->id,
		.tenant_id = c->req->principal.tenant_id,
		.name = c->spec.name,
		.spec_json = buf_cstr(&t->spec),
		.plan_json = buf_cstr(&t->plan),
		.chosen_json = c->open.mesh ? buf_cstr(&t->chosen) : NULL,
		.metadata_json = c->metadata_json,
		.residency = &c->residency,
		.instance_type = c->spec.instance_type,
		.device_count = c->spec.device_count,
		.priority = c->spec.priority,
		.max_runtime_s = c->spec.limits.max_runtime_s,
		.created_by = c->req->principal.id,
		.training_files = training,
		.training_file_count = c->spec.training_file_count,
		.validation_files = validation,
		.validation_file_count = c->spec.validation_file_count,
		.tokenizer_file = c->spec.data.tokenizer_file,
		.base_checkpoint_id = c->base.checkpoint_id,
		.base_model_id = c->base.model_id };
	return job_store_insert(conn, &job, err);
}

static int insert_and_queue(struct creation *c, struct db_conn *conn, struct err *err)
{
	struct texts t;
	buf_init(&t.spec, SPEC_JSON_BYTES_MAX);
	buf_init(&t.plan, SPEC_JSON_BYTES_MAX);
	buf_init(&t.chosen, SPEC_JSON_BYTES_MAX);
	int rc = insert_job(c, conn, &t, err);
	buf_finish(&t.spec);
	buf_finish(&t.plan);
	buf_finish(&t.chosen);
	if (rc < 0)
		return rc;
	return job_move(conn, c->id, JOB_QUEUED, NULL, NULL, err);
}

static int create_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct creation *c = ctx;
	struct idempotency idem;
	bool replayed = false;
	c->refused = false;
	int rc = idempotency_begin(c->req, conn, NULL, &idem, c->res, &replayed, err);
	if (rc < 0 || replayed)
		return rc;
	if (c->base_id)
		rc = read_body_with_base(c, conn, err);
	if (rc == 0)
		rc = check_device(c, conn, err);
	if (rc == 0)
		rc = apply_max_cost(c, conn, err);
	if (rc == 0)
		rc = settle_residency(c, conn, err);
	if (rc < 0 || c->refused)
		return rc;
	rc = insert_and_queue(c, conn, err);
	if (rc == 0)
		rc = job_render_one(conn, c->req->principal.tenant_id, c->id, &c->res->json, err);
	if (rc < 0)
		return rc;
	response_created(c->res, "/v1/jobs/%s", c->id);
	return idempotency_finish(&idem, conn, c->res, NULL, err);
}

int jobs_create(struct request *req, struct response *res, struct err *err)
{
	cleanup(freep) struct creation *c = calloc(1, sizeof(*c)); /* a spec is large */
	if (!c)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the job");
	c->req = req;
	c->res = res;
	c->base_id = spec_json_base(req->json);
	int rc = c->base_id ? 0 : read_body(c, err);
	if (rc == 0) {
		ident_new(req->app->clock, "job", c->id);
		rc = db_tx(req->app->pool, APP_DB_WAIT_MS, create_in_tx, c, err);
	}
	plan_destroy(c->plan);
	if (rc < 0)
		return rc;
	if (c->refused)
		return ERR_RESIDENCY;
	scheduler_wake(req->app->scheduler);
	return 0;
}
