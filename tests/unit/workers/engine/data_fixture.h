/* SPDX-License-Identifier: Apache-2.0
 * What the tests of data share: seeded numbers, temporary files, small specs. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "workers/engine/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURE_FN static __attribute__((unused))

/* Uniform in [-1, 1). */
FIXTURE_FN double fixture_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(int32_t)(*state >> 32) / 2147483648.0;
}

#define assert_ok(call)                                                            \
	do {                                                                           \
		int fixture_rc = (call);                                                   \
		if (fixture_rc)                                                            \
			fail_msg("%s: %d %s (%s)", #call, fixture_rc, err.message, err.param); \
	} while (0)

/* The message of the test's `err` has each of the words. */
#define assert_says(...)                                                       \
	do {                                                                       \
		const char *words[] = { __VA_ARGS__ };                                 \
		for (size_t w = 0; w < ARRAY_LEN(words); w++)                          \
			if (!strstr(err.message, words[w]))                                \
				fail_msg("\"%s\" does not say \"%s\"", err.message, words[w]); \
	} while (0)

/* A temporary file that the test unlinks. */
struct fixture_file {
	char path[64];
};

FIXTURE_FN struct fixture_file fixture_write(const void *bytes, size_t count)
{
	struct fixture_file f = { "/tmp/engine_test_XXXXXX" };
	int fd = mkstemp(f.path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, count), count);
	close(fd);
	return f;
}

FIXTURE_FN void fixture_put32(unsigned char *p, uint32_t v)
{
	p[0] = (unsigned char)(v >> 24);
	p[1] = (unsigned char)(v >> 16);
	p[2] = (unsigned char)(v >> 8);
	p[3] = (unsigned char)v;
}

/* n images of h x w with pixels that depend on the label, and the labels. */
FIXTURE_FN void fixture_images(
	int n, int h, int w, int classes, struct fixture_file *images, struct fixture_file *labels)
{
	size_t size = 16 + (size_t)n * (size_t)(h * w);
	unsigned char *x = calloc(1, size), *y = calloc(1, 8 + (size_t)n);
	x[2] = y[2] = 8;
	x[3] = 3;
	y[3] = 1;
	fixture_put32(x + 4, (uint32_t)n);
	fixture_put32(x + 8, (uint32_t)h);
	fixture_put32(x + 12, (uint32_t)w);
	fixture_put32(y + 4, (uint32_t)n);
	uint64_t state = 7;
	for (int i = 0; i < n; i++) {
		int label = i % classes;
		y[8 + i] = (unsigned char)label;
		for (int k = 0; k < h * w; k++)
			x[16 + i * h * w + k] = (unsigned char)(100.0 * (1 + fixture_random(&state)) +
				(k % classes == label ? 50 : 0));
	}
	*images = fixture_write(x, size);
	*labels = fixture_write(y, 8 + (size_t)n);
	free(x);
	free(y);
}

/* Features [n, width] and targets [n, outputs] as IDX floats. */
FIXTURE_FN void fixture_regression(
	int n, int width, int outputs, struct fixture_file *samples, struct fixture_file *targets)
{
	for (int which = 0; which < 2; which++) {
		int columns = which ? outputs : width;
		size_t size = 12 + 4 * (size_t)(n * columns);
		unsigned char *x = calloc(1, size);
		x[2] = 0x0d;
		x[3] = 2;
		fixture_put32(x + 4, (uint32_t)n);
		fixture_put32(x + 8, (uint32_t)columns);
		uint64_t state = 11 + (uint64_t)which;
		for (int i = 0; i < n * columns; i++) {
			union {
				float f;
				uint32_t u;
			} v = { .f = (float)fixture_random(&state) };
			fixture_put32(x + 12 + 4 * i, v.u);
		}
		*(which ? targets : samples) = fixture_write(x, size);
		free(x);
	}
}

FIXTURE_FN struct fixture_file fixture_text(size_t bytes)
{
	char *text = malloc(bytes);
	uint64_t state = 5;
	for (size_t i = 0; i < bytes; i++)
		text[i] = (char)('a' + (int)(12.9 * (1 + fixture_random(&state))) % 26);
	struct fixture_file f = fixture_write(text, bytes);
	free(text);
	return f;
}

FIXTURE_FN struct job_spec fixture_spec(enum spec_family family)
{
	struct job_spec s = { .seed = 42, .device_count = 1 };
	s.model.family = family;
	s.data.shuffle = true;
	s.hyper = (struct spec_hyper){ .epochs = 2,
		.batch_size = 8,
		.micro_batch_size = 4,
		.optimizer = SPEC_ADAMW,
		.schedule = SPEC_COSINE,
		.learning_rate = 1e-2,
		.min_lr_ratio = 0.1,
		.warmup_steps = 3,
		.weight_decay = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
		.momentum = 0.9,
		.grad_clip = 1.0 };
	if (family == SPEC_GPT2) {
		s.task = SPEC_LANGUAGE_MODEL;
		s.data.format = SPEC_FORMAT_TEXT;
		s.data.tokenizer = SPEC_TOKENIZER_BYTES;
		s.data.sequence_length = 12;
		s.model.n_layer = 2;
		s.model.n_head = 2;
		s.model.n_embd = 20;
		s.model.n_positions = 16;
		s.model.vocab_size = 256;
		return s;
	}
	s.task = family == SPEC_CNN ? SPEC_IMAGE_CLASSIFICATION : SPEC_CLASSIFICATION;
	s.data.format = SPEC_FORMAT_IDX;
	s.model.hidden[0] = 12;
	s.model.hidden_count = 1;
	s.model.in_channels = 1;
	s.model.in_height = 10;
	s.model.in_width = 9;
	s.model.n_classes = 5;
	if (family == SPEC_CNN) {
		s.model.channels[0] = 5;
		s.model.channels[1] = 16;
		s.model.channel_count = 2;
		s.model.blocks_per_stage = 2;
	}
	return s;
}

/* Opens a set of one file with these bytes, which errors call "the file". */
FIXTURE_FN int fixture_data(const struct job_spec *s, const void *bytes, size_t count,
	const struct data_options *options, struct data **ret, struct err *err)
{
	struct fixture_file f = fixture_write(bytes, count);
	struct data_file file = { f.path, "the file" };
	int rc = data_open(s, &file, 1, "training_file", options, ret, err);
	unlink(f.path);
	return rc;
}

/* The same with two files, "the first" and "the second". */
FIXTURE_FN int fixture_data_pair(const struct job_spec *s, const void *a, size_t a_bytes,
	const void *b, size_t b_bytes, struct data **ret, struct err *err)
{
	struct fixture_file f[2] = { fixture_write(a, a_bytes), fixture_write(b, b_bytes) };
	struct data_file files[2] = { { f[0].path, "the first" }, { f[1].path, "the second" } };
	int rc = data_open(s, files, 2, "training_file", NULL, ret, err);
	unlink(f[0].path);
	unlink(f[1].path);
	return rc;
}
