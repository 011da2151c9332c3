/* SPDX-License-Identifier: Apache-2.0
 * Joins the groups of a rank. Called by the trainer and by tests, before the engine is made. */
#include "workers/engine/mesh.h"

#include <stdio.h>
#include <stdlib.h>

/* The ranks of a group share everything but their place on its axis, which its name therefore
 * tells. */
static int join(const struct mesh_options *o, const char *name, int rank, int size,
	struct comm **ret, struct err *err)
{
	struct comm_options c = { .name = name,
		.rank = rank,
		.size = size,
		.store = o->store,
		.host = o->host,
		.open_ms = o->open_ms,
		.deadline_ms = o->deadline_ms,
		.check = o->check };
	return comm_open(&c, ret, err);
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
	int rc = join(o, "world", plan_mesh_rank(p), plan_mesh_size(p), &m->world, err);
	snprintf(name, sizeof(name), "data-p%d-t%d", p->pipeline_rank, p->tensor_rank);
	if (rc == 0)
		rc = join(o, name, p->data_rank, p->data, &m->data, err);
	snprintf(name, sizeof(name), "tensor-p%d-d%d", p->pipeline_rank, p->data_rank);
	if (rc == 0)
		rc = join(o, name, p->tensor_rank, p->tensor, &m->tensor, err);
	snprintf(name, sizeof(name), "pipeline-d%d-t%d", p->data_rank, p->tensor_rank);
	if (rc == 0)
		rc = join(o, name, p->pipeline_rank, p->pipeline, &m->pipeline, err);
	if (rc == 0)
		rc = join(o, "save", plan_mesh_rank(p), plan_mesh_size(p), &m->save, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(m);
	return 0;
}

void mesh_abort(struct mesh *m, const char *reason)
{
	struct comm *const all[] = { m->world, m->data, m->tensor, m->pipeline, m->save };
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i] != NULL)
			comm_abort(all[i], reason);
}

void mesh_close(struct mesh *m)
{
	if (m == NULL)
		return;
	comm_close(m->save);
	comm_close(m->pipeline);
	comm_close(m->tensor);
	comm_close(m->data);
	comm_close(m->world);
	free(m);
}

void mesh_closep(struct mesh **m)
{
	mesh_close(*m);
	*m = NULL;
}
