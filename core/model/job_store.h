/* SPDX-License-Identifier: Apache-2.0
 * Jobs as customers write and read them: the row that a submit makes, the lookups of handlers, the
 * events that streams read. Moves between statuses are core/model/job.c's alone; the JSON of a job
 * is job_render.c's. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/residency.h"

#include <stdbool.h>
#include <stdint.h>

struct job_new {
	const char *id;
	const char *tenant_id;
	const char *name;
	const char *spec_json;                 /* resolved */
	const char *plan_json;                 /* summary */
	const char *chosen_json;               /* the mesh that was chosen; NULL = it was given */
	const char *metadata_json;             /* NULL = {} */
	const struct residency_set *residency; /* the effective one */
	const char *instance_type;
	int64_t device_count;
	int priority;
	int64_t max_runtime_s;
	const char *created_by; /* api key id */
	/* The inputs, in the spec's order. */
	const char *const *training_files;
	int training_file_count;
	const char *const *validation_files;
	int validation_file_count;
	const char *tokenizer_file; /* NULL or "" = none */
	/* What it starts from: NULL or "" = nothing, and at most one of the two. */
	const char *base_checkpoint_id;
	const char *base_model_id;
};

/* Inserts the job as `validating_files` with its files; the caller moves it to `queued` in the same
 * transaction. */
int job_store_insert(struct db_conn *conn, const struct job_new *job, struct err *err) must_check;

/* 0 when the tenant has this job, NOT_FOUND otherwise. */
int job_store_exists(struct db_conn *conn, const char *tenant_id, const char *id,
	bool *ret_finished, struct err *err) must_check;

/* Names of the catalogue's instance types, "a, b, c", cut at max_bytes: for error messages. */
int job_store_instance_types(
	struct db_conn *conn, char *ret_names, size_t max_bytes, struct err *err) must_check;
