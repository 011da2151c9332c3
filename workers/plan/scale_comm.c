/* SPDX-License-Identifier: Apache-2.0
 * The collectives of a step: bytes, calls, seconds, and how much of them compute hides. Called by
 * the estimate. */
#include "workers/plan/scale_private.h"

#include <math.h>
#include <string.h>

/* Members of a group in one machine. */
static int data_local(const struct scale_cluster *c, const struct scale_mesh *mesh)
{
	int places = mesh->tensor < c->machine_devices ? c->machine_devices / mesh->tensor : 1;
	return mesh->data < places ? mesh->data : places;
}

static int tensor_local(const struct scale_cluster *c, const struct scale_mesh *mesh)
{
	return mesh->tensor < c->machine_devices ? mesh->tensor : c->machine_devices;
}

/* Buckets that become ready one after the other while compute_s runs: the last (the first, when
 * they are fetched) has nothing to hide behind. */
static double buckets_wait(double seconds, double calls, double compute_s, bool overlap)
{
	double one = seconds / calls;
	double cover = overlap ? compute_s * (1 - 1 / calls) : 0;
	return fmax(one, seconds - cover);
}

static void emit(struct scale_cost *cost, struct scale_collective line)
{
	if (line.seconds > 0 && cost->collective_count < SCALE_COLLECTIVES_MAX)
		cost->collective[cost->collective_count++] = line;
}

static double data_s(const struct scale_cluster *c, const struct scale_mesh *mesh,
	enum scale_operation op, double bytes)
{
	return scale_collective_s(c, op, bytes, mesh->data, data_local(c, mesh));
}

struct buckets {
	double bytes, calls, seconds, exposed_s; /* of one pass over all of them */
};

/* As many buckets as leave the least to wait for: more of them start earlier, but each pays the
 * steps of the ring, so that long rings want few ([MC] likewise lets them grow with d). None is
 * below the 64 MiB from which the links are near their best [BUS]. */
static struct buckets cut(const struct scale_cluster *c, const struct scale_mesh *mesh,
	enum scale_operation op, double bytes, double compute_s, bool overlap)
{
	static const double bucket_min = 64.0 * 1024 * 1024;
	struct buckets best = { .exposed_s = INFINITY };
	for (double calls = 1; calls == 1 || bytes / calls >= bucket_min; calls *= 2) {
		struct buckets b = { bytes / calls, calls, calls * data_s(c, mesh, op, bytes / calls), 0 };
		b.exposed_s = buckets_wait(b.seconds, calls, compute_s, overlap);
		if (b.exposed_s < best.exposed_s)
			best = b;
	}
	return best;
}

static void emit_buckets(struct scale_cost *cost, const struct buckets *b, double times,
	const char *name, const char *operation, const char *behind)
{
	cost->data_s += times * b->exposed_s;
	emit(cost,
		(struct scale_collective){ name, operation, "data", behind, b->bytes, b->calls * times,
			b->seconds * times, times * b->exposed_s });
}

/* ZeRO 0 to 2: gradients once a step (level 2: once a micro-batch, as nobody holds whole ones), and
 * from level 1 the new weights once. */
static void data_buckets(const struct scale_cluster *c, const struct scale_mesh *mesh,
	const struct scale_state *state, const struct scale_stages *s, double micro_steps,
	struct scale_cost *cost)
{
	const struct scale_overlap *o = &c->overlap;
	double times = mesh->zero == 2 ? micro_steps : 1;
	bool split = mesh->zero > 0;
	struct buckets b = cut(c, mesh, split ? SCALE_REDUCE_SCATTER : SCALE_ALL_REDUCE,
		state->trained * o->gradient_bytes, s->busiest.backward, o->gradients);
	emit_buckets(cost, &b, times, "gradients", split ? "reduce-scatter" : "all-reduce",
		o->gradients ? "the backward pass" : "nothing");
	if (!split || state->all <= 0)
		return;
	b = cut(c, mesh, SCALE_ALL_GATHER, state->weights * state->trained / state->all,
		s->busiest.forward, o->weights);
	emit_buckets(
		cost, &b, 1, "new weights", "all-gather", o->weights ? "the next forward pass" : "nothing");
}

/* ZeRO 3: in every micro-batch the weights are gathered layer by layer in both passes and the
 * gradients reduced in the second. Of a step only the very first gather and the very last
 * reduction have nothing beside them. */
static void data_layers(const struct scale_cluster *c, const struct scale_mesh *mesh,
	const struct scale_state *state, const struct scale_stages *s, double micro_steps,
	struct scale_cost *cost)
{
	double units = fmax(1, (double)s->layers) + (s->first || s->last ? 1 : 0);
	double weights = state->weights / units;
	double gradients = state->trained * c->overlap.gradient_bytes / units;
	double g = data_s(c, mesh, SCALE_ALL_GATHER, weights);
	double r = data_s(c, mesh, SCALE_REDUCE_SCATTER, gradients);
	double forward = units * g, backward = units * (g + r);
	double ends = g + r, over_f = forward - g - s->busiest.forward;
	double over_b = backward - r - s->busiest.backward;
	double exposed = ends + micro_steps * (fmax(0, over_f) + fmax(0, over_b));
	double all = micro_steps * (forward + backward);
	if (!c->overlap.weights || exposed > all)
		exposed = all;
	cost->data_s += exposed;
	double share = exposed / all;
	emit(cost,
		(struct scale_collective){ "weights of a layer", "all-gather", "data",
			c->overlap.weights ? "the layer before" : "nothing", weights, 2 * units * micro_steps,
			2 * units * g * micro_steps, 2 * units * g * micro_steps * share });
	emit(cost,
		(struct scale_collective){ "gradients of a layer", "reduce-scatter", "data",
			c->overlap.weights ? "the backward pass of the next layer" : "nothing", gradients,
			units * micro_steps, units * r * micro_steps, units * r * micro_steps * share });
}

