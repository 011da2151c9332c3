/* SPDX-License-Identifier: Apache-2.0
 * Reading ahead changes when samples are read, never which: every micro-batch equals direct reads,
 * whatever the number of threads and wherever the stream jumps. */
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/loader.h"
#include "workers/engine/rng.h"

#include <pthread.h>

static struct err err;

/* Large enough that reading one takes longer than all else: threads meet in the middle of it. */
enum { HEIGHT = 150, WIDTH = 160, FEATURES = HEIGHT * WIDTH, IMAGES = 37, MICRO = 5 };

struct bench {
	struct job_spec spec;
	struct data *data;
	float (*input)[MICRO * FEATURES]; /* of each slot */
	int32_t labels[LOADER_DEPTH][MICRO];
	struct loader_options o;
};

static void bench_open(struct bench *b, int threads)
{
	memset(b, 0, sizeof(*b));
	b->input = malloc(LOADER_DEPTH * sizeof(*b->input));
	b->spec = fixture_spec(SPEC_CNN);
	b->spec.model.in_height = HEIGHT;
	b->spec.model.in_width = WIDTH;
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

static void bench_close(struct bench *b)
{
	data_close(b->data);
	free(b->input);
}

struct expected {
	int64_t position;
	float input[MICRO * FEATURES];
	int32_t labels[MICRO];
};

static void expect(const struct bench *b, int64_t position, struct expected *ret)
{
	struct data_batch want = { .samples = MICRO, .input = ret->input, .labels = ret->labels };
	ret->position = position;
	for (int64_t i = 0; i < MICRO; i++) {
		int64_t at = position + i;
		int64_t index = data_sample_at(IMAGES, b->o.seed, b->o.shuffle, at);
		data_read(b->data, index, i, rng_key(b->o.seed, RNG_AUGMENT, (uint64_t)at), &want);
	}
}

/* So many samples, from the last on: it may be the one that somebody still reads. */
static void check(const struct data_batch *got, const struct expected *want, int samples)
{
	for (int i = MICRO - 1; i >= MICRO - samples; i--)
		assert_memory_equal((const float *)got->input + i * FEATURES, want->input + i * FEATURES,
			FEATURES * sizeof(float));
	assert_memory_equal(got->labels, want->labels, sizeof(want->labels));
}

static void check_take(const struct bench *b, struct loader *l, int64_t position)
{
	static struct expected want;
	int64_t wait_us;
	expect(b, position, &want);
	check(loader_take(l, position, &wait_us), &want, MICRO);
}

/* What is expected is made before, so that each batch is looked at while others may still read, and
 * the next is taken while it, or what followed the one before, is being read. */
static void test_equals_direct_reads(void **state)
{
	enum { STEPS = 150, ROUNDS = 6 };
	struct expected *want = malloc(STEPS * sizeof(*want));
	uint64_t random = 77;
	int64_t position = 0;
	for (int threads = 0; threads <= 3; threads++) {
		struct bench b;
		bench_open(&b, threads);
		for (int step = 0; step < STEPS && threads == 0; step++) {
			expect(&b, position, &want[step]);
			double choice = fixture_random(&random);
			/* On, back to a checkpoint or far ahead, a micro-batch left out, or the same again. */
			if (choice > 0)
				position += MICRO;
			else if (choice > -0.5)
				position = (int64_t)(500 * (1 + fixture_random(&random)));
			else if (choice > -0.8)
				position += 2 * MICRO;
		}
		struct loader *l = NULL;
		int64_t waited = 0;
		assert_ok(loader_open(b.data, &b.o, &l, &err));
		for (int step = 0; step < ROUNDS * STEPS; step++) {
			const struct expected *x = &want[step % STEPS];
			int64_t wait_us = -1;
			const struct data_batch *got = loader_take(l, x->position, &wait_us);
			check(got, x, (int)(2.999 * (1 + fixture_random(&random))));
			assert_true(wait_us >= 0);
			waited += wait_us;
		}
		assert_true(threads > 0 || waited > 0);
		loader_close(l);
		bench_close(&b);
	}
	free(want);
}

/* A glance without the lock, which ThreadSanitizer need not see. */
static __attribute__((noinline, no_sanitize("thread"))) bool is_there(
	const volatile float *at, const float *want)
{
	for (int i = 0; i < FEATURES; i++)
		if (at[i] != want[i])
			return false;
	return true;
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
	static float last[FEATURES];
	int32_t label;
	struct data_batch one = { .samples = 1, .input = last, .labels = &label };
	int64_t at = 2 * MICRO - 1;
	data_read(b.data, data_sample_at(IMAGES, b.o.seed, true, at), 0,
		rng_key(b.o.seed, RNG_AUGMENT, (uint64_t)at), &one);
	bool filled = false;
	for (int tries = 0; tries < 5000 && !filled; tries++) {
		usleep(1000);
		filled = is_there(b.input[other] + (MICRO - 1) * FEATURES, last);
	}
	assert_true(filled);
	const struct data_batch *second = loader_take(l, MICRO, &wait_us);
	assert_ptr_equal(second->input, want.input);
	check_take(&b, l, MICRO);
	loader_close(l);
	bench_close(&b);
}

static int prepared;
static pthread_mutex_t prepared_lock = PTHREAD_MUTEX_INITIALIZER;
static void prepare(void)
{
	pthread_mutex_lock(&prepared_lock);
	prepared++;
	pthread_mutex_unlock(&prepared_lock);
}

static void await_prepared(int count)
{
	bool all = false;
	for (int tries = 0; tries < 5000 && !all; tries++) {
		usleep(1000);
		pthread_mutex_lock(&prepared_lock);
		all = prepared == count;
		pthread_mutex_unlock(&prepared_lock);
	}
	assert_true(all);
}

static void test_open_and_close(void **state)
{
	struct bench b;
	bench_open(&b, 3);
	b.o.prepare_thread = prepare;
	struct loader *l = NULL;
	/* Closed while others read, before anything was taken, and when all have nothing to do. */
	for (int i = 0; i < 50; i++) {
		assert_ok(loader_open(b.data, &b.o, &l, &err));
		if (i % 2)
			check_take(&b, l, 5 * i);
		else if (i % 4)
			await_prepared(3 * (i + 1));
		loader_close(l);
	}
	assert_int_equal(prepared, 150);
	loader_close(NULL);
	b.o.threads = 1000;
	assert_int_equal(loader_open(b.data, &b.o, &l, &err), ERR_INVALID_VALUE);
	b.o.threads = 1;
	b.o.micro_batch = 0;
	assert_int_equal(loader_open(b.data, &b.o, &l, &err), ERR_INVALID_VALUE);
	bench_close(&b);
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
