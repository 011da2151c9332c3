/* SPDX-License-Identifier: Apache-2.0
 * What the scheduler sees: the queue in its order, the machines with their free devices, and what
 * stands in a job's way. Called by server/scheduler only. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/model/elastic.h"
#include "core/model/residency.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	JOB_QUEUE_SCAN_MAX = 200,   /* jobs looked at in one pass */
	JOB_QUEUE_AGENTS_MAX = 500, /* machines looked at in one pass */
	JOB_QUEUE_TYPE_MAX = 64,
	JOB_QUEUE_REACH_MAX = 72,
	JOB_QUEUE_MESSAGE_MAX = 400,
};

struct job_queue_job {
	char id[IDENT_MAX];
	char tenant_id[IDENT_MAX];
	char instance_type[JOB_QUEUE_TYPE_MAX];
	int64_t device_count;
	struct elastic elastic;
	int64_t waited_ms; /* since it was queued first */
	int64_t paused_ms; /* the same, or since its last attempt ended */
	/* A machine of its last attempt is lost, or was when that ended, and all have left it. */
	bool after_lost;
	struct residency_set residency;
	char last_agent_id[IDENT_MAX]; /* "" or where its last attempt failed: the rank's machine */
	char blocked_code[32];         /* "" = none */
	char blocked_message[JOB_QUEUE_MESSAGE_MAX];
};
struct job_queue_agent {
	char id[IDENT_MAX];
	char region[SPEC_REGION_MAX];
	char instance_type[JOB_QUEUE_TYPE_MAX];
	int64_t total; /* devices in service */
	int64_t idle;
	/* Machines whose ranks reach each other have the same: "" on a network, otherwise the one
	 * machine that these agents share. */
	char reach[JOB_QUEUE_REACH_MAX];
	bool reserved; /* the scheduler's mark: kept free for a large job that has waited long */
};

/* Queued jobs without an attempt and without a wish to cancel: by priority, time, id. */
int job_queue_read(struct db_conn *conn, struct job_queue_job ret[static JOB_QUEUE_SCAN_MAX],
	int *ret_count, struct err *err) must_check;
/* Ready machines that have devices in service. */
int job_queue_agents(struct db_conn *conn, struct job_queue_agent ret[static JOB_QUEUE_AGENTS_MAX],
	int *ret_count, struct err *err) must_check;
/* Stores what is in the way, if that is news; and then, for places (NULL-terminated, may be NULL)
 * that the job's residency refuses, one decision row each. */
int job_queue_block(struct db_conn *conn, const struct job_queue_job *job, const char *code,
	const char *message, const char *const *refused_places, struct err *err) must_check;
