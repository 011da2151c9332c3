/* SPDX-License-Identifier: Apache-2.0
 * Reading ahead changes when samples are read, never which: every micro-batch equals direct reads,
 * whatever the number of threads and wherever the stream jumps. */
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/loader.h"
#include "workers/engine/rng.h"

#include <pthread.h>

static struct err err;

enum { HEIGHT = 10, WIDTH = 9, FEATURES = HEIGHT * WIDTH, IMAGES = 37, MICRO = 5 };

struct bench {
	struct job_spec spec;
	struct data *data;
	float input[LOADER_DEPTH][MICRO * FEATURES];
	int32_t labels[LOADER_DEPTH][MICRO];
	struct loader_options o;
};

static void bench_open(struct bench *b, int threads)
{
	memset(b, 0, sizeof(*b));
	b->spec = fixture_spec(SPEC_CNN);
	b->spec.data.flip = true;
	b->spec.data.crop_padding = 2;
	struct fixture_file f[2];
	fixture_images(IMAGES, HEIGHT, WIDTH, 5, &f[0], &f[1]);
	struct data_file files[2] = { { f[0].path, "images" }, { f[1].path, "labels" } };
	assert_ok(data_open(&b->spec, files, 2, "training_file", NULL, &b->data, &err));
	for (int i = 0; i < 2; i++)
		unlink(f[i].path);
	b->o = (struct loader_options){ .micro_batch = MICRO, .seed = 9, .shuffle = true };
	b->o.threads = threads;
	for (int i = 0; i < LOADER_DEPTH; i++)
		b->o.slot[i] =
			(struct data_batch){ .samples = MICRO, .input = b->input[i], .labels = b->labels[i] };
}

static void check(const struct bench *b, const struct data_batch *got, int64_t position)
{
	float input[MICRO * FEATURES];
	int32_t labels[MICRO];
	struct data_batch want = { .samples = MICRO, .input = input, .labels = labels };
	for (int64_t i = 0; i < MICRO; i++) {
		int64_t at = position + i;
		int64_t index = data_sample_at(IMAGES, b->o.seed, b->o.shuffle, at);
		data_read(b->data, index, i, rng_key(b->o.seed, RNG_AUGMENT, (uint64_t)at), &want);
	}
	assert_memory_equal(got->input, input, sizeof(input));
	assert_memory_equal(got->labels, labels, sizeof(labels));
}

static void test_equals_direct_reads(void **state)
{
	for (int threads = 0; threads <= 3; threads++) {
		struct bench b;
		bench_open(&b, threads);
		struct loader *l = NULL;
		assert_ok(loader_open(b.data, &b.o, &l, &err));
		uint64_t random = 77;
		int64_t position = 0;
		for (int step = 0; step < 400; step++) {
			int64_t wait_us = -1;
			const struct data_batch *got = loader_take(l, position, &wait_us);
			check(&b, got, position);
			assert_true(wait_us >= 0);
			double choice = fixture_random(&random);
			/* On, mostly; sometimes the same again, back to a checkpoint, or far ahead. */
			if (choice > -0.5)
				position += MICRO;
			else if (choice > -0.7)
				position = (int64_t)(500 * (1 + fixture_random(&random)));
			else if (choice > -0.85)
				position += 2 * MICRO;
		}
		loader_close(l);
		data_close(b.data);
	}
}

/* While the caller works, what follows is read; the wait that it is told of shrinks to nothing. */
static void test_reads_ahead(void **state)
{
	struct bench b;
	bench_open(&b, 1);
	struct loader *l = NULL;
	assert_ok(loader_open(b.data, &b.o, &l, &err));
	int64_t wait_us;
	const struct data_batch *first = loader_take(l, 0, &wait_us);
	/* The other slot fills without being asked for. */
	int other = first == &b.o.slot[0] || first->input == b.input[0] ? 1 : 0;
	struct data_batch want = {
		.samples = MICRO, .input = b.input[other], .labels = b.labels[other]
	};
	float last[FEATURES];
	int32_t label;
	struct data_batch one = { .samples = 1, .input = last, .labels = &label };
	int64_t at = 2 * MICRO - 1;
	data_read(b.data, data_sample_at(IMAGES, b.o.seed, true, at), 0,
		rng_key(b.o.seed, RNG_AUGMENT, (uint64_t)at), &one);
	bool filled = false;
	for (int tries = 0; tries < 5000 && !filled; tries++) {
		usleep(1000);
		filled = memcmp(b.input[other] + (MICRO - 1) * FEATURES, last, sizeof(last)) == 0;
	}
	assert_true(filled);
	const struct data_batch *second = loader_take(l, MICRO, &wait_us);
	assert_ptr_equal(second->input, want.input);
	check(&b, second, MICRO);
	loader_close(l);
	data_close(b.data);
}

static int prepared;
static pthread_mutex_t prepared_lock = PTHREAD_MUTEX_INITIALIZER;
static void prepare(void)
{
	pthread_mutex_lock(&prepared_lock);
	prepared++;
	pthread_mutex_unlock(&prepared_lock);
}

static void test_open_and_close(void **state)
{
	struct bench b;
	bench_open(&b, 3);
	b.o.prepare_thread = prepare;
	struct loader *l = NULL;
	/* Closed while others read, and before anything was taken. */
	for (int i = 0; i < 50; i++) {
		assert_ok(loader_open(b.data, &b.o, &l, &err));
		int64_t wait_us;
		if (i % 2)
			check(&b, loader_take(l, 5 * i, &wait_us), 5 * i);
		loader_close(l);
	}
	assert_int_equal(prepared, 150);
	loader_close(NULL);
	b.o.threads = 1000;
	assert_int_equal(loader_open(b.data, &b.o, &l, &err), ERR_INVALID_VALUE);
	b.o.threads = 1;
	b.o.micro_batch = 0;
	assert_int_equal(loader_open(b.data, &b.o, &l, &err), ERR_INVALID_VALUE);
	data_close(b.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equals_direct_reads),
		cmocka_unit_test(test_reads_ahead),
		cmocka_unit_test(test_open_and_close),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
