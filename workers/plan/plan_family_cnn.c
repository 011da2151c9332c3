/* SPDX-License-Identifier: Apache-2.0
 * The cnn family: stages of 3x3 convolutions with bias and ReLU, each stage ended by a 2x2 max
 * pool, then dense layers. Activations are channels last; parameters are features.S.B.weight [out,
 * in, 3, 3] and classifier.N.weight [out, in] over the flattened (height, width, channel). */
#include "workers/plan/plan_private.h"

#include <math.h>
#include <stdio.h>

enum { CNN_CONVS_MAX = 8 * 16 };

struct cnn_conv {
	char name[PLAN_NAME_MAX];
	int weight, bias;
	int x, y;        /* buffers */
	int pooled;      /* output of the pool that follows, -1 = none */
	int pooled_from; /* which maximum, one byte each */
	int64_t h, w, in, out;
};

/* Packed weights in blocks of 16 channels, a copy for the result, and reduction space. */
static int64_t conv_workspace(const struct cnn_conv *c)
{
	int64_t in = (c->in + 15) / 16 * 16;
	int64_t out = (c->out + 15) / 16 * 16;
	int64_t packed = in * out * 9 * 4;
	int64_t reduce = packed * 4 < 8 * 1024 * 1024 ? packed * 4 : 8 * 1024 * 1024;
	return packed + reduce + 256 * 1024;
}

static void conv_forward(struct plan_build *b, struct cnn_conv *c, bool pool)
{
	struct plan *p = b->p;
	int64_t n = p->micro_batch;
	c->weight = plan_param_add(b,
		(struct plan_param_def){ PLAN_INIT_NORMAL, sqrt(2.0 / (9.0 * (double)c->in)), 4,
			{ c->out, c->in, 3, 3 }, PLAN_TRAINED },
		"%.48s.weight", c->name);
	c->bias =
		plan_param_add(b, (struct plan_param_def){ PLAN_INIT_ZERO, 0, 1, { c->out }, PLAN_TRAINED },
			"%.48s.bias", c->name);
	c->y = plan_build_activation(b, plan_build_count(b, n * c->h, c->w, c->out), "%s", c->name);
	struct plan_op *op = plan_build_op(b, PLAN_OP_CONV, c->name,
		PLAN_OPERANDS(c->x, plan_param_weight(b, c->weight), plan_param_weight(b, c->bias), c->y),
		PLAN_DIMS(n, c->h, c->w, c->in, c->out, 3, 1, 1), conv_workspace(c));
	op->act = PLAN_ACT_RELU;
	c->pooled = -1;
	if (!pool)
		return;
	int64_t count = plan_build_count(b, n * (c->h / 2), c->w / 2, c->out);
	c->pooled = plan_build_activation(b, count, "%.48s.pool", c->name);
	c->pooled_from = plan_build_buffer(b, PLAN_ACTIVATIONS, PLAN_U8, count, "%.48s.which", c->name);
	plan_build_op(b, PLAN_OP_MAXPOOL, c->name, PLAN_OPERANDS(c->y, c->pooled, c->pooled_from),
		PLAN_DIMS(n, c->h, c->w, c->out, 2, 2, 0), 0);
}

/* dy is the gradient of what follows (the pool's output, or y); returns the gradient of x. */
static int conv_backward(struct plan_build *b, const struct cnn_conv *c, int dy, bool want_dx)
{
	struct plan *p = b->p;
	int64_t n = p->micro_batch;
	int64_t out_count = plan_build_count(b, n * c->h, c->w, c->out);
	if (c->pooled >= 0) {
		int full = plan_build_activation(b, out_count, "d.%.48s", c->name);
		plan_build_op(b, PLAN_OP_MAXPOOL_BACKWARD, c->name, PLAN_OPERANDS(dy, c->pooled_from, full),
			PLAN_DIMS(n, c->h, c->w, c->out, 2, 2, 0), 0);
		dy = full;
	}
	plan_build_op(
		b, PLAN_OP_RELU_BACKWARD, c->name, PLAN_OPERANDS(c->y, dy, dy), PLAN_DIMS(out_count), 0);
	plan_build_op(b, PLAN_OP_CONV_BACKWARD_WEIGHT, c->name,
		PLAN_OPERANDS(c->x, dy, plan_param_gradient(b, c->weight), plan_param_gradient(b, c->bias)),
		PLAN_DIMS(n, c->h, c->w, c->in, c->out, 3, 1, 1), conv_workspace(c));
	if (!want_dx)
		return -1;
	int dx =
		plan_build_activation(b, plan_build_count(b, n * c->h, c->w, c->in), "d.%.48s.in", c->name);
	plan_build_op(b, PLAN_OP_CONV_BACKWARD_DATA, c->name,
		PLAN_OPERANDS(dy, plan_param_weight(b, c->weight), dx),
		PLAN_DIMS(n, c->h, c->w, c->in, c->out, 3, 1, 1), conv_workspace(c));
	return dx;
}

static bool shape_ok(struct plan_build *b)
{
	const struct spec_model *m = &b->spec->model;
	struct plan *p = b->p;
	if (m->channel_count < 1 || m->blocks_per_stage < 1 ||
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
			*c = (struct cnn_conv){ .x = x, .h = h, .w = w, .in = channels, .out = m->channels[s] };
			snprintf(c->name, sizeof(c->name), "features.%d.%d", s, k);
			bool pool = k == m->blocks_per_stage - 1;
			conv_forward(b, c, pool);
			x = pool ? c->pooled : c->y;
			channels = c->out;
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
