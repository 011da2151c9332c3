/* SPDX-License-Identifier: Apache-2.0
 * The groups that a rank of a mesh is in. Opened by the trainer, borrowed by the engine. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/comm/comm.h"
#include "workers/comm/comm_store.h"
#include "workers/plan/plan_mesh.h"

#include <stdbool.h>
#include <stdint.h>

/* Two ranks that follow each other on the pipeline axis, for one direction: the sender is rank 0 of
 * the group, so that calls of one group never wait for those of another direction. Where ranks have
 * several stages, the first follows the last. */
enum mesh_edge {
	MESH_FORWARD_IN,
	MESH_FORWARD_OUT,
	MESH_BACKWARD_IN,
	MESH_BACKWARD_OUT,
	MESH_EDGE_COUNT,
};

struct mesh_options {
	struct comm_store *store; /* as comm_options has it; NULL for one rank alone */
	const char *host;
	int64_t open_ms, deadline_ms; /* 0: comm.h's defaults */
	bool check;                   /* COMM_CHECK_DEFAULT */
	bool apart; /* what is computed is in a device's memory: store and host are borrowed until close
				 */
};

/* Each is a group of one where its axis has one rank. Ranks of a group are in the order of their
 * place on the axis; those of world by rank. save has the same ranks as world: checkpoints are
 * written beside the steps, on another thread, and calls of one group come in one order. data,
 * tensor, edges and ends move what is computed; where that is in a device's memory they are opened
 * and closed by the engine (mesh_enter_device). The others move numbers of the host. */
struct mesh {
	struct plan_mesh place;
	struct comm *world, *data, *tensor, *pipeline, *save;
	struct comm *data_host; /* the ranks of data; data itself where that is in host memory */
	struct comm *edge[MESH_EDGE_COUNT]; /* NULL where nobody is there */
	struct comm *ends; /* the first and the last rank of the pipeline axis; NULL elsewhere */
	struct mesh_options options;
};

/* Joins all groups of the place. Returns when every rank has come. As comm_open. */
int mesh_open(const struct plan_mesh *place, const struct mesh_options *o, struct mesh **ret,
	struct err *err) must_check;
/* Opens the groups of what is computed, in this device's memory, of a mesh that is apart. Returns
 * when every rank has come. As comm_open. */
int mesh_enter_device(struct mesh *m, const struct comm_device *device, struct err *err) must_check;
/* Tells them of memory that they will move again and again (comm_register). */
int mesh_register(struct mesh *m, void *data, int64_t bytes, struct err *err) must_check;
/* Closes them, before the device's memory is gone. */
void mesh_leave_device(struct mesh *m);
/* Everything that is not done, and everything later, fails with this reason; on all groups. Any
 * thread, but not while groups of a device are opened or closed. */
void mesh_abort(struct mesh *m, const char *reason);
/* Leaves the groups. NULL is fine. */
void mesh_close(struct mesh *m);
void mesh_closep(struct mesh **m);
