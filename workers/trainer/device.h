/* SPDX-License-Identifier: Apache-2.0
 * What a trainer computes on. Used by the commands and by session.c, on one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/plan/plan_op.h"

#include <stdbool.h>

struct backend;

enum device_kind {
	DEVICE_AUTO, /* a GPU where there is one that can be used, otherwise the processor */
	DEVICE_CPU,
	DEVICE_CUDA, /* the first that CUDA_VISIBLE_DEVICES shows */
};

/* For usage texts and errors of options. */
#define DEVICE_WORDS "auto, cpu or cuda"

/* INVALID_VALUE naming param. NULL is AUTO. */
int device_parse(
	const char *word, const char *param, enum device_kind *ret, struct err *err) must_check;
/* Of the ranks that one machine starts by itself, each takes a device of its own: the rank-th of
 * those that this process may see. Before anything else of CUDA, in the rank's own process. */
int device_take(enum device_kind kind, int rank, struct err *err) must_check;
/* Decides AUTO. UNAVAILABLE says why there is no GPU where one was asked for. */
int device_choose(enum device_kind kind, enum device_kind *ret, struct err *err) must_check;
/* Of a kind that is decided: its operations for activations of this type, and whether groups of
 * ranks are in its memory (struct mesh_options). */
const struct backend *device_backend(enum device_kind kind, enum plan_type type);
bool device_is_apart(enum device_kind kind);
