/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/loop.c: a real engine, a reporter that takes notes and gives orders. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "core/base/file.h"
#include "workers/trainer/loop.h"
#include "workers/trainer/manifest.h"

#include <math.h>

enum { NOTES_MAX = 256, ALIVE_US = 10000 };

struct notes {
	char t[NOTES_MAX][16];
	int64_t step[NOTES_MAX];
	double loss[NOTES_MAX];
	char json[NOTES_MAX][1024]; /* the beginning */
	int count;
	int64_t acked;
	/* orders: what is said once the loop has reached the step */
	int64_t order_step;
	enum loop_order order;
	int64_t checkpoint_step;
	int64_t now_step;
	bool checkpoint_given;
	int alive;                  /* signs of life since the last message */
	struct clock_manual *clock; /* moved on with each sign of life, when not NULL */
};

static int on_message(
	void *ctx, const char *json, bool droppable, int64_t *ret_seq, struct err *err)
{
	struct notes *n = ctx;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_true(n->count < NOTES_MAX);
	assert_int_equal(json_doc_parse(json, strlen(json), JSON_BYTES_MAX, &doc, err), 0);
	const struct json_val *v = json_doc_root(doc);
	snprintf(n->t[n->count], sizeof(n->t[0]), "%s", json_str_or(json_get(v, "t"), ""));
	n->step[n->count] = json_i64_or(json_get(v, "step"), -1);
	n->loss[n->count] = json_f64_or(json_get(v, "loss"), 0);
	snprintf(n->json[n->count], sizeof(n->json[0]), "%s", json);
	if (strcmp(n->t[n->count], "checkpoint") == 0 || strcmp(n->t[n->count], "training") == 0)
		assert_false(droppable);
	n->alive = 0;
	n->count++;
	if (ret_seq != NULL)
		*ret_seq = n->count;
	return 0;
}

static int64_t on_acked_seq(void *ctx)
{
	return ((struct notes *)ctx)->acked;
}

static enum loop_order on_order(void *ctx)
{
	struct notes *n = ctx;
	return n->order_step > 0 && n->now_step >= n->order_step ? n->order : LOOP_GO_ON;
}

static bool on_take_checkpoint(void *ctx)
{
	struct notes *n = ctx;
	if (n->checkpoint_given || n->checkpoint_step == 0 || n->now_step < n->checkpoint_step)
		return false;
	n->checkpoint_given = true;
	return true;
}

static void on_alive(void *ctx, int64_t step)
{
	struct notes *n = ctx;
	n->now_step = step;
	n->alive++;
	if (n->clock != NULL)
		clock_manual_advance(n->clock, ALIVE_US);
}

static const struct reporter reporter = { on_message, on_acked_seq, on_order, on_take_checkpoint,
	on_alive };

static struct session *run(
	struct fixture *f, struct notes *n, struct loop l, const char *resume, struct loop_result *ret)
{
	struct err err = { 0 };
	struct session *s = NULL;
	const char *dir = fixture_path(f, "run");
	f->inputs.resume_dir = resume;
	if (session_open(&f->spec, &f->inputs, &s, &err) < 0)
		fail_msg("%s: %s", err.param, err.message);
	f->inputs.resume_dir = NULL;
	assert_int_equal(file_remove_tree(dir, &err), 0);
	assert_int_equal(file_mkdir(dir, &err), 0);
	l.session = s;
	l.reporter = &reporter;
	l.reporter_ctx = n;
	if (l.clock == NULL)
		l.clock = clock_system();
	l.dir = dir;
	l.model_dir = "model";
	l.started_us = clock_boot_us(l.clock);
	loop_run(&l, ret);
	return s;
}

static int count(const struct notes *n, const char *t)
{
	int found = 0;
	for (int i = 0; i < n->count; i++)
		found += strcmp(n->t[i], t) == 0;
	return found;
}

static int where(const struct notes *n, const char *t, int64_t step)
{
	for (int i = 0; i < n->count; i++)
		if (strcmp(n->t[i], t) == 0 && n->step[i] == step)
			return i;
	return -1;
}

static bool exists(struct fixture *f, const char *name)
{
	return access(fixture_path(f, name), F_OK) == 0;
}

