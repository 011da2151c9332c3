/* SPDX-License-Identifier: Apache-2.0
 * What the files of the cost model share: the model as kernels and bytes of one layer. Included by
 * scale_*.c and their tests only. */
#pragma once

#include "workers/plan/scale.h"

/* What is not faster by half a percent is noise of the model: the simpler mesh stays. */
#define SCALE_BETTER 0.995

enum {
	SCALE_KERNELS_MAX = 96,
	SCALE_CHECKPOINTINGS = 3,
};

enum scale_work {
	SCALE_PRODUCT,
	SCALE_ATTENTION,
	SCALE_ATTENTION_BACKWARD,
	SCALE_STREAM, /* memory only: norms, activations, embeddings, losses */
};

/* One operation of the plan for one sample, whole (t = 1). */
struct scale_kernel {
	enum scale_work work;
	bool recompute;
	double flops;
	double sample_bytes;    /* grow with the micro-batch */
	double fixed_bytes;     /* weights, their gradients */
	double sample_launches; /* calls that grow with the micro-batch; 0 = one call a micro-batch */
};

/* Where in the model an operation or a tensor belongs. A family without layers is all SCALE_LAST.
 */
enum scale_part { SCALE_FIRST, SCALE_LAYER, SCALE_LAST, SCALE_PART_COUNT };
enum scale_pass { SCALE_FORWARD, SCALE_BACKWARD, SCALE_PASS_COUNT };

struct scale_kernels {
	struct scale_kernel item[SCALE_KERNELS_MAX];
	int count;
};

/* Bytes and elements of the parameters of a part (of one layer). */
struct scale_state {
	double weights, gradients, optimizer; /* bytes */
	double trained, all;                  /* elements */
};

struct scale_way { /* of checkpointing */
	struct scale_kernels kernels[SCALE_PART_COUNT][SCALE_PASS_COUNT];
	/* Activations of one sample that are kept from the forward pass for the backward pass. */
	double kept_layer, kept_rest;
	double working_sample, working_fixed; /* beyond those, at the peak */
};

struct scale_model {
	enum spec_family family;
	enum scale_precision precision;
	double weight_bytes; /* of one element that products read */
	int64_t layers, heads, kv_heads, width, sequence, batch;
	int64_t parameters;
	bool tied; /* the head is the embedding: a pipeline has it twice */
	struct scale_state state[SCALE_PART_COUNT];
	double sparse_bytes; /* DLRM: gradients of looked-up rows, a sample */
	double update_bytes; /* that the optimizer reads and writes, a trained element */
	double flops_token;  /* PLAN_FLOP_CONVENTION */
	double source_flops_token;
	double tokens_sample;
	struct scale_way way[SCALE_CHECKPOINTINGS];
};

/* Seconds of one micro-batch in a part, t ways split. */
struct scale_seconds {
	double forward, backward, recompute; /* recompute is part of backward */
};
struct scale_seconds scale_compute_part(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, enum scale_part part);

/* How the layers lie on stages. */
struct scale_split {
	int64_t busiest, most; /* layers of the busiest stage; of the one with the most */
	bool first, last;      /* the busiest also has the embedding, the head */
};
struct scale_split scale_compute_split(
	int64_t layers, int pipeline, double layer_s, double first_s, double last_s);

/* The busiest stage; of layers, the most that a stage has. */
struct scale_stages {
	int64_t layers;
	bool first, last;
	struct scale_seconds busiest;
};
void scale_compute_stages(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct scale_stages *ret);

/* Micro-batches of a step and data rank. */
int64_t scale_micro_steps(const struct scale_model *m, const struct scale_mesh *mesh);
void scale_memory_estimate(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, struct scale_cost *cost);
/* Fills the collectives and the waits of tensor, data and pipeline; contention. */
void scale_collectives(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, const struct scale_stages *s, struct scale_cost *cost);
/* 0, or INVALID_VALUE with the reason. */
int scale_mesh_check(const struct scale_model *m, const struct scale_cluster *c,
	const struct scale_mesh *mesh, struct err *err) must_check;
/* Parameters of the busiest stage, one rank's share of the tensor axis. */
struct scale_state scale_stage_state(
	const struct scale_model *m, const struct scale_mesh *mesh, const struct scale_stages *s);
void scale_reason_lost(
	const struct scale_cluster *c, const struct scale_choice *best, struct scale_choice *loser);
void scale_reason_won(const struct scale_cluster *c, struct scale_choice *best);
