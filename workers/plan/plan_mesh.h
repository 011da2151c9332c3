/* SPDX-License-Identifier: Apache-2.0
 * Where a rank stands among those that train one job. The plan of a rank is made for its place
 * (plan_compile_rank); the engine joins the groups of its axes (workers/engine/mesh.h). Pure. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/spec/spec.h"

enum { PLAN_RANKS_MAX = 4096 };

/* rank = (pipeline_rank * data + data_rank) * tensor + tensor_rank: ranks of one tensor group are
 * neighbours, so that they share a machine. */
struct plan_mesh {
	int data, tensor, pipeline; /* ranks along each axis, 1 or more */
	int chunks;                 /* stages on each rank of the pipeline axis; 1 where that is 1 */
	int zero;                   /* stage; 0 where data is 1 */
	int data_rank, tensor_rank, pipeline_rank;
};

static inline int plan_mesh_size(const struct plan_mesh *m)
{
	return m->data * m->tensor * m->pipeline;
}

/* The place of a rank in the spec's mesh. INVALID_VALUE names the spec's JSON path: an axis or a
 * stage out of range, more ranks than PLAN_RANKS_MAX, rank outside. */
int plan_mesh_of(
	const struct job_spec *spec, int rank, struct plan_mesh *ret, struct err *err) must_check;
/* The rank that stands there. */
int plan_mesh_rank(const struct plan_mesh *m);
