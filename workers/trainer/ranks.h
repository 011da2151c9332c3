/* SPDX-License-Identifier: Apache-2.0
 * The other ranks of a job: where a rank meets them, and what a lost one means. Used by the
 * commands that train, on one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"
#include "workers/engine/mesh.h"

#include <stdbool.h>
#include <stdint.h>

struct ranks_place {
	int rank;
	const char *rendezvous; /* the folder where they meet, the same for all; fresh */
	const char *host;       /* address that the others reach this rank at; NULL: 127.0.0.1 */
	int64_t deadline_ms;    /* of each collective; 0: comm.h's */
	bool apart;             /* device_is_apart of what they compute on */
};

struct ranks {
	struct comm_store *store;
	struct mesh *mesh; /* NULL: the job has one rank */
};

/* Ranks of the job: 1 or more. */
int ranks_count(const struct job_spec *spec);
/* Waits for all of them. Of a job of one rank there is nothing to do. */
int ranks_join(const struct job_spec *spec, const struct ranks_place *p, struct ranks *ret,
	struct err *err) must_check;
/* Leaves them; those still in a collective fail. */
void ranks_leave(struct ranks *r);
/* This rank speaks for all: reports, saves, decides. */
bool ranks_is_first(const struct mesh *m);
/* The error says that another rank was lost, or all of them were told to end: not this one's
 * doing. */
bool ranks_is_lost(int code);
