/* SPDX-License-Identifier: Apache-2.0
 * The cnn family's residual networks (He et al. 2015), named as Hugging Face's
 * ResNetForImageClassification: a stem, stages of basic or bottleneck blocks (which stride in their
 * 3x3 convolution), global average pooling and one dense layer. Every convolution is followed by a
 * batch norm. Called by plan_family_cnn. */
#include "workers/plan/plan_vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	RESNET_BLOCKS_MAX = 512,
	RESNET_UNITS_MAX = 3,        /* convolutions of a block, besides the shortcut */
	RESNET_BOTTLENECK_WIDER = 4, /* a bottleneck's output, in its width */
};
static const double norm_eps = 1e-5;

/* A convolution and its norm, with what the backward pass needs of them. */
struct resnet_unit {
	char conv_name[PLAN_NAME_MAX], norm_name[PLAN_NAME_MAX];
	struct plan_conv conv;
	int gain, bias, running_mean, running_var; /* parameters */
	int x, c, y, mean, rstd;                   /* buffers; c: what the convolution gives */
	bool relu;
};

struct resnet_block {
	struct resnet_unit unit[RESNET_UNITS_MAX], shortcut;
	int units;
	bool has_shortcut;
};

struct resnet {
	struct resnet_unit stem;
	int pooled, pooled_from; /* of the stem's max pool; -1 = none */
	struct resnet_block block[RESNET_BLOCKS_MAX];
	int blocks;
	struct plan_dense dense;
	int features; /* averaged */
	/* the image that the next unit reads */
	int x;
	int64_t h, w, channels;
};

/* ------------------------------------------------------------------ units */

static int add_vector(struct plan_build *b, const struct resnet_unit *u, enum plan_init init,
	enum plan_role role, const char *what)
{
	struct plan_param_def def = { init, 0, 1, { u->conv.out }, role };
	return plan_param_add(b, def, "%.72s.%s", u->norm_name, what);
}

static void unit_init(struct plan_build *b, struct resnet_unit *u, const struct resnet *r,
	const char *prefix, int64_t out, int64_t kernel, int64_t stride)
{
	snprintf(u->conv_name, sizeof(u->conv_name), "%.72s.convolution", prefix);
	snprintf(u->norm_name, sizeof(u->norm_name), "%.72s.normalization", prefix);
	u->conv = (struct plan_conv){ .name = u->conv_name,
		.bias = -1,
		.n = b->p->micro_batch,
		.h = r->h,
		.w = r->w,
		.in = r->channels,
		.out = out,
		.kernel = kernel,
		.stride = stride,
		.pad = kernel / 2 };
	double scale = sqrt(2.0 / (double)(kernel * kernel * out));
	u->conv.weight = plan_param_add(b,
		(struct plan_param_def){
			PLAN_INIT_NORMAL, scale, 4, { out, r->channels, kernel, kernel }, PLAN_TRAINED },
		"%.72s.weight", u->conv_name);
	u->gain = add_vector(b, u, PLAN_INIT_ONE, PLAN_TRAINED, "weight");
	u->bias = add_vector(b, u, PLAN_INIT_ZERO, PLAN_TRAINED, "bias");
	u->running_mean = add_vector(b, u, PLAN_INIT_ZERO, PLAN_STATE, "running_mean");
	u->running_var = add_vector(b, u, PLAN_INIT_ONE, PLAN_STATE, "running_var");
}

/* Rows of the norm: pixels of all images. */
static int64_t unit_rows(struct plan_build *b, const struct resnet_unit *u)
{
	return plan_conv_count(b, &u->conv) / u->conv.out;
}