static void a_whole_run_tells_everything_in_order(void **state)
{
	struct fixture *f = *state;
	struct notes n = { .acked = INT64_MAX };
	struct loop_result r;
	struct err err = { 0 };
	struct manifest m;
	struct session *s = run(f, &n, (struct loop){ .every_step = true, .keep = 2 }, NULL, &r);
	assert_string_equal(r.outcome, "succeeded");
	assert_true(r.has_model);
	assert_int_equal(r.step, 12);
	assert_string_equal(n.t[0], "training");
	assert_int_equal(count(&n, "step"), 12);
	assert_int_equal(count(&n, "evaluation"), 2);
	assert_int_equal(count(&n, "checkpoint"), 3);
	assert_true(where(&n, "step", 4) < where(&n, "checkpoint", 4));
	assert_true(where(&n, "step", 6) < where(&n, "evaluation", 6));
	assert_true(where(&n, "evaluation", 12) < where(&n, "checkpoint", 12));
	assert_int_equal(where(&n, "checkpoint", 12), n.count - 1);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const char *told = n.json[where(&n, "evaluation", 12)];
	assert_int_equal(json_doc_parse(told, strlen(told), JSON_BYTES_MAX, &doc, &err), 0);
	const struct json_val *v = json_doc_root(doc);
	assert_true(json_f64_or(json_get(v, "perplexity"), 0) ==
		exp(json_f64_or(json_get(v, "validation_loss"), 0)));
	assert_true(n.alive >= 3); /* after the checkpoint, before the model, after it */
	assert_false(exists(f, "run/checkpoints/step-4")); /* keep 2 */
	assert_true(exists(f, "run/checkpoints/step-8"));
	assert_int_equal(manifest_verify(fixture_path(f, "run/model"), &m, &err), 0);
	session_close(s);
}

static void steps_are_thinned_out_but_never_the_last(void **state)
{
	struct fixture *f = *state;
	struct clock_manual clock;
	struct notes n = {
		.acked = INT64_MAX, .order_step = 120, .order = LOOP_CANCEL, .clock = &clock
	};
	struct loop_result r;
	struct job_spec before = f->spec;
	f->spec.hyper.max_steps = 1000;
	f->spec.checkpoint_every_steps = f->spec.evaluation_every_steps = 0;
	clock_manual_init(&clock, 0);
	session_close(run(f, &n, (struct loop){ .clock = &clock.base }, NULL, &r));
	f->spec = before;
	assert_string_equal(r.outcome, "cancelled");
	assert_null(r.reason);
	assert_int_equal(r.step, 120);
	/* 1.2 s: two in the time, and the last one. */
	assert_int_equal(count(&n, "step"), 3);
	assert_true(where(&n, "step", 120) >= 0);
	assert_true(where(&n, "step", 120) < where(&n, "checkpoint", 120));
	assert_false(r.has_model);
}