/* Bytes of the residual stream of a micro-batch, in the type that products read. */
static double stream_bytes(const struct scale_model *m, const struct scale_mesh *mesh)
{
	return (double)mesh->micro_batch * (double)m->sequence * (double)m->width * m->weight_bytes;
}

/* [K22] with sequence parallelism: a layer gathers its input before attention and before the mlp
 * and scatters both outputs, the same backward, and gathers both inputs again for the gradients of
 * weights. Recomputing the whole layer repeats the first four. Embedding 1 + 1, head 1 + 2. Cut in
 * t pieces, all but one can run beside the product that makes or reads them. */
static void tensor(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, double micro_steps,
	struct scale_cost *cost)
{
	if (mesh->tensor == 1)
		return;
	double bytes = stream_bytes(m, mesh), t = mesh->tensor;
	double calls = (double)s->layers * (mesh->checkpointing == SPEC_FULL ? 14 : 10) +
		(s->first ? 2 : 0) + (s->last ? 3 : 0);
	double one =
		calls * scale_collective_s(c, SCALE_ALL_GATHER, bytes, mesh->tensor, tensor_local(c, mesh));
	double exposed = one;
	if (c->overlap.tensor)
		exposed = one / t + fmax(0, one * (1 - 1 / t) - s->busiest.forward - s->busiest.backward);
	cost->tensor_s = micro_steps * exposed;
	emit(cost,
		(struct scale_collective){ "activations", "all-gather, reduce-scatter", "tensor",
			c->overlap.tensor ? "their products, in pieces" : "nothing", bytes, calls * micro_steps,
			one * micro_steps, exposed * micro_steps });
}

/* Every stage hands each micro-batch on in both directions, v times, a t-th of the stream from each
 * rank [N21 section 4.1]. Overlapped, the fill and the drain of the pipeline wait, and what takes
 * longer than the chunk that computes meanwhile. */
static void pipeline(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, double micro_steps,
	struct scale_cost *cost)
{
	if (mesh->pipeline == 1)
		return;
	bool same = mesh->tensor * mesh->data < c->machine_devices;
	double bytes = stream_bytes(m, mesh) / mesh->tensor, one = scale_send_s(c, bytes, same);
	double calls = 2.0 * mesh->interleave * micro_steps, fill = 2.0 * (mesh->pipeline - 1);
	double chunk_s = c->overlap.pipeline ? s->busiest.forward / mesh->interleave : 0;
	double exposed = fill * one + calls * fmax(0, one - chunk_s);
	cost->pipeline_s += exposed;
	emit(cost,
		(struct scale_collective){ "activations to the next stage", "send", "pipeline",
			c->overlap.pipeline ? "the next micro-batch" : "nothing", bytes, calls,
			fmax(calls * one, exposed), exposed });
	if (m->tied) {
		int places = same ? 2 : 1;
		bytes = m->state[SCALE_FIRST].trained * c->overlap.gradient_bytes / mesh->tensor;
		one = scale_collective_s(c, SCALE_ALL_REDUCE, bytes, 2, places);
		cost->pipeline_s += one;
		emit(cost,
			(struct scale_collective){ "gradients of the tied embedding", "all-reduce", "pipeline",
				"nothing", bytes, 1, one, one });
	}
}

/* Rows that DLRM's tables were asked for, and their gradients, from every rank to every rank. */
static void sparse(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct scale_cost *cost)
{
	double bytes = m->sparse_bytes * (double)m->batch;
	double one = data_s(c, mesh, SCALE_ALL_GATHER, bytes);
	cost->data_s += one;
	emit(cost,
		(struct scale_collective){
			"gradients of rows of tables", "all-gather", "data", "nothing", bytes, 1, one, one });
}

/* A collective of the data axis that runs beside compute takes processors and memory from it. What
 * it takes goes with the bytes that it moves, not with the time that it waits for an adapter: the
 * published runs of 13B on 8 to 64 devices are as fast as each other. Tensor parallel's pieces and
 * pipeline's sends are copied by engines of their own [MC]. */
static double contention_s(
	const struct scale_cluster *c, const struct scale_mesh *mesh, const struct scale_cost *cost)
{
	const struct scale_link *l = &c->inside;
	double rate = l->point[l->point_count - 1].bytes_s, busy = 0;
	for (int i = 0; i < cost->collective_count; i++) {
		const struct scale_collective *k = &cost->collective[i];
		double times = strcmp(k->operation, "all-reduce") == 0 ? 2 : 1;
		double moved = times * (mesh->data - 1.0) / mesh->data * k->bytes * k->calls;
		if (strcmp(k->axis, "data") == 0)
			busy += (1 - k->exposed_s / k->seconds) * moved / rate;
	}
	return busy * c->device.collective_share;
}

void scale_collectives(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, struct scale_cost *cost)
{
	double micro_steps = (double)scale_micro_steps(m, mesh);
	struct scale_state state = scale_stage_state(m, mesh, s);
	if (mesh->data > 1) {
		if (mesh->zero == 3)
			data_layers(c, mesh, &state, s, micro_steps, cost);
		else
			data_buckets(c, mesh, &state, s, micro_steps, cost);
		sparse(m, c, mesh, cost);
	}
	tensor(m, c, mesh, s, micro_steps, cost);
	pipeline(m, c, mesh, s, micro_steps, cost);
	cost->contention_s = contention_s(c, mesh, cost);
}
