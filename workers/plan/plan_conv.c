/* SPDX-License-Identifier: Apache-2.0
 * Operations of convolutions and their scratch. Called by the cnn family's files. */
#include "core/base/num.h"
#include "workers/plan/plan_vision.h"

int64_t plan_conv_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad)
{
	return (size + 2 * pad - kernel) / stride + 1;
}

int64_t plan_conv_count(struct plan_build *b, const struct plan_conv *c)
{
	int64_t oh = plan_conv_size(c->h, c->kernel, c->stride, c->pad);
	int64_t ow = plan_conv_size(c->w, c->kernel, c->stride, c->pad);
	return plan_build_count(b, plan_build_count(b, c->n, oh, ow), c->out, 1);
}

static struct plan_op *conv_op(struct plan_build *b, const struct plan_conv *c,
	enum plan_op_kind kind, const int *operands, int count)
{
	if (b->code) /* sizes may be out of every bound */
		return &b->sink_op;
	return plan_build_op(b, kind, c->name, operands, count,
		PLAN_DIMS(c->n, c->h, c->w, c->in, c->out, c->kernel, c->stride, c->pad),
		plan_workspace_conv(c));
}

void plan_conv_forward(struct plan_build *b, const struct plan_conv *c, int x, int y)
{
	struct plan_op *op = conv_op(b, c, PLAN_OP_CONV,
		PLAN_OPERANDS(x, plan_param_weight(b, c->weight), plan_param_weight(b, c->bias), y));
	op->act = c->act;
}

void plan_conv_backward_weight(struct plan_build *b, const struct plan_conv *c, int x, int dy)
{
	conv_op(b, c, PLAN_OP_CONV_BACKWARD_WEIGHT,
		PLAN_OPERANDS(x, dy, plan_param_gradient(b, c->weight), plan_param_gradient(b, c->bias)));
}

void plan_conv_backward_data(
	struct plan_build *b, const struct plan_conv *c, int dy, int dx, bool accumulate)
{
	struct plan_op *op = conv_op(
		b, c, PLAN_OP_CONV_BACKWARD_DATA, PLAN_OPERANDS(dy, plan_param_weight(b, c->weight), dx));
	op->accumulate = accumulate;
}

/* ------------------------------------------------------------------ scratch */

enum {
	TILE = 4, /* pixels, each way */
	POINTS = 36,
	BLOCK_TILES = 32,
	BLOCK_CHANNELS = 64,
	CHANNEL_UNIT = 32,
	PLANE_PAD = 48, /* floats */
	JOBS = 16,
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t tiles_of(const struct plan_conv *c, int64_t smaller)
{
	return c->n * num_ceil_div(c->h - smaller, TILE) * num_ceil_div(c->w - smaller, TILE);
}

/* 3x3 convolutions in tiles: for up to JOBS threads a block's inputs, weights and sums, and the
 * weights' partial sums where channels are too few to share. */
static int64_t tiled(const struct plan_conv *c)
{
	int64_t in_blocks = num_ceil_div(c->in, BLOCK_CHANNELS),
			out_blocks = num_ceil_div(c->out, BLOCK_CHANNELS);
	int64_t in = least(num_round_up(c->in, CHANNEL_UNIT), BLOCK_CHANNELS);
	int64_t out = least(num_round_up(c->out, CHANNEL_UNIT), BLOCK_CHANNELS);
	int64_t share = POINTS * (BLOCK_TILES * (in + out) + in * out + PLANE_PAD);
	int64_t blocks = in_blocks * out_blocks;
	int64_t jobs = num_ceil_div(tiles_of(c, 0), BLOCK_TILES) * most(in_blocks, out_blocks);
	int64_t parts = least(JOBS / blocks, tiles_of(c, 2 - 2 * c->pad) / (2 * BLOCK_TILES));
	return least(most(jobs, blocks), JOBS) * share + (parts > 1 ? parts * c->in * c->out * 9 : 0);
}

int64_t plan_workspace_conv(const struct plan_conv *c)
{
	int64_t taps = c->kernel * c->kernel, stride = c->stride;
	int64_t pixels = c->n * plan_conv_size(c->h, c->kernel, stride, c->pad) *
		plan_conv_size(c->w, c->kernel, stride, c->pad);
	int64_t phase = c->n * num_ceil_div(c->h, stride) * num_ceil_div(c->w, stride);
	int64_t ordered = taps > 1 ? taps * c->in * c->out * plan_type_bytes(PLAN_F32) : 0;
	int64_t image = stride > 1 ? phase * c->in * plan_type_bytes(PLAN_F32) : 0;
	int64_t product = most(plan_workspace_product(pixels, c->out, taps * c->in),
		most(plan_workspace_product(phase, c->in, taps * c->out),
			plan_workspace_product(c->out, taps * c->in, pixels)));
	int64_t rest = image + product;
	if (c->kernel == 3 && stride == 1)
		rest = most(rest, tiled(c) * plan_type_bytes(PLAN_F32));
	return ordered + rest + 2 * PLAN_ALIGN_BYTES;
}

int64_t plan_workspace_batchnorm(int64_t c)
{
	return 2 * PLAN_ROW_BLOCKS * c * plan_type_bytes(PLAN_F32);
}
