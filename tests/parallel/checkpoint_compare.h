/* SPDX-License-Identifier: Apache-2.0
 * What tests of checkpoints of several ranks hold against each other: states, losses and models of
 * two runs; and their folders. */
#pragma once

#include "tests/parallel/checkpoint_fixture.h"

#include "workers/trainer/manifest.h"

enum { SAVERS = 4, BEFORE = 3, AFTER = 4 };

static struct life *first, *second;
static char dir[64];
static struct engine_case cases[CASES_MAX];
static int case_count;

static inline const char *path_of(const char *name)
{
	static char paths[16][FILE_PATH_MAX];
	static int next;
	char *path = paths[next++ % 16];
	snprintf(path, FILE_PATH_MAX, "%s/%s", dir, name);
	return path;
}

static inline const char *fresh_folder(const char *name)
{
	struct err err = { 0 };
	const char *path = path_of(name);
	assert_ok(file_remove_tree(path, &err));
	assert_ok(file_mkdir(path, &err));
	return path;
}

static inline struct job_spec spec_of(const char *name)
{
	for (int i = 0; i < case_count; i++)
		if (strcmp(cases[i].name, name) == 0)
			return cases[i].spec;
	fail_msg("there is no case %s", name);
	return cases[0].spec;
}

static inline void same_state(
	const char *what, const struct life_state *a, const struct life_state *b)
{
	assert_int_equal(a->count, b->count);
	assert_int_equal(a->at[a->count], b->at[b->count]);
	assert_int_equal(a->written, a->total);
	assert_int_equal(b->written, b->total);
	assert_int_equal(a->total, b->total);
	for (int i = 0; i < a->count; i++) {
		assert_string_equal(a->name[i], b->name[i]);
		if (memcmp(a->bytes + a->at[i], b->bytes + b->at[i], (size_t)(a->at[i + 1] - a->at[i])) !=
			0)
			fail_msg("%s: %s is not what was saved", what, a->name[i]);
	}
	assert_memory_equal(&a->engine, &b->engine, sizeof(a->engine));
}

static inline void same_losses(
	const char *what, const struct life *a, const struct life *b, double bound)
{
	for (int i = 0; i < AFTER; i++) {
		double x = a->loss[0][i], y = b->loss[0][i];
		if (fabs(x - y) > bound * fabs(x))
			fail_msg("%s: loss %d is %.9g, and went on as %.9g", what, i, y, x);
	}
}

/* All but the figures of the run, in which the plan's memory is another. */
static inline void same_model(const char *what, const char *a, const char *b)
{
	struct manifest x, y;
	struct err err = { 0 };
	assert_ok(manifest_verify(a, &x, &err));
	assert_ok(manifest_verify(b, &y, &err));
	assert_int_equal(x.count, y.count);
	for (int i = 0; i < x.count; i++) {
		const struct manifest_file *f = manifest_find(&y, x.files[i].name);
		if (f == NULL)
			fail_msg("%s: there is no %s", what, x.files[i].name);
		if (strcmp(f->name, "trainyard.json") != 0 && strcmp(f->sha256, x.files[i].sha256) != 0)
			fail_msg("%s: %s is not one rank's", what, f->name);
	}
}

/* Sets up what the above is about, runs the tests, forgets it. */
static inline int life_main(
	const char *group, const struct CMUnitTest *tests, size_t count, int argc, char **argv)
{
	struct err err = { 0 };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	snprintf(dir, sizeof(dir), "/tmp/trainyard-checkpoints-XXXXXX");
	if (mkdtemp(dir) == NULL)
		return 1;
	int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
	return file_remove_tree(dir, &err) < 0 ? 1 : failed;
}

static inline void life_start(void)
{
	first = fixture_shared(sizeof(*first));
	second = fixture_shared(sizeof(*second));
	case_count = case_families(cases);
}
