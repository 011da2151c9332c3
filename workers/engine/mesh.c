/* SPDX-License-Identifier: Apache-2.0
 * Joins the groups of a rank. Called by the trainer and by tests, before the engine is made. */
#include "workers/engine/mesh.h"

#include <stdio.h>
#include <stdlib.h>

/* The ranks of a group share everything but their place on its axis, which its name therefore
 * tells. */
static int join(const struct mesh_options *o, const struct comm_device *device, const char *name,
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

static int join_data(struct mesh *m, const struct mesh_options *o, const struct comm_device *device,
	struct comm **ret, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	char name[COMM_NAME_MAX];
	snprintf(name, sizeof(name), "%s-p%d-t%d", device == NULL && o->apart ? "data-host" : "data",
		p->pipeline_rank, p->tensor_rank);
	return join(o, device, name, p->data_rank, p->data, ret, err);
}

/* From one place on the pipeline axis to the next in its direction. Every rank comes to its edges
 * in the order of their senders, so none waits for another in a circle. */
static int join_edges(struct mesh *m, const struct mesh_options *o,
	const struct comm_device *device, bool forward, struct err *err)
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
			rc = join(o, device, name, 0, 2, &m->edge[out], err);
		else if (p->pipeline_rank == to)
			rc = join(o, device, name, 1, 2, &m->edge[in], err);
	}
	return rc;
}

static int join_ends(
	struct mesh *m, const struct mesh_options *o, const struct comm_device *device, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	bool last = p->pipeline_rank == p->pipeline - 1;
	char name[COMM_NAME_MAX];
	if (p->pipeline == 1 || (p->pipeline_rank > 0 && !last))
		return 0;
	snprintf(name, sizeof(name), "ends-d%d-t%d", p->data_rank, p->tensor_rank);
	return join(o, device, name, last ? 1 : 0, 2, &m->ends, err);
}

/* The groups of what is computed. */
static int join_computed(
	struct mesh *m, const struct mesh_options *o, const struct comm_device *device, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	char name[COMM_NAME_MAX];
	int rc = join_data(m, o, device, &m->data, err);
	snprintf(name, sizeof(name), "tensor-p%d-d%d", p->pipeline_rank, p->data_rank);
	if (rc == 0)
		rc = join(o, device, name, p->tensor_rank, p->tensor, &m->tensor, err);
	if (rc == 0)
		rc = join_edges(m, o, device, true, err);
	if (rc == 0)
		rc = join_edges(m, o, device, false, err);
	return rc == 0 ? join_ends(m, o, device, err) : rc;
}

/* Those of the ranks' own numbers. */
static int join_host(struct mesh *m, const struct mesh_options *o, struct err *err)
{
	const struct plan_mesh *p = &m->place;
	char name[COMM_NAME_MAX];
	int rc = join(o, NULL, "world", plan_mesh_rank(p), plan_mesh_size(p), &m->world, err);
	snprintf(name, sizeof(name), "pipeline-d%d-t%d", p->data_rank, p->tensor_rank);
	if (rc == 0)
		rc = join(o, NULL, name, p->pipeline_rank, p->pipeline, &m->pipeline, err);
	if (rc == 0)
		rc = join(o, NULL, "save", plan_mesh_rank(p), plan_mesh_size(p), &m->save, err);
	return rc == 0 && o->apart ? join_data(m, o, NULL, &m->data_host, err) : rc;
}

int mesh_open(
	const struct plan_mesh *place, const struct mesh_options *o, struct mesh **ret, struct err *err)
{
	cleanup(mesh_closep) struct mesh *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the groups of a rank");
	m->place = *place;
	m->options = *o;
	int rc = join_host(m, o, err);
	if (rc == 0 && !o->apart)
		rc = join_computed(m, o, NULL, err);
	if (rc < 0)
		return rc;
	if (!o->apart)
		m->data_host = m->data;
	*ret = take_ptr(m);
	return 0;
}

int mesh_enter_device(struct mesh *m, const struct comm_device *device, struct err *err)
{
	if (!m->options.apart || m->data != NULL)
		return err_set(err, ERR_CONFLICT, NULL, "%s",
			m->options.apart ? "the mesh is on a device already"
							 : "the mesh was opened in the host's memory");
	int rc = join_computed(m, &m->options, device, err);
	if (rc < 0)
		mesh_leave_device(m);
	return rc;
}

int mesh_register(struct mesh *m, void *data, int64_t bytes, struct err *err)
{
	struct comm *const all[] = { m->data, m->tensor, m->edge[MESH_FORWARD_IN],
		m->edge[MESH_FORWARD_OUT], m->edge[MESH_BACKWARD_IN], m->edge[MESH_BACKWARD_OUT], m->ends };
	int rc = 0;
	for (size_t i = 0; i < ARRAY_LEN(all) && rc == 0; i++)
		if (all[i] != NULL)
			rc = comm_register(all[i], data, bytes, err);
	return rc;
}

static void close_group(struct comm **c)
{
	comm_close(*c);
	*c = NULL;
}

static void close_computed(struct mesh *m)
{
	close_group(&m->ends);
	for (int i = 0; i < MESH_EDGE_COUNT; i++)
		close_group(&m->edge[i]);
	close_group(&m->tensor);
	close_group(&m->data);
}

void mesh_leave_device(struct mesh *m)
{
	if (m->options.apart)
		close_computed(m);
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
	if (m->data_host != m->data)
		close_group(&m->data_host);
	close_computed(m);
	close_group(&m->save);
	close_group(&m->pipeline);
	close_group(&m->world);
	free(m);
}

void mesh_closep(struct mesh **m)
{
	mesh_close(*m);
	*m = NULL;
}
