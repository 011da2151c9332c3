/* SPDX-License-Identifier: Apache-2.0
 * The catalogue: what a job can ask for, with its price and the devices that are free. Read by the
 * catalogue's handler and by whoever checks a job's resources. A connection belongs to one thread.
 */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/json/writer.h"

#include <stdint.h>

enum { INSTANCE_TYPE_NAME_MAX = 64 };

struct instance_type {
	char name[INSTANCE_TYPE_NAME_MAX];
	int64_t memory_bytes;
	int64_t bandwidth_bytes_per_s;
	double fp32_flops, tf32_flops, half_flops; /* peaks; 0 = not in the catalogue */
	int64_t machine_devices; /* the most that a machine in service has; 0 = there is none */
};

/* NOT_FOUND when the catalogue has no such type. */
int instance_type_store_get(
	struct db_conn *conn, const char *name, struct instance_type *ret, struct err *err) must_check;

/* Writes the list object: every type with its current price and its devices by region. */
int instance_type_store_list(
	struct db_conn *conn, struct json_writer *w, struct err *err) must_check;
