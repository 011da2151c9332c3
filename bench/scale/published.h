/* SPDX-License-Identifier: Apache-2.0
 * Training runs whose speed others have published, with their conditions: what the cost model is
 * held against. Read by bench_scale.c. */
#pragma once

#include "workers/plan/scale.h"

enum published_unit {
	PUBLISHED_TOKENS, /* a second and device */
	PUBLISHED_TFLOPS, /* a second and device, 6 P + 12 L C T a token */
};

/* micro_batch 0: not published; the largest that fits is taken. */
struct published {
	const char *source, *name;
	struct {
		enum spec_family family;
		int64_t layers, width, heads, kv_heads, inner, vocabulary, sequence;
	} model;
	enum scale_kind device;
	int devices;
	struct scale_mesh mesh;
	int64_t batch;
	enum published_unit unit;
	double value;
	/* What is known of the engine: share of the peak of its attention (0 = the device's best),
	 * bytes of a gradient on the wire (0 = 4), fp8 products, tensor parallel overlapped. */
	double attention_share, gradient_bytes;
	bool fp8, tensor_overlap;
	bool fitted; /* the run that a constant was fitted to */
	const char *note;
};

extern const struct published published[];
extern const int published_count;
