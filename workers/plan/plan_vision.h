/* SPDX-License-Identifier: Apache-2.0
 * What the families of images and of click-through share beyond plan_private.h: convolutions, the
 * end of a classifier, their scratch. Nobody else includes this. */
#pragma once

#include "workers/plan/plan_private.h"

/* A square convolution of [n, h, w, in], channels last. */
struct plan_conv {
	const char *name;
	int weight, bias; /* parameters; bias -1 = none */
	int64_t n, h, w, in, out;
	int64_t kernel, stride, pad;
	enum plan_activation act; /* forward */
};
int64_t plan_conv_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad);
/* Elements of the output. */
int64_t plan_conv_count(struct plan_build *b, const struct plan_conv *c);
void plan_conv_forward(struct plan_build *b, const struct plan_conv *c, int x, int y);
void plan_conv_backward_weight(struct plan_build *b, const struct plan_conv *c, int x, int dy);
void plan_conv_backward_data(
	struct plan_build *b, const struct plan_conv *c, int dy, int dx, bool accumulate);

/* Bytes of scratch: what cpu/ops/{conv,winograd,batchnorm}.c use; their tests give just that. */
int64_t plan_workspace_conv(const struct plan_conv *c);
int64_t plan_workspace_batchnorm(int64_t c);

/* The parameters of a dense layer NAME.weight [n, k] and NAME.bias over the plan's rows. */
void plan_dense_layer(
	struct plan_build *b, struct plan_dense *d, const char *name, int64_t k, int64_t n, bool relu);

/* The loss of the plan's task; y becomes its own gradient and the plan's output. */
void plan_head_loss(struct plan_build *b, int y);

/* The cnn family's residual networks; called by plan_family_cnn. */
void plan_family_resnet(struct plan_build *b);
