/* SPDX-License-Identifier: Apache-2.0
 * Models and meshes for the tests of the cost model. */
#pragma once

#include "tests/unit/workers/plan/plan_fixture.h"
#include "workers/plan/scale_private.h"

static inline struct job_spec scale_fixture_spec(const char *name, int64_t batch)
{
	struct job_spec s;
	if (strcmp(name, "124m") == 0)
		s = fixture_gpt2(12, 12, 768, 1024, 50257);
	else if (strcmp(name, "1.5b") == 0)
		s = fixture_gpt2(48, 25, 1600, 1024, 50257);
	else if (strcmp(name, "7b") == 0)
		s = fixture_llama(32, 32, 32, 4096, 11008, 4096, 32000);
	else if (strcmp(name, "13b") == 0)
		s = fixture_llama(40, 40, 40, 5120, 13824, 4096, 32000);
	else if (strcmp(name, "70b") == 0)
		s = fixture_llama(80, 64, 8, 8192, 28672, 4096, 32000);
	else
		s = fixture_llama(126, 128, 8, 16384, 53248, 8192, 128256);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = batch;
	return s;
}

static inline struct scale_model *scale_fixture_model(const struct job_spec *s)
{
	struct scale_model *m = NULL;
	if (scale_model_create(s, &m, &err))
		fail_msg("%s (%s)", err.message, err.param);
	return m;
}

static inline struct scale_mesh scale_fixture_mesh(int data, int tensor, int pipeline)
{
	return (struct scale_mesh){
		.data = data, .tensor = tensor, .pipeline = pipeline, .interleave = 1, .micro_batch = 1
	};
}

static inline struct scale_cost scale_fixture_cost(
	const struct scale_model *m, const struct scale_cluster *c, const struct scale_mesh *mesh)
{
	struct scale_cost cost;
	if (scale_estimate(m, c, mesh, &cost, &err))
		fail_msg("%s", err.message);
	return cost;
}

static inline const struct scale_collective *scale_fixture_line(
	const struct scale_cost *c, const char *name)
{
	for (int i = 0; i < c->collective_count; i++)
		if (strcmp(c->collective[i].name, name) == 0)
			return &c->collective[i];
	return NULL;
}

#define assert_near(a, b, relative)                                        \
	do {                                                                   \
		double near_a = (a), near_b = (b);                                 \
		if (!fixture_near(near_a, near_b, relative))                       \
			fail_msg("%s is %.9g, not %.9g (%s)", #a, near_a, near_b, #b); \
	} while (0)
