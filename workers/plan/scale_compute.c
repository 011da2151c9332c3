/* SPDX-License-Identifier: Apache-2.0
 * Seconds of compute: of a kernel, of a part of the model, of the busiest stage of a pipeline.
 * Called by the estimate. */
#include "workers/plan/scale_private.h"

#include <math.h>

/* The slower of the two ceilings (a roofline), and what every call costs beside it. */
double scale_product_s(const struct scale_device *d, enum scale_precision precision, double flops,
	double bytes, double launches)
{
	double rate = d->flops[precision] * d->product_share[precision];
	return fmax(flops / rate, bytes / (d->memory_bytes_s * d->memory_share)) +
		launches * d->product_s;
}

/* A backward pass of attention does five products where the forward pass does two, one of them
 * again: 2.5 times its work, of which PLAN_FLOP_CONVENTION counts 2 [FA]. */
static const double attention_again = 2.5 / 2;

/* One micro-batch. Inside a layer everything is split t ways: columns and rows of products, heads,
 * and by sequence parallelism the rows of norms and residuals [K22]; so are the rows of embedding
 * and logits by a split vocabulary. */
static double kernel_s(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_kernel *k, enum scale_part part)
{
	const struct scale_device *d = &c->device;
	double b = (double)mesh->micro_batch, t = mesh->tensor;
	double flops = k->flops * b / t, bytes = (k->sample_bytes * b + k->fixed_bytes) / t;
	double launches = k->sample_launches > 0 ? fmax(1, k->sample_launches * b / t) : 1;
	double peak =
		d->flops[m->precision == SCALE_TF32 ? SCALE_FP32 : m->precision] * d->attention_share;
	enum scale_precision precision = c->fp8 && part == SCALE_LAYER ? SCALE_FP8 : m->precision;
	switch (k->work) {
	case SCALE_PRODUCT: return scale_product_s(d, precision, flops, bytes, launches);
	case SCALE_ATTENTION: return flops / peak + launches * d->product_s;
	case SCALE_ATTENTION_BACKWARD: return flops * attention_again / peak + launches * d->product_s;
	case SCALE_STREAM: break;
	}
	return bytes / (d->memory_bytes_s * d->memory_share) + launches * d->stream_s;
}

struct scale_seconds scale_compute_part(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, enum scale_part part)
{
	struct scale_seconds s = { 0 };
	const struct scale_way *way = &m->way[mesh->checkpointing];
	for (int pass = 0; pass < SCALE_PASS_COUNT; pass++) {
		const struct scale_kernels *list = &way->kernels[part][pass];
		double sum = 0;
		for (int i = 0; i < list->count; i++) {
			double one = kernel_s(m, c, mesh, &list->item[i], part) / c->device.sustained;
			sum += one;
			s.recompute += list->item[i].recompute ? one : 0;
		}
		*(pass == SCALE_FORWARD ? &s.forward : &s.backward) = sum;
	}
	return s;
}

static int64_t layers_within(double limit_s, double layer_s, double extra_s, int64_t most)
{
	double left = limit_s - extra_s;
	if (left < 0)
		return -1;
	double n = floor(left / layer_s + 1e-9);
	return n > (double)most ? most : (int64_t)n;
}

/* The fewest layers that some stage must have when none may have more than its cap. */
static int64_t most_layers(int64_t layers, int pipeline, const int64_t *caps, int64_t middle)
{
	for (int64_t x = (layers + pipeline - 1) / pipeline; x < layers; x++) {
		int64_t sum = 0;
		for (int i = 0; i < 2; i++)
			sum += caps[i] < x ? caps[i] : x;
		if (sum + (pipeline - 2) * (middle < x ? middle : x) >= layers)
			return x;
	}
	return layers;
}

/* The smallest time of the busiest stage when each stage may have any number of layers, as the
 * plan's costs balance them: the busiest has k layers, with or without embedding or head, and the
 * others as many as they can in its time. Interleaving moves chunks, not the sum that a stage has
 * to do for each micro-batch. */
struct scale_split scale_compute_split(
	int64_t layers, int pipeline, double layer_s, double first_s, double last_s)
{
	struct scale_split best = { layers, layers, true, true };
	double best_s = INFINITY;
	for (int way = 0; way < 3 && pipeline > 1; way++) {
		double extra = way == 0 ? 0 : way == 1 ? first_s : last_s;
		for (int64_t k = 0; k <= layers; k++) {
			double limit = extra + (double)k * layer_s;
			int64_t ends[2] = { layers_within(limit, layer_s, first_s, layers),
				layers_within(limit, layer_s, last_s, layers) };
			int64_t middle = layers_within(limit, layer_s, 0, layers);
			if (ends[0] < 0 || ends[1] < 0 || ends[0] + ends[1] + (pipeline - 2) * middle < layers)
				continue;
			if (limit < best_s) {
				best_s = limit;
				best = (struct scale_split){ k, most_layers(layers, pipeline, ends, middle),
					way == 1, way == 2 };
			}
			break;
		}
	}
	return best;
}

static double both(struct scale_seconds s)
{
	return s.forward + s.backward;
}

static void add(struct scale_seconds *to, struct scale_seconds s, double times)
{
	to->forward += times * s.forward;
	to->backward += times * s.backward;
	to->recompute += times * s.recompute;
}

void scale_compute_stages(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct scale_stages *ret)
{
	struct scale_seconds first = scale_compute_part(m, c, mesh, SCALE_FIRST);
	struct scale_seconds layer = scale_compute_part(m, c, mesh, SCALE_LAYER);
	struct scale_seconds last = scale_compute_part(m, c, mesh, SCALE_LAST);
	*ret = (struct scale_stages){ 0 };
	struct scale_split split =
		scale_compute_split(m->layers, mesh->pipeline, both(layer), both(first), both(last));
	ret->layers = split.most;
	ret->first = split.first;
	ret->last = split.last;
	add(&ret->busiest, layer, (double)split.busiest);
	add(&ret->busiest, first, ret->first);
	add(&ret->busiest, last, ret->last);
}
