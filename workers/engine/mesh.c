/* SPDX-License-Identifier: Apache-2.0
 * Joins the groups of a rank. Called by the trainer and by tests, before the engine is made. */
#include "workers/engine/mesh.h"

#include <stdio.h>
#include <stdlib.h>

/* The ranks of a group share everything but their place on its axis, which its name therefore
 * tells. */
static int join_on(const struct mesh_options *o, const struct comm_device *device, const char *name,
	int rank, int size, struct comm **ret, struct err *err)
{
	struct comm_options c = { .name = name,
		.rank = rank,
		.size = size,
		.store = o->store,
		.host = o->host,
		.open_ms = o->open_ms,
		.deadline_ms = o->deadline_ms,
		.check = o->check,
		.device = device };
	return comm_open(&c, ret, err);
}

/* Of buffers that are computed with. */
static int join(const struct mesh_options *o, const char *name, int rank, int size,
	struct comm **ret, struct err *err)
{
	return join_on(o, o->device, name, rank, size, ret, err);
}

/* Of the ranks' own numbers. */
static int join_host(const struct mesh_options *o, const char *name, int rank, int size,
	struct comm **ret, struct err *err)
{
	return join_on(o, NULL, name, rank, size, ret, err);
}

static int join_data(struct mesh *m, const struct mesh_options *o, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	char name[COMM_NAME_MAX];
	snprintf(name, sizeof(name), "data-p%d-t%d", p->pipeline_rank, p->tensor_rank);
	int rc = join(o, name, p->data_rank, p->data, &m->data, err);
	if (o->device == NULL)
		m->data_host = m->data;
	if (rc < 0 || o->device == NULL)
		return rc;
	snprintf(name, sizeof(name), "data-host-p%d-t%d", p->pipeline_rank, p->tensor_rank);
	return join_host(o, name, p->data_rank, p->data, &m->data_host, err);
}

/* From one place on the pipeline axis to the next in its direction. Every rank comes to its edges
 * in the order of their senders, so none waits for another in a circle. */
static int join_edges(struct mesh *m, const struct mesh_options *o, bool forward, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	int in = forward ? MESH_FORWARD_IN : MESH_BACKWARD_IN;
	int out = forward ? MESH_FORWARD_OUT : MESH_BACKWARD_OUT;
	int rc = 0;
	for (int from = 0; rc == 0 && from < p->pipeline && p->pipeline > 1; from++) {
		int to = (from + (forward ? 1 : p->pipeline - 1)) % p->pipeline;
		bool around = forward ? to < from : to > from;
		char name[COMM_NAME_MAX];
		snprintf(name, sizeof(name), "%s-p%d-d%d-t%d", forward ? "forward" : "backward", from,
			p->data_rank, p->tensor_rank);
		if (around && p->chunks <= 1)
			continue;
		if (p->pipeline_rank == from)
			rc = join(o, name, 0, 2, &m->edge[out], err);
		else if (p->pipeline_rank == to)
			rc = join(o, name, 1, 2, &m->edge[in], err);
	}
	return rc;
}

static int join_ends(struct mesh *m, const struct mesh_options *o, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	bool last = p->pipeline_rank == p->pipeline - 1;
	char name[COMM_NAME_MAX];
	if (p->pipeline == 1 || (p->pipeline_rank > 0 && !last))
		return 0;
	snprintf(name, sizeof(name), "ends-d%d-t%d", p->data_rank, p->tensor_rank);
	return join(o, name, last ? 1 : 0, 2, &m->ends, err);
}

int mesh_open(
	const struct plan_mesh *place, const struct mesh_options *o, struct mesh **ret, struct err *err)
{
	const struct plan_mesh *p = place;
	char name[COMM_NAME_MAX];
	cleanup(mesh_closep) struct mesh *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the groups of a rank");
	m->place = *p;
	int rc = join_host(o, "world", plan_mesh_rank(p), plan_mesh_size(p), &m->world, err);
	if (rc == 0)
		rc = join_data(m, o, err);
	snprintf(name, sizeof(name), "tensor-p%d-d%d", p->pipeline_rank, p->data_rank);
	if (rc == 0)
		rc = join(o, name, p->tensor_rank, p->tensor, &m->tensor, err);
	snprintf(name, sizeof(name), "pipeline-d%d-t%d", p->data_rank, p->tensor_rank);
	if (rc == 0)
		rc = join_host(o, name, p->pipeline_rank, p->pipeline, &m->pipeline, err);
	if (rc == 0)
		rc = join_edges(m, o, true, err);
	if (rc == 0)
		rc = join_edges(m, o, false, err);
	if (rc == 0)
		rc = join_ends(m, o, err);
	if (rc == 0)
		rc = join_host(o, "save", plan_mesh_rank(p), plan_mesh_size(p), &m->save, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(m);
	return 0;
}

void mesh_abort(struct mesh *m, const char *reason)
{
	struct comm *const all[] = { m->world, m->data, m->data_host, m->tensor, m->pipeline, m->save,
		m->edge[MESH_FORWARD_IN], m->edge[MESH_FORWARD_OUT], m->edge[MESH_BACKWARD_IN],
		m->edge[MESH_BACKWARD_OUT], m->ends };
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i] != NULL)
			comm_abort(all[i], reason);
}

void mesh_close(struct mesh *m)
{
	if (m == NULL)
		return;
	comm_close(m->save);
	comm_close(m->ends);
	for (int i = 0; i < MESH_EDGE_COUNT; i++)
		comm_close(m->edge[i]);
	comm_close(m->pipeline);
	comm_close(m->tensor);
	if (m->data_host != m->data)
		comm_close(m->data_host);
	comm_close(m->data);
	comm_close(m->world);
	free(m);
}

void mesh_closep(struct mesh **m)
{
	mesh_close(*m);
	*m = NULL;
}
