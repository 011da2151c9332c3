/* SPDX-License-Identifier: Apache-2.0
 * The cnn family: residual networks (plan_family_resnet.c), or plain stages of 3x3 convolutions
 * with bias and ReLU, each stage ended by a 2x2 max pool, then dense layers. Activations are
 * channels last; parameters are features.S.B.weight [out, in, 3, 3] and classifier.N.weight [out,
 * in] over the flattened (height, width, channel). */
#include "workers/plan/plan_vision.h"

#include <math.h>
#include <stdio.h>

enum { CNN_CONVS_MAX = 8 * 16 };

struct cnn_conv {
	char name[PLAN_NAME_MAX];
	struct plan_conv conv;
	int x, y;        /* buffers */
	int pooled;      /* output of the pool that follows, -1 = none */
	int pooled_from; /* which maximum, one byte each */
};

static void pool_op(struct plan_build *b, const struct cnn_conv *c, enum plan_op_kind kind,
	int first, int second, int third)
{
	plan_build_op(b, kind, c->name, PLAN_OPERANDS(first, second, third),
		PLAN_DIMS(c->conv.n, c->conv.h, c->conv.w, c->conv.out, 2, 2, 0), 0);
}

static void conv_forward(struct plan_build *b, struct cnn_conv *c, bool pool)
{
	struct plan_conv *conv = &c->conv;
	conv->weight = plan_param_add(b,
		(struct plan_param_def){ PLAN_INIT_NORMAL, sqrt(2.0 / (9.0 * (double)conv->in)), 4,
			{ conv->out, conv->in, 3, 3 }, PLAN_TRAINED },
		"%.48s.weight", c->name);
	conv->bias = plan_param_add(b,
		(struct plan_param_def){ PLAN_INIT_ZERO, 0, 1, { conv->out }, PLAN_TRAINED }, "%.48s.bias",
		c->name);
	c->y = plan_build_activation(b, plan_conv_count(b, conv), "%s", c->name);
	plan_conv_forward(b, conv, c->x, c->y);
	c->pooled = -1;
	if (!pool)
		return;
	int64_t count = plan_build_count(b, conv->n * (conv->h / 2), conv->w / 2, conv->out);
	c->pooled = plan_build_activation(b, count, "%.48s.pool", c->name);
	c->pooled_from = plan_build_buffer(b, PLAN_ACTIVATIONS, PLAN_U8, count, "%.48s.which", c->name);
	pool_op(b, c, PLAN_OP_MAXPOOL, c->y, c->pooled, c->pooled_from);
}

/* dy is the gradient of what follows (the pool's output, or y); returns the gradient of x. */
static int conv_backward(struct plan_build *b, const struct cnn_conv *c, int dy, bool want_dx)
{
	const struct plan_conv *conv = &c->conv;
	int64_t out_count = plan_conv_count(b, conv);
	if (c->pooled >= 0) {
		int full = plan_build_activation(b, out_count, "d.%.48s", c->name);
		pool_op(b, c, PLAN_OP_MAXPOOL_BACKWARD, dy, c->pooled_from, full);
		dy = full;
	}
	plan_build_op(
		b, PLAN_OP_RELU_BACKWARD, c->name, PLAN_OPERANDS(c->y, dy, dy), PLAN_DIMS(out_count), 0);
	plan_conv_backward_weight(b, conv, c->x, dy);
	if (!want_dx)
		return -1;
	int dx = plan_build_activation(
		b, plan_build_count(b, conv->n * conv->h, conv->w, conv->in), "d.%.48s.in", c->name);
	plan_conv_backward_data(b, conv, dy, dx, false);
	return dx;
}

static bool shape_ok(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	if (m->channel_count < 1 || m->blocks_per_stage < 1 || m->blocks_per_stage > CNN_CONVS_MAX ||
		m->blocks_per_stage * m->channel_count > CNN_CONVS_MAX) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.channels",
			"a cnn needs 1 to %d convolutions", CNN_CONVS_MAX);
		return false;
	}
	if (p->in_height >> m->channel_count < 1 || p->in_width >> m->channel_count < 1) {
		plan_build_fail(b, ERR_INVALID_VALUE, "$.model.config.channels",
			"%d stages halve a %lldx%lld image to nothing", m->channel_count,
			(long long)p->in_height, (long long)p->in_width);
		return false;
	}
	return true;
}

void plan_family_cnn(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	if (m->block != SPEC_BLOCK_PLAIN) {
		plan_family_resnet(b);
		return;
	}
	if (!shape_ok(b))
		return;
	int64_t pixels =
		plan_build_count(b, p->micro_batch * p->in_height, p->in_width, p->in_channels);
	plan_build_input(b, PLAN_INPUT, PLAN_F32, pixels);
	struct cnn_conv conv[CNN_CONVS_MAX];
	int count = 0;
	int x = plan_build_cast(b, "input", p->inputs.input, pixels);
	int64_t h = p->in_height, w = p->in_width, channels = p->in_channels;
	for (int s = 0; s < m->channel_count; s++) {
		for (int k = 0; k < m->blocks_per_stage; k++) {
			struct cnn_conv *c = &conv[count++];
			*c = (struct cnn_conv){ .x = x };
			c->conv = (struct plan_conv){ .name = c->name,
				.n = p->micro_batch,
				.h = h,
				.w = w,
				.in = channels,
				.out = m->channels[s],
				.kernel = 3,
				.stride = 1,
				.pad = 1,
				.act = PLAN_ACT_RELU };
			snprintf(c->name, sizeof(c->name), "features.%d.%d", s, k);
			bool pool = k == m->blocks_per_stage - 1;
			conv_forward(b, c, pool);
			x = pool ? c->pooled : c->y;
			channels = m->channels[s];
		}
		h /= 2;
		w /= 2;
	}
	struct plan_head head = { 0 };
	plan_head_forward(b, &head, "classifier", x, h * w * channels);
	plan_build_backward(b);
	int dy = plan_head_backward(b, &head, true);
	for (int i = count - 1; i >= 0; i--)
		dy = conv_backward(b, &conv[i], dy, i > 0);
}