/* From the image at x, whose place in `r` the unit's output takes. residual -1 = none. */
static void unit_forward(
	struct plan_build *b, struct resnet *r, struct resnet_unit *u, int residual, bool relu)
{
	int64_t count = plan_conv_count(b, &u->conv), out = u->conv.out;
	u->relu = relu;
	u->x = r->x;
	u->c = plan_build_activation(b, count, "%s", u->conv_name);
	plan_conv_forward(b, &u->conv, u->x, u->c);
	u->y = plan_build_activation(b, count, "%s", u->norm_name);
	u->mean = plan_build_statistic(b, out, "%.72s.mean", u->norm_name);
	u->rstd = plan_build_statistic(b, out, "%.72s.rstd", u->norm_name);
	struct plan_op *op = plan_build_op(b, PLAN_OP_BATCHNORM, u->norm_name,
		PLAN_OPERANDS(u->c, plan_param_weight(b, u->gain), plan_param_weight(b, u->bias), u->y,
			u->mean, u->rstd, plan_param_weight(b, u->running_mean),
			plan_param_weight(b, u->running_var), residual),
		PLAN_DIMS(unit_rows(b, u), out), plan_workspace_batchnorm(out));
	op->act = relu ? PLAN_ACT_RELU : PLAN_ACT_NONE;
	op->scalar = norm_eps;
	r->x = u->y;
	r->h = plan_conv_size(r->h, u->conv.kernel, u->conv.stride, u->conv.pad);
	r->w = plan_conv_size(r->w, u->conv.kernel, u->conv.stride, u->conv.pad);
	r->channels = out;
}

/* dx and dresidual may be dy itself. */
static void norm_backward(
	struct plan_build *b, const struct resnet_unit *u, int dy, int dx, int dresidual)
{
	int64_t out = u->conv.out;
	struct plan_op *op = plan_build_op(b, PLAN_OP_BATCHNORM_BACKWARD, u->norm_name,
		PLAN_OPERANDS(u->c, plan_param_weight(b, u->gain), u->mean, u->rstd, u->y, dy, dx,
			plan_param_gradient(b, u->gain), plan_param_gradient(b, u->bias), dresidual),
		PLAN_DIMS(unit_rows(b, u), out), plan_workspace_batchnorm(out));
	op->act = u->relu ? PLAN_ACT_RELU : PLAN_ACT_NONE;
}

static int64_t in_count(struct plan_build *b, const struct resnet_unit *u)
{
	return plan_build_count(b, u->conv.n * u->conv.h, u->conv.w, u->conv.in);
}

/* ------------------------------------------------------------------ blocks */

static void block_forward(
	struct plan_build *b, struct resnet *r, const char *prefix, int64_t width, int64_t stride)
{
	if (r->blocks == RESNET_BLOCKS_MAX) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.blocks",
			"a residual network has at most %d blocks", RESNET_BLOCKS_MAX);
		return;
	}
	struct resnet_block *k = &r->block[r->blocks++];
	bool bottleneck = b->spec->model.block == SPEC_BLOCK_BOTTLENECK;
	int64_t out = bottleneck ? width * RESNET_BOTTLENECK_WIDER : width;
	char name[PLAN_NAME_MAX];
	int residual = r->x;
	k->units = bottleneck ? 3 : 2;
	k->has_shortcut = stride != 1 || out != r->channels;
	struct resnet at = { .x = r->x, .h = r->h, .w = r->w, .channels = r->channels };
	if (k->has_shortcut) {
		snprintf(name, sizeof(name), "%.64s.shortcut", prefix);
		unit_init(b, &k->shortcut, r, name, out, 1, stride);
		unit_forward(b, r, &k->shortcut, -1, false);
		residual = r->x;
		r->x = at.x;
		r->h = at.h;
		r->w = at.w;
		r->channels = at.channels;
	}
	for (int i = 0; i < k->units; i++) {
		bool last = i == k->units - 1, strided = i == (bottleneck ? 1 : 0);
		int64_t kernel = bottleneck && i != 1 ? 1 : 3;
		snprintf(name, sizeof(name), "%.64s.layer.%d", prefix, i);
		unit_init(b, &k->unit[i], r, name, last ? out : width, kernel, strided ? stride : 1);
		unit_forward(b, r, &k->unit[i], last ? residual : -1, true);
	}
}

