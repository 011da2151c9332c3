/* SPDX-License-Identifier: Apache-2.0
 * A rank's place in the mesh. Called by plan_compile_rank and by whoever joins groups. */
#include "workers/plan/plan_mesh.h"

#include "workers/plan/plan_schedule.h"

enum { ZERO_STAGE_MAX = 3 };

static int axis(int64_t ways, const char *param, int *ret, struct err *err)
{
	if (ways < 0 || ways > PLAN_RANKS_MAX)
		return err_set(err, ERR_INVALID_VALUE, param, "%s must be 1 to %d, not %lld", param,
			PLAN_RANKS_MAX, (long long)ways);
	*ret = ways == 0 ? 1 : (int)ways;
	return 0;
}

int plan_mesh_of(const struct job_spec *spec, int rank, struct plan_mesh *ret, struct err *err)
{
	const struct spec_parallel *s = &spec->parallel;
	struct plan_mesh m = { 0 };
	int rc = axis(s->data, "$.parallelism.data", &m.data, err);
	if (!rc)
		rc = axis(s->tensor, "$.parallelism.tensor", &m.tensor, err);
	if (!rc)
		rc = axis(s->pipeline, "$.parallelism.pipeline", &m.pipeline, err);
	if (rc)
		return rc;
	if (s->zero_stage < 0 || s->zero_stage > ZERO_STAGE_MAX)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism.zero_stage",
			"$.parallelism.zero_stage must be 0 to %d, not %lld", ZERO_STAGE_MAX,
			(long long)s->zero_stage);
	int64_t size = (int64_t)m.data * m.tensor;
	if (size > PLAN_RANKS_MAX || size * m.pipeline > PLAN_RANKS_MAX)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism",
			"a mesh of %d x %d x %d has more than %d ranks", m.data, m.tensor, m.pipeline,
			PLAN_RANKS_MAX);
	if (s->interleave < 0 || s->interleave > PLAN_CHUNKS_MAX)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism.interleave",
			"$.parallelism.interleave must be 1 to %d, not %lld", PLAN_CHUNKS_MAX,
			(long long)s->interleave);
	if (s->interleave > 1 && m.pipeline == 1)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism.interleave",
			"$.parallelism.interleave cuts the stages of a pipeline: without one it can only be 1");
	if (rank < 0 || rank >= plan_mesh_size(&m))
		return err_set(err, ERR_INVALID_VALUE, NULL, "there is no rank %d in a mesh of %d ranks",
			rank, plan_mesh_size(&m));
	m.chunks = s->interleave > 1 ? (int)s->interleave : 1;
	m.zero = m.data > 1 ? (int)s->zero_stage : 0;
	m.tensor_rank = rank % m.tensor;
	m.data_rank = rank / m.tensor % m.data;
	m.pipeline_rank = rank / m.tensor / m.data;
	*ret = m;
	return 0;
}

int plan_mesh_rank(const struct plan_mesh *m)
{
	return (m->pipeline_rank * m->data + m->data_rank) * m->tensor + m->tensor_rank;
}