static void orders_are_followed(void **state)
{
	static const struct {
		enum loop_order order;
		const char *outcome, *reason;
	} cases[] = {
		{ LOOP_CANCEL, "cancelled", NULL },
		{ LOOP_PAUSE, "paused", NULL },
		{ LOOP_TERMINATE, "failed", "platform_error" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct notes n = { .acked = INT64_MAX, .order_step = 5, .order = cases[i].order };
		struct loop_result r;
		session_close(run(*state, &n, (struct loop){ 0 }, NULL, &r));
		assert_string_equal(r.outcome, cases[i].outcome);
		if (cases[i].reason != NULL)
			assert_string_equal(r.reason, cases[i].reason);
		assert_int_equal(r.step, 5);
		assert_int_equal(where(&n, "checkpoint", 5), n.count - 1);
	}
}

/* The disk refuses: not the customer's doing, and no lack of the device's memory. */
static void what_cannot_be_written_is_our_failure(void **state)
{
	struct fixture *f = *state;
	struct notes n = { .acked = INT64_MAX };
	struct loop_result r;
	struct err err = { 0 };
	struct session *s = NULL;
	char dir[FILE_PATH_MAX];
	/* So deep that the checkpoint's folder has a path, and its files have none. */
	int bytes = snprintf(dir, sizeof(dir), "%s", fixture_path(f, "deep"));
	while (bytes < FILE_PATH_MAX - 45) {
		assert_int_equal(file_mkdir(dir, &err), 0);
		int more = FILE_PATH_MAX - 45 - bytes;
		bytes += snprintf(dir + bytes, sizeof(dir) - (size_t)bytes, "/%0*d",
			more > 100         ? 50
				: more - 1 > 0 ? more - 1
							   : 1,
			0);
	}
	assert_int_equal(file_mkdir(dir, &err), 0);
	assert_int_equal(session_open(&f->spec, &f->inputs, &s, &err), 0);
	struct loop l = { .session = s,
		.reporter = &reporter,
		.reporter_ctx = &n,
		.clock = clock_system(),
		.dir = dir,
		.model_dir = "model" };
	loop_run(&l, &r);
	session_close(s);
	assert_string_equal(r.outcome, "failed");
	assert_non_null(strstr(r.message, "too long"));
	assert_string_equal(r.reason, "platform_error");
	assert_true(r.step > 0);
}

static void a_checkpoint_is_taken_when_asked_for(void **state)
{
	struct notes n = { .acked = INT64_MAX, .checkpoint_step = 3 };
	struct loop_result r;
	session_close(run(*state, &n, (struct loop){ 0 }, NULL, &r));
	assert_string_equal(r.outcome, "succeeded");
	assert_true(where(&n, "checkpoint", 3) > 0);
	assert_int_equal(count(&n, "checkpoint"), 4);
}

static void a_slow_yard_skips_periodic_checkpoints_only(void **state)
{
	struct fixture *f = *state;
	struct notes n = { .acked = 0 };
	struct loop_result r;
	f->spec.checkpoint_every_steps = 1;
	session_close(run(f, &n, (struct loop){ 0 }, NULL, &r));
	f->spec.checkpoint_every_steps = 4;
	assert_string_equal(r.outcome, "succeeded");
	assert_int_equal(count(&n, "checkpoint"), LOOP_UNSAVED_MAX + 1);
	assert_true(where(&n, "checkpoint", 12) > 0);
	assert_true(exists(f, "run/checkpoints/step-1")); /* nothing unacknowledged is deleted */
}

static void a_resumed_run_ends_the_same(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char first[DIGEST_HEX_MAX], second[DIGEST_HEX_MAX], path[200];
	int64_t bytes = 0;
	struct notes a = { .acked = INT64_MAX };
	struct loop_result r;
	const struct loop l = { .every_step = true, .keep = 3 };
	session_close(run(f, &a, l, NULL, &r));
	assert_int_equal(
		digest_file(fixture_path(f, "run/model/manifest.json"), first, &bytes, &err), 0);
	for (int64_t from = 4; from <= 12; from += 4) {
		struct notes b = { .acked = INT64_MAX };
		snprintf(path, sizeof(path), "%s/run/checkpoints/step-%lld", f->dir, (long long)from);
		const char *kept = fixture_path(f, "kept");
		assert_int_equal(file_remove_tree(kept, &err), 0);
		assert_int_equal(rename(path, kept), 0);
		session_close(run(f, &b, l, kept, &r));
		assert_string_equal(r.outcome, "succeeded");
		assert_int_equal(count(&b, "step"), 12 - from);
		for (int64_t step = from + 1; step <= 12; step++) {
			int i = where(&a, "step", step), k = where(&b, "step", step);
			assert_memory_equal(&a.loss[i], &b.loss[k], sizeof(double));
		}
		assert_int_equal(
			digest_file(fixture_path(f, "run/model/manifest.json"), second, &bytes, &err), 0);
		assert_string_equal(first, second);
		struct notes c = { .acked = INT64_MAX };
		session_close(run(f, &c, l, NULL, &r)); /* the checkpoints for the next round */
	}
}

/* Every step's line, as `run` prints it. */
static void steps_tell_their_rates_and_samples(void **state)
{
	struct fixture *f = *state;
	static struct notes n;
	struct loop_result r;
	struct err err = { 0 };
	int64_t seen[12 * 4] = { 0 };
	n = (struct notes){ .acked = INT64_MAX };
	f->inputs.peak_flops = 1e12;
	struct session *s =
		run(f, &n, (struct loop){ .every_step = true, .sample_ids = true }, NULL, &r);
	f->inputs.peak_flops = 0;
	int64_t samples = data_info(s->training)->samples;
	for (int64_t step = 1; step <= 12; step++) {
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		const char *json = n.json[where(&n, "step", step)];
		assert_int_equal(json_doc_parse(json, strlen(json), JSON_BYTES_MAX, &doc, &err), 0);
		const struct json_val *v = json_doc_root(doc), *ids = json_get(v, "sample_ids");
		double per_second = json_f64_or(json_get(v, "tokens_per_second"), 0);
		double mfu = json_f64_or(json_get(v, "mfu"), 0);
		double share = json_f64_or(json_get(v, "data_wait_share"), -1);
		assert_true(per_second > 0 && share >= 0 && share <= 1);
		/* both are of the same time: 64 tokens a step */
		double flops = mfu * 1e12 * 64 / per_second;
		assert_true(
			flops > 0.999 * s->plan->flops_per_step && flops < 1.001 * s->plan->flops_per_step);
		assert_int_equal(
			json_i64_or(json_get(v, "memory_bytes"), 0), engine_memory_bytes(s->engine));
		assert_int_equal(json_array_len(ids), 4);
		for (size_t i = 0; i < 4; i++)
			seen[(step - 1) * 4 + (int64_t)i] = json_i64_or(json_array_at(ids, i), -1);
	}
	for (int i = 0; i < 12 * 4; i++) {
		assert_int_equal(
			seen[i], data_sample_at(samples, (uint64_t)f->spec.seed, f->spec.data.shuffle, i));
		for (int k = 0; k < i && i < samples; k++)
			assert_true(seen[i] != seen[k]); /* once an epoch */
	}
	session_close(s);
	n = (struct notes){ .acked = INT64_MAX };
	session_close(run(f, &n, (struct loop){ .every_step = true }, NULL, &r));
	const char *json = n.json[where(&n, "step", 1)];
	assert_non_null(strstr(json, "\"mfu\":null")); /* no peak, no figure */
	assert_null(strstr(json, "sample_ids"));
}

static void steps_are_traced(void **state)
{
	struct fixture *f = *state;
	static struct notes n;
	struct loop_result r;
	n = (struct notes){ .acked = INT64_MAX };
	session_close(run(f, &n,
		(struct loop){ .profile_dir = fixture_path(f, "profile"), .profile_steps = 3 }, NULL, &r));
	assert_string_equal(r.outcome, "succeeded");
	assert_true(exists(f, "profile/step-1.json"));
	assert_true(exists(f, "profile/step-3.json"));
	assert_false(exists(f, "profile/step-4.json"));
	assert_true(exists(f, "profile/summary.json"));
}

/* A learning rate that jumps cannot be had from a spec; one that is far too high from the start
 * after a calm beginning can: warm-up up to it. */
static void a_loss_that_comes_apart_fails_the_job(void **state)
{
	struct fixture *f = *state;
	struct job_spec before = f->spec;
	static struct notes n;
	struct loop_result r;
	n = (struct notes){ .acked = INT64_MAX };
	f->spec.hyper.optimizer = SPEC_SGD;
	f->spec.hyper.momentum = 0;
	f->spec.hyper.weight_decay = 0;
	f->spec.hyper.schedule = SPEC_LINEAR;
	f->spec.hyper.learning_rate = 1000;
	f->spec.hyper.warmup_steps = 1000;
	f->spec.hyper.grad_clip = 1;
	f->spec.hyper.max_steps = 1500;
	f->spec.checkpoint_every_steps = f->spec.evaluation_every_steps = 0;
	session_close(run(f, &n, (struct loop){ 0 }, NULL, &r));
	f->spec = before;
	assert_string_equal(r.outcome, "failed");
	assert_string_equal(r.reason, "loss_spike");
	assert_non_null(strstr(r.message, "learning_rate"));
	assert_int_equal(count(&n, "log"), 1);
	assert_int_equal(where(&n, "checkpoint", r.step), n.count - 1);
}

static void a_loss_that_is_not_finite_fails_the_job(void **state)
{
	struct fixture *f = *state;
	struct job_spec before = f->spec;
	struct notes n = { .acked = INT64_MAX };
	struct loop_result r;
	f->spec.hyper.optimizer = SPEC_SGD;
	f->spec.hyper.learning_rate = 1e30;
	f->spec.hyper.grad_clip = 0;
	f->spec.hyper.warmup_steps = 0;
	session_close(run(f, &n, (struct loop){ .every_step = true }, NULL, &r));
	f->spec = before;
	assert_string_equal(r.outcome, "failed");
	assert_string_equal(r.reason, "nan_loss");
	assert_non_null(strstr(r.message, "learning_rate"));
	assert_false(r.has_model);
	assert_int_equal(count(&n, "step"), r.step);
}

static void the_time_limit_leaves_a_checkpoint(void **state)
{
	struct fixture *f = *state;
	struct job_spec before = f->spec;
	struct clock_manual clock;
	struct notes n = { .acked = INT64_MAX, .clock = &clock };
	struct loop_result r;
	f->spec.hyper.max_steps = 1000000;
	f->spec.checkpoint_every_steps = 0;
	f->spec.evaluation_every_steps = 0;
	clock_manual_init(&clock, 0);
	session_close(run(f, &n, (struct loop){ .max_runtime_s = 1, .clock = &clock.base }, NULL, &r));
	int64_t took = clock_boot_us(&clock.base);
	f->spec = before;
	assert_string_equal(r.reason, "max_runtime");
	assert_true(took < 1000000);
	assert_true(r.step >= 30); /* half of the limit at least is trained in */
	assert_int_equal(where(&n, "checkpoint", r.step), n.count - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_run_tells_everything_in_order),
		cmocka_unit_test(steps_are_thinned_out_but_never_the_last),
		cmocka_unit_test(orders_are_followed),
		cmocka_unit_test(what_cannot_be_written_is_our_failure),
		cmocka_unit_test(a_checkpoint_is_taken_when_asked_for),
		cmocka_unit_test(a_slow_yard_skips_periodic_checkpoints_only),
		cmocka_unit_test(a_resumed_run_ends_the_same),
		cmocka_unit_test(steps_tell_their_rates_and_samples),
		cmocka_unit_test(steps_are_traced),
		cmocka_unit_test(a_loss_that_comes_apart_fails_the_job),
		cmocka_unit_test(a_loss_that_is_not_finite_fails_the_job),
		cmocka_unit_test(the_time_limit_leaves_a_checkpoint),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
