/* SPDX-License-Identifier: Apache-2.0
 * Joining the mesh through the folder that all ranks of an attempt share. */
#include "workers/trainer/ranks.h"

#include <stddef.h>

int ranks_count(const struct job_spec *spec)
{
	return spec->device_count > 1 ? (int)spec->device_count : 1;
}

int ranks_join(
	const struct job_spec *spec, const struct ranks_place *p, struct ranks *ret, struct err *err)
{
	struct ranks r = { 0 };
	struct plan_mesh place;
	if (ranks_count(spec) == 1 && p->rank == 0) {
		*ret = r;
		return 0;
	}
	int rc = plan_mesh_of(spec, p->rank, &place, err);
	if (rc == 0 && plan_mesh_size(&place) != ranks_count(spec))
		rc = err_set(err, ERR_INVALID_VALUE, "$.parallelism",
			"$.parallelism shares the job among %d ranks, $.resources.count has %d",
			plan_mesh_size(&place), ranks_count(spec));
	if (rc == 0 && p->rendezvous == NULL)
		rc = err_set(err, ERR_INVALID_VALUE, "$.resources.count",
			"this job has %d ranks, and nothing says where they meet", ranks_count(spec));
	if (rc == 0)
		rc = comm_store_folder_open(p->rendezvous, &r.store, err);
	const struct mesh_options o = {
		.store = r.store,
		.host = p->host,
		.deadline_ms = p->deadline_ms,
		.check = COMM_CHECK_DEFAULT,
		.apart = p->apart,
	};
	if (rc == 0)
		rc = mesh_open(&place, &o, &r.mesh, err);
	if (rc < 0) {
		comm_store_destroy(r.store);
		return rc;
	}
	*ret = r;
	return 0;
}

void ranks_leave(struct ranks *r)
{
	mesh_closep(&r->mesh);
	comm_store_destroyp(&r->store);
	r->store = NULL;
}

bool ranks_is_first(const struct mesh *m)
{
	return m == NULL || m->world->rank == 0;
}

bool ranks_is_lost(int code)
{
	return code == ERR_NETWORK || code == ERR_TIMEOUT || code == ERR_CANCELLED ||
		code == ERR_CONFLICT;
}
