/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/profile.c: the files are traces as Chrome and Perfetto read them, with the
 * plan's names, and the summary adds up. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/profile.h"

#include <math.h>
#include <time.h>

static struct plan_op ops[] = {
	{ .name = "h.0.attn", .kind = PLAN_OP_LINEAR, .phase = PLAN_FORWARD, .flops = 2e6 },
	{ .name = "h.0.act", .kind = PLAN_OP_GELU, .phase = PLAN_FORWARD, .bytes = 1e6 },
	{ .name = "h.0.attn", .kind = PLAN_OP_LINEAR_BACKWARD_DATA, .phase = PLAN_BACKWARD },
	{ .name = "adamw", .kind = PLAN_OP_ADAMW, .phase = PLAN_OPTIMIZE, .bytes = 4e6 },
};
static const struct plan plan = { .ops = ops,
	.op_count = 4,
	.backward_begin = 2,
	.optimize_begin = 3,
	.micro_steps = 2,
	.flops_per_step = 8e6 };

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* One step: each operation 1000 ns, one after the other. */
static void trace_step(struct profile *p, int64_t step)
{
	struct err err = { 0 };
	struct engine_step s = { .step = step, .loss = 1.5, .wait_us = 3 };
	assert_true(profile_begin(p));
	int64_t at = now_ns();
	for (int64_t micro = 0; micro < 2; micro++)
		for (int i = 0; i < 3; i++, at += 1000)
			profile_op(p, &ops[i], micro, at, at + 1000);
	profile_op(p, &ops[3], 1, at, at + 1000);
	if (profile_end(p, &s, &err) < 0)
		fail_msg("%s", err.message);
}

static struct json_doc *read_json(struct fixture *f, const char *name)
{
	struct err err = { 0 };
	struct json_doc *doc = NULL;
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	if (file_read(fixture_path(f, name), 1 << 20, &text, &bytes, &err) < 0 ||
		json_doc_parse(text, bytes, 1 << 20, &doc, &err) < 0)
		fail_msg("%s", err.message);
	return doc;
}

static const char *word(const struct json_val *v, const char *key)
{
	return json_str_or(json_get(v, key), "");
}

static void a_step_is_a_trace(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	cleanup(profile_destroyp) struct profile *p = NULL;
	assert_int_equal(profile_create(&plan, fixture_path(f, "profile"), 2, &p, &err), 0);
	trace_step(p, 41);
	cleanup(json_doc_freep) struct json_doc *doc = read_json(f, "profile/step-41.json");
	const struct json_val *events = json_get(json_doc_root(doc), "traceEvents");
	int operations = 0, phases = 0;
	double last_end = -1e9;
	/* process name, the step, 5 phases (2 forward, 2 backward, 1 optimize), 7 operations */
	assert_int_equal(json_array_len(events), 1 + 1 + 5 + 7);
	for (size_t i = 0; i < json_array_len(events); i++) {
		const struct json_val *e = json_array_at(events, i);
		if (strcmp(word(e, "ph"), "M") == 0)
			continue;
		assert_string_equal(word(e, "ph"), "X");
		assert_int_equal(json_kind(json_get(e, "pid")), JSON_INT);
		assert_int_equal(json_kind(json_get(e, "tid")), JSON_INT);
		double ts = json_f64_or(json_get(e, "ts"), -1), dur = json_f64_or(json_get(e, "dur"), -1);
		assert_true(ts >= 0 && dur >= 0);
		phases += strcmp(word(e, "name"), word(e, "cat")) == 0;
		if (json_get(json_get(e, "args"), "kind") == NULL)
			continue;
		assert_true(fabs(dur - 1) < 1e-6); /* microseconds */
		assert_true(ts >= last_end - 1e-6);
		last_end = ts + dur;
		assert_string_equal(word(e, "name"), ops[operations == 6 ? 3 : operations % 3].name);
		operations++;
	}
	assert_int_equal(operations, 7);
	assert_int_equal(phases, 5);
	const struct json_val *first = json_array_at(events, 1 + 1 + 5);
	assert_string_equal(word(first, "cat"), "forward");
	/* 2e6 FLOP in 1 µs */
	assert_true(
		fabs(json_f64_or(json_get(json_get(first, "args"), "gflop_per_s"), 0) - 2000) < 1e-6);
}

static void only_so_many_steps_are_traced(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	cleanup(profile_destroyp) struct profile *p = NULL;
	assert_int_equal(profile_create(&plan, fixture_path(f, "profile"), 2, &p, &err), 0);
	trace_step(p, 1);
	trace_step(p, 2);
	assert_false(profile_begin(p));
	assert_int_equal(profile_summary(p, &err), 0);
	cleanup(json_doc_freep) struct json_doc *doc = read_json(f, "profile/summary.json");
	const struct json_val *list = json_get(json_doc_root(doc), "operations");
	double share = 0;
	assert_int_equal(json_i64_or(json_get(json_doc_root(doc), "steps"), 0), 2);
	assert_int_equal(json_array_len(list), 4);
	for (size_t i = 0; i < json_array_len(list); i++)
		share += json_f64_or(json_get(json_array_at(list, i), "share"), 0);
	assert_true(fabs(share - 1) < 1e-12);
	const struct json_val *last = json_array_at(list, 3); /* the shortest: once a step */
	assert_string_equal(word(last, "kind"), "adamw");
	assert_int_equal(json_i64_or(json_get(last, "count"), 0), 2);
	assert_true(fabs(json_f64_or(json_get(last, "ms_per_step"), 0) - 1e-3) < 1e-9);
	assert_true(fabs(json_f64_or(json_get(last, "gbyte_per_s"), 0) - 4000) < 1e-6);
}

/* The first step failed, or there was none. */
static void no_step_has_a_summary_too(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	cleanup(profile_destroyp) struct profile *p = NULL;
	assert_int_equal(profile_create(&plan, fixture_path(f, "profile"), 2, &p, &err), 0);
	assert_true(profile_begin(p));
	profile_op(p, &ops[0], 0, now_ns(), now_ns() + 1000);
	assert_int_equal(profile_summary(p, &err), 0);
	cleanup(json_doc_freep) struct json_doc *doc = read_json(f, "profile/summary.json");
	const struct json_val *first = json_array_at(json_get(json_doc_root(doc), "operations"), 0);
	assert_int_equal(json_i64_or(json_get(json_doc_root(doc), "steps"), -1), 0);
	assert_true(json_f64_or(json_get(first, "ms_per_step"), -1) > 0);
}

/* A step that was tried again has more operations than the plan: they are counted. */
static void operations_beyond_the_room_are_counted(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct engine_step s = { .step = 7 };
	cleanup(profile_destroyp) struct profile *p = NULL;
	assert_int_equal(profile_create(&plan, fixture_path(f, "profile"), 1, &p, &err), 0);
	assert_true(profile_begin(p));
	for (int i = 0; i < 20; i++)
		profile_op(p, &ops[0], 0, now_ns(), now_ns());
	assert_int_equal(profile_end(p, &s, &err), 0);
	cleanup(json_doc_freep) struct json_doc *doc = read_json(f, "profile/step-7.json");
	const struct json_val *step = json_array_at(json_get(json_doc_root(doc), "traceEvents"), 1);
	assert_int_equal(json_i64_or(json_get(json_get(step, "args"), "events_dropped"), 0), 20 - 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_step_is_a_trace),
		cmocka_unit_test(only_so_many_steps_are_traced),
		cmocka_unit_test(no_step_has_a_summary_too),
		cmocka_unit_test(operations_beyond_the_room_are_counted),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
