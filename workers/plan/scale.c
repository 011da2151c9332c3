/* SPDX-License-Identifier: Apache-2.0
 * The estimate of one step: checks the mesh, adds up what the other scale_*.c files find. */
#include "workers/plan/scale_private.h"

#include <math.h>

int64_t scale_micro_steps(const struct scale_model *m, const struct scale_mesh *mesh)
{
	return m->batch / (mesh->data * mesh->micro_batch);
}

static int refuse(struct err *err, const char *what, int64_t size, int64_t axis)
{
	return err_set(err, ERR_INVALID_VALUE, "$.parallelism", "%s: %lld does not go with %lld", what,
		(long long)size, (long long)axis);
}

static int check_axes(const struct scale_cluster *c, const struct scale_mesh *mesh, struct err *err)
{
	int64_t d = mesh->data, t = mesh->tensor, p = mesh->pipeline;
	if (d < 1 || t < 1 || p < 1 || mesh->interleave < 1 || mesh->micro_batch < 1 ||
		d > SCALE_DEVICES_MAX || t > SCALE_DEVICES_MAX || p > SCALE_DEVICES_MAX)
		return err_set(err, ERR_INVALID_VALUE, "$.parallelism", "every axis must be at least 1");
	if (d * t * p != c->devices)
		return refuse(err, "the axes' product and the devices", d * t * p, c->devices);
	if (c->machine_devices % t && t % c->machine_devices)
		return refuse(err, "a tensor group must divide machines", t, c->machine_devices);
	if (mesh->zero < 0 || mesh->zero > 3 || (mesh->zero > 0 && d == 1))
		return refuse(err, "ZeRO's level and data ranks", mesh->zero, d);
	return 0;
}

int scale_mesh_check(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct err *err)
{
	int rc = check_axes(c, mesh, err);
	if (rc)
		return rc;
	int64_t t = mesh->tensor, p = mesh->pipeline, v = mesh->interleave;
	if (m->batch % (mesh->data * mesh->micro_batch))
		return refuse(
			err, "batch and data ranks' micro-batches", m->batch, mesh->data * mesh->micro_batch);
	if (m->layers == 0)
		return t == 1 && p == 1 && v == 1 && mesh->checkpointing == SPEC_KEEP_ALL
			? 0
			: err_set(err, ERR_INVALID_VALUE, "$.parallelism",
				  "models of this family are split over data only");
	if (m->heads % t)
		return refuse(err, "heads and the tensor axis", m->heads, t);
	if (m->kv_heads % t)
		return refuse(err, "key-value heads and the tensor axis", m->kv_heads, t);
	if (m->sequence % t)
		return refuse(err, "sequence_length and the tensor axis", m->sequence, t);
	if (p * v > m->layers)
		return refuse(err, "layers and stages' chunks", m->layers, p * v);
	if (v > 1 && (p == 1 || scale_micro_steps(m, mesh) % p))
		return refuse(
			err, "interleaving takes micro-batches p at a time", scale_micro_steps(m, mesh), p);
	return 0;
}

/* The update runs over what a rank owns: everything, or by ZeRO a d-th [Z]. */
static double optimizer_s(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s)
{
	struct scale_state state = scale_stage_state(m, mesh, s);
	double owned = state.trained / (mesh->zero > 0 ? mesh->data : 1);
	return owned * m->update_bytes / (c->device.memory_bytes_s * c->device.memory_share) +
		2 * c->device.stream_s;
}

static void rates(const struct scale_model *m, const struct scale_cluster *c, struct scale_cost *r)
{
	double peak = c->device.flops[c->fp8 ? SCALE_FP8 : m->precision];
	r->tokens_s = (double)m->batch * m->tokens_sample / r->step_s / c->devices;
	r->flops_s = r->tokens_s * m->flops_token;
	r->source_flops_s = r->tokens_s * m->source_flops_token;
	r->mfu = r->flops_s / peak;
	r->source_mfu = r->source_flops_s / peak;
	r->bubble_share = r->bubble_s / r->step_s;
}

/* The pipeline is full for the m micro-batches of its busiest stage; before and after that p - 1
 * micro-batches pass, in chunks when interleaved: (p-1)/v of the time of one [N21 section 2.2].
 * What a micro-batch waits for in its stage is in that time; the reduction of gradients is not. */
int scale_estimate(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct scale_cost *ret, struct err *err)
{
	int rc = scale_mesh_check(m, c, mesh, err);
	if (rc)
		return rc;
	struct scale_cost cost = { 0 };
	struct scale_stages stages;
	scale_compute_stages(m, c, mesh, &stages);
	double micro_steps = (double)scale_micro_steps(m, mesh);
	cost.compute_s = micro_steps * (stages.busiest.forward + stages.busiest.backward);
	cost.recompute_s = micro_steps * stages.busiest.recompute;
	scale_memory_estimate(m, c, mesh, &stages, &cost);
	scale_collectives(m, c, mesh, &stages, &cost);
	cost.optimizer_s = optimizer_s(m, c, mesh, &stages);
	double one = (cost.compute_s + cost.contention_s + cost.tensor_s) / micro_steps;
	if (mesh->zero > 1)
		one += cost.data_s / micro_steps;
	cost.bubble_s = (mesh->pipeline - 1.0) / mesh->interleave * one;
	cost.step_s = cost.compute_s + cost.contention_s + cost.tensor_s + cost.data_s +
		cost.pipeline_s + cost.bubble_s + cost.optimizer_s;
	rates(m, c, &cost);
	*ret = cost;
	return 0;
}