/* dy: gradient of the block's output; returns that of its input. */
static int block_backward(struct plan_build *b, const struct resnet_block *k, int dy)
{
	const struct resnet_unit *u = &k->unit[k->units - 1], *sc = &k->shortcut;
	int g = plan_build_activation(b, plan_conv_count(b, &u->conv), "d.%.72s", u->conv_name);
	norm_backward(b, u, dy, g, dy); /* dy is now the residual's gradient */
	for (; u > k->unit; u--) {
		plan_conv_backward_weight(b, &u->conv, u->x, g);
		int dx = plan_build_activation(b, in_count(b, u), "d.%.72s", u[-1].conv_name);
		plan_conv_backward_data(b, &u->conv, g, dx, false);
		norm_backward(b, u - 1, dx, dx, -1);
		g = dx;
	}
	plan_conv_backward_weight(b, &u->conv, u->x, g);
	int dx = dy;
	if (k->has_shortcut) {
		norm_backward(b, sc, dy, dy, -1);
		plan_conv_backward_weight(b, &sc->conv, sc->x, dy);
		dx = plan_build_activation(b, in_count(b, sc), "d.%.72s.in", sc->conv_name);
		plan_conv_backward_data(b, &sc->conv, dy, dx, false);
	}
	plan_conv_backward_data(b, &u->conv, g, dx, true);
	return dx;
}

/* ------------------------------------------------------------------ stem and head */

static void pool_op(struct plan_build *b, const struct resnet *r, enum plan_op_kind kind, int first,
	int second, int third)
{
	const struct plan_conv *c = &r->stem.conv;
	int64_t h = plan_conv_size(c->h, c->kernel, c->stride, c->pad);
	int64_t w = plan_conv_size(c->w, c->kernel, c->stride, c->pad);
	plan_build_op(b, kind, "resnet.embedder.pooler", PLAN_OPERANDS(first, second, third),
		PLAN_DIMS(c->n, h, w, c->out, 3, 2, 1), 0);
}

static void stem_forward(struct plan_build *b, struct resnet *r)
{
	bool wide = b->spec->model.stem == SPEC_STEM_7;
	unit_init(b, &r->stem, r, "resnet.embedder.embedder", b->spec->model.channels[0], wide ? 7 : 3,
		wide ? 2 : 1);
	unit_forward(b, r, &r->stem, -1, true);
	r->pooled = -1;
	if (!wide)
		return;
	r->h = plan_conv_size(r->h, 3, 2, 1);
	r->w = plan_conv_size(r->w, 3, 2, 1);
	int64_t count = plan_build_count(b, b->p->micro_batch * r->h, r->w, r->channels);
	r->pooled = plan_build_activation(b, count, "resnet.embedder.pooler");
	r->pooled_from =
		plan_build_buffer(b, PLAN_ACTIVATIONS, PLAN_U8, count, "resnet.embedder.pooler.which");
	pool_op(b, r, PLAN_OP_MAXPOOL, r->x, r->pooled, r->pooled_from);
	r->x = r->pooled;
}

static void stem_backward(struct plan_build *b, const struct resnet *r, int dy)
{
	const struct resnet_unit *u = &r->stem;
	if (r->pooled >= 0) {
		int full = plan_build_activation(b, plan_conv_count(b, &u->conv), "d.%.72s", u->norm_name);
		pool_op(b, r, PLAN_OP_MAXPOOL_BACKWARD, dy, r->pooled_from, full);
		dy = full;
	}
	norm_backward(b, u, dy, dy, -1);
	plan_conv_backward_weight(b, &u->conv, u->x, dy);
}

