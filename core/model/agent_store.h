/* SPDX-License-Identifier: Apache-2.0
 * Machines: who they are, that they are there, and when their list changed. Called by the agents'
 * handlers and the scheduler. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"

#include <stdint.h>

enum {
	AGENT_STORE_SILENT_MS = 35000, /* without a poll or report: nothing more is placed there */
	/* The same where it has devices of an attempt, for which it would beat, and the lease is over
	 * or about to be: they are not to be given away again to where nobody is. */
	AGENT_STORE_HOLDER_SILENT_MS = 20000,
	AGENT_STORE_LAPSE_MS = 1000, /* more than a pass takes */
};

struct agent_machine {
	const char *key_id;
	const char *key_region; /* what the operator vouches for */
	const char *region;     /* what the machine says */
	const char *name;
	const char *instance_type;
	const char *boot_id;
	const char *engine_build;
	const char *rates_json;
	const char *cuda_json; /* driver and build; NULL: no GPUs */
	const char *host; /* what trainers on other machines reach its trainers at; NULL: only itself */
};
/* Idempotent by credential. RESIDENCY when the regions differ or are not known, INVALID_VALUE
 * naming $.instance_type when the catalogue lacks it, CONFLICT when the type changes while an
 * attempt runs. */
int agent_store_register(struct db_conn *conn, const struct agent_machine *machine,
	char ret_id[static IDENT_MAX], struct err *err) must_check;

/* Notes that the machine is there (a lost one is ready again) and returns its version. NOT_FOUND
 * when the credential is not this agent's: it must register. */
int agent_store_seen(struct db_conn *conn, const char *key_id, const char *agent_id,
	int64_t *ret_version, struct err *err) must_check;

/* Marks machines that have been silent as lost. */
int agent_store_mark_lost(struct db_conn *conn, int *ret_count, struct err *err) must_check;

/* The agent of a credential. NOT_FOUND when it has not registered. */
int agent_store_find(struct db_conn *conn, const char *key_id, char ret_id[static IDENT_MAX],
	struct err *err) must_check;
