/* SPDX-License-Identifier: Apache-2.0
 * What a spec leaves open (`parallelism: "auto"`), settled by the cost model's search among the
 * meshes that the plan accepts and the device's memory holds. Called by the server's create handler
 * and by the trainer alone; an attempt's spec is settled already. Pure. */
#pragma once

#include "workers/plan/scale.h"

enum { SCALE_CHOOSE_REASON_MAX = 384 };

struct scale_chosen {
	struct spec_parallel parallel;
	char reason[SCALE_CHOOSE_REASON_MAX]; /* in words: why it leads, and what came next */
};

/* Writes the mesh, and the micro-batch and checkpointing where they are open, into the spec. A
 * model whose shape only its data tells is shared by data. Errors: of plan_compile, where it
 * accepts no mesh, that of sharing by data alone; PLAN_TOO_LARGE when none fits: spec and ret then
 * have the mesh that needs least. open->mesh must be set. */
int scale_choose(struct job_spec *spec, const struct spec_open *open, const struct scale_cluster *c,
	struct scale_chosen *ret, struct err *err) must_check;