static void head_forward(struct plan_build *b, struct resnet *r)
{
	struct plan *p = b->p;
	double dropout = b->spec->hyper.dropout;
	r->features =
		plan_build_activation(b, plan_build_count(b, p->rows, r->channels, 1), "resnet.pooler");
	plan_build_op(b, PLAN_OP_AVGPOOL, "resnet.pooler", PLAN_OPERANDS(r->x, r->features),
		PLAN_DIMS(p->micro_batch, r->h * r->w, r->channels), 0);
	if (dropout > 0)
		plan_build_dropout(b, "resnet.pooler", r->features, r->features,
			&(struct plan_mask){ p->rows * r->channels, 0, dropout, { 0 } });
	plan_dense_layer(b, &r->dense, "classifier.1", r->channels, p->n_classes, false);
	int y = plan_build_activation(b, plan_build_count(b, p->rows, p->n_classes, 1), "classifier.1");
	plan_dense_forward(b, &r->dense, r->features, y, -1);
	plan_head_loss(b, y);
}

/* Returns the gradient of the last block's output. */
static int head_backward(struct plan_build *b, const struct resnet *r)
{
	struct plan *p = b->p;
	double dropout = b->spec->hyper.dropout;
	int64_t count = plan_build_count(b, p->rows, r->channels, 1);
	int df = plan_build_activation(b, count, "d.resnet.pooler");
	plan_dense_backward(b, &r->dense, r->features, p->output, df, plan_gate_none);
	if (dropout > 0)
		plan_build_dropout_backward(
			b, "resnet.pooler", df, df, &(struct plan_mask){ count, 0, dropout, { 0 } });
	int dy = plan_build_activation(
		b, plan_build_count(b, p->micro_batch * r->h, r->w, r->channels), "d.resnet.pooler.in");
	plan_build_op(b, PLAN_OP_AVGPOOL_BACKWARD, "resnet.pooler", PLAN_OPERANDS(df, dy),
		PLAN_DIMS(p->micro_batch, r->h * r->w, r->channels), 0);
	return dy;
}

static void build(struct plan_build *b, struct resnet *r)
{
	const struct spec_model *m = &b->spec->model;
	stem_forward(b, r);
	for (int s = 0; s < m->channel_count; s++)
		for (int64_t k = 0; k < m->blocks[s] && !b->code; k++) {
			char prefix[PLAN_NAME_MAX];
			snprintf(prefix, sizeof(prefix), "resnet.encoder.stages.%d.layers.%d", s, (int)k);
			block_forward(b, r, prefix, m->channels[s], s > 0 && k == 0 ? 2 : 1);
		}
	head_forward(b, r);
	plan_build_backward(b);
	int dy = head_backward(b, r);
	for (int i = r->blocks - 1; i >= 0 && !b->code; i--)
		dy = block_backward(b, &r->block[i], dy);
	stem_backward(b, r, dy);
}

void plan_family_resnet(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	if (m->channel_count < 1 || m->hidden_count > 0) {
		plan_build_fail(b, ERR_INVALID_VALUE,
			m->hidden_count > 0 ? "$.model.config.hidden" : "$.model.config.channels",
			"a residual network has 1 to %d stages and no hidden layers", SPEC_CHANNELS_MAX);
		return;
	}
	for (int s = 0; s < m->channel_count; s++)
		if (m->blocks[s] < 1) {
			plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.blocks",
				"stage %d needs at least one block", s + 1);
			return;
		}
	struct resnet *r = calloc(1, sizeof(*r));
	if (!r) {
		plan_build_fail(b, ERR_NO_MEMORY, NULL, "no memory for the plan");
		return;
	}
	int64_t pixels =
		plan_build_count(b, p->micro_batch * p->in_height, p->in_width, p->in_channels);
	plan_build_input(b, PLAN_INPUT, PLAN_F32, pixels);
	r->x = plan_build_cast(b, "input", p->inputs.input, pixels);
	r->h = p->in_height;
	r->w = p->in_width;
	r->channels = p->in_channels;
	build(b, r);
	free(r);
}
