/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/checkpoint.c and checkpoint_restore.c on a real engine: same bits back,
 * nothing torn is taken, a kill at any moment leaves only whole checkpoints. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "core/base/file.h"
#include "workers/trainer/checkpoint.h"
#include "workers/trainer/folder.h"
#include "workers/trainer/manifest.h"
#include "workers/trainer/saver.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { WAIT_MS = 20000, KEPT = 2 };

static struct session *open_session(struct fixture *f, const char *resume)
{
	struct err err = { 0 };
	struct session *s = NULL;
	f->inputs.resume_dir = resume;
	if (session_open(&f->spec, &f->inputs, &s, &err) < 0)
		fail_msg("%s: %s", err.param, err.message);
	return s;
}

static double step(struct session *s)
{
	struct engine_step e;
	struct err err = { 0 };
	assert_int_equal(engine_step(s->engine, &e, &err), 0);
	s->metrics.has_loss = true;
	s->metrics.loss = e.loss;
	return e.loss;
}

static int64_t save(struct session *s, const char *parent)
{
	struct err err = { 0 };
	int64_t at = -1;
	struct hf_model model = session_model(s);
	if (checkpoint_write(&model, &s->metrics, parent, &at, &err) < 0)
		fail_msg("%s", err.message);
	return at;
}

static void a_resumed_training_has_the_same_bits(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char dir[200], hash[2][DIGEST_HEX_MAX];
	int64_t bytes = 0;
	const char *parent = fixture_path(f, "bits");
	double losses[6];
	assert_int_equal(file_mkdir(parent, &err), 0);
	struct session *s = open_session(f, NULL);
	for (int i = 0; i < 3; i++)
		(void)step(s);
	assert_int_equal(save(s, parent), 3);
	for (int i = 0; i < 6; i++)
		losses[i] = step(s);
	assert_int_equal(save(s, parent), 9);
	session_close(s);

	snprintf(dir, sizeof(dir), "%s/step-3", parent);
	s = open_session(f, dir);
	assert_int_equal(s->resumed_step, 3);
	for (int i = 0; i < 6; i++) {
		double loss = step(s);
		assert_memory_equal(&loss, &losses[i], sizeof(loss));
	}
	const char *again = fixture_path(f, "again");
	assert_int_equal(file_mkdir(again, &err), 0);
	assert_int_equal(save(s, again), 9);
	session_close(s);
	static const char *const names[] = { "model.safetensors", "optimizer.safetensors", "state.json",
		"config.json", "tokenizer.json", "manifest.json" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(dir, sizeof(dir), "%s/step-9/%s", parent, names[i]);
		assert_int_equal(digest_file(dir, hash[0], &bytes, &err), 0);
		snprintf(dir, sizeof(dir), "%s/step-9/%s", again, names[i]);
		assert_int_equal(digest_file(dir, hash[1], &bytes, &err), 0);
		if (strcmp(hash[0], hash[1]) != 0)
			fail_msg("%s differs", names[i]);
	}
}

/* A folder of that name that another run left is no checkpoint of this one. */
static void another_run_s_checkpoint_is_replaced(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char dir[200];
	const char *parent = fixture_path(f, "shared");
	const int64_t before = f->spec.seed;
	assert_int_equal(file_mkdir(parent, &err), 0);
	snprintf(dir, sizeof(dir), "%s/step-1", parent);
	for (int i = 0; i < 2; i++) {
		f->spec.seed = before + i;
		struct session *s = open_session(f, NULL);
		(void)step(s);
		assert_int_equal(save(s, parent), 1);
		double next = step(s);
		session_close(s);
		s = open_session(f, dir); /* refuses a state of another seed */
		double again = step(s);
		assert_memory_equal(&again, &next, sizeof(next));
		session_close(s);
	}
	f->spec.seed = before;
	assert_true(access(fixture_path(f, "shared/.writing-old"), F_OK) < 0);
}

/* For a reason with these words. */
static void refused_for(struct fixture *f, const char *dir, const char *words)
{
	struct err err = { 0 };
	struct session *s = NULL;
	f->inputs.resume_dir = dir;
	int rc = session_open(&f->spec, &f->inputs, &s, &err);
	f->inputs.resume_dir = NULL;
	assert_null(s);
	assert_true(rc < 0);
	assert_string_equal(session_reason(rc), "platform_error"); /* not the customer's doing */
	if (strstr(err.message, words) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void refused(struct fixture *f, const char *dir)
{
	refused_for(f, dir, "");
}

static void a_checkpoint_of_another_model_is_refused(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char dir[200];
	const char *parent = fixture_path(f, "other");
	assert_int_equal(file_mkdir(parent, &err), 0);
	struct session *s = open_session(f, NULL);
	(void)step(s);
	(void)save(s, parent);
	session_close(s);
	snprintf(dir, sizeof(dir), "%s/step-1", parent);
	struct job_spec before = f->spec;
	f->spec.model.n_embd = 32;
	refused_for(f, dir, "$.model.config.n_embd");
	f->spec = before;
	f->spec.seed++;
	refused(f, dir);
	f->spec = before;
	f->spec.model.n_layer = 2;
	refused_for(f, dir, "$.model.config.n_layer");
	f->spec = before;
	session_close(open_session(f, dir));
}

static void a_torn_checkpoint_is_refused(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char dir[200], path[300];
	static const char *const names[] = { "model.safetensors", "optimizer.safetensors", "state.json",
		"manifest.json" };
	const char *parent = fixture_path(f, "torn");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		assert_int_equal(file_remove_tree(parent, &err), 0);
		assert_int_equal(file_mkdir(parent, &err), 0);
		struct session *s = open_session(f, NULL);
		(void)step(s);
		(void)save(s, parent);
		session_close(s);
		snprintf(dir, sizeof(dir), "%s/step-1", parent);
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		struct stat st;
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(truncate(path, st.st_size - 2), 0);
		refused(f, dir);
		assert_int_equal(unlink(path), 0);
		refused(f, dir);
	}
}

/* A state that its manifest vouches for, but that another version wrote. */
static void a_checkpoint_of_another_format_is_refused(void **state)
{
	static const char text[] = "{\"format\":3}\n";
	struct fixture *f = *state;
	struct err err = { 0 };
	struct manifest m;
	char dir[200], path[300];
	const char *parent = fixture_path(f, "format");
	assert_int_equal(file_mkdir(parent, &err), 0);
	struct session *s = open_session(f, NULL);
	(void)step(s);
	(void)save(s, parent);
	session_close(s);
	snprintf(dir, sizeof(dir), "%s/step-1", parent);
	assert_int_equal(manifest_verify(dir, &m, &err), 0);
	assert_int_equal(file_write_atomic(dir, "state.json", text, strlen(text), &err), 0);
	snprintf(path, sizeof(path), "%s/manifest.json", dir);
	assert_int_equal(unlink(path), 0);
	for (int i = 0; i < m.count; i++)
		if (strcmp(m.files[i].name, "state.json") == 0) {
			m.files[i].bytes = (int64_t)strlen(text);
			assert_int_equal(digest_hex_of(text, strlen(text), m.files[i].sha256), 0);
		}
	assert_int_equal(manifest_write(&m, dir, &err), 0);
	refused(f, dir);
}

static void a_retired_folder_is_gone_with_what_a_kill_left_of_another(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	char path[300];
	const char *parent = fixture_path(f, "retired");
	assert_int_equal(file_mkdir(parent, &err), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", parent, i ? "step-7" : ".retired");
		assert_int_equal(file_mkdir(path, &err), 0);
		assert_int_equal(file_write_atomic(path, "model.safetensors", "x", 1, &err), 0);
	}
	assert_int_equal(folder_retire(parent, "step-7", &err), 0);
	assert_int_equal(rmdir(parent), 0); /* empty */
	assert_int_equal(file_mkdir(parent, &err), 0);
	assert_int_equal(folder_retire(parent, "step-8", &err), 0); /* is not there */
}

struct watch {
	struct saver *saver;
	const struct plan *plan;
};

static void on_operation(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct watch *w = ctx;
	(void)begin_ns;
	(void)end_ns;
	if (micro == w->plan->micro_steps - 1 && op == &w->plan->ops[w->plan->optimize_begin - 1])
		saver_hold(w->saver, NULL, NULL);
}

/* As the loop does it: the next step runs while the last one's checkpoint is written, and old ones
 * go. */
static void train_and_save_for_ever(struct fixture *f, const char *parent)
{
	struct err err = { 0 };
	struct session *s = open_session(f, NULL);
	struct hf_model model = session_model(s);
	struct watch w = { .plan = s->plan };
	char old[CHECKPOINT_NAME_MAX];
	int64_t count = 0;
	assert_int_equal(saver_create(&model, &w.saver, &err), 0);
	engine_trace(s->engine, on_operation, &w);
	for (;;) {
		(void)step(s);
		if (saver_busy(w.saver))
			assert_int_equal(saver_finish(w.saver, NULL, NULL, &err), 0);
		assert_int_equal(saver_begin(w.saver, &s->metrics, parent, &err), 0);
		checkpoint_name(++count - KEPT, old);
		if (count > KEPT)
			assert_int_equal(folder_retire(parent, old, &err), 0);
	}
}

/* Every published folder is whole, and training goes on from the newest. */
static int64_t check_all(struct fixture *f, const char *parent)
{
	struct err err = { 0 };
	int64_t newest = 0;
	char path[300];
	DIR *d = opendir(parent);
	struct dirent *e;
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		struct manifest m;
		if (strncmp(e->d_name, "step-", 5) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", parent, e->d_name);
		if (manifest_verify(path, &m, &err) < 0)
			fail_msg("%s: %s", path, err.message);
		newest = m.step > newest ? m.step : newest;
	}
	closedir(d);
	if (newest > 0) {
		snprintf(path, sizeof(path), "%s/step-%lld", parent, (long long)newest);
		struct session *s = open_session(f, path);
		assert_int_equal(s->resumed_step, newest);
		(void)step(s);
		assert_int_equal(save(s, parent), newest + 1); /* over what the kill left behind */
		session_close(s);
	}
	return newest;
}

static void a_kill_at_any_moment_leaves_whole_checkpoints(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct check_random random = check_random_start();
	const char *parent = fixture_path(f, "killed");
	int64_t most = 0;
	for (int round = 0; round < 12; round++) {
		assert_int_equal(file_remove_tree(parent, &err), 0);
		assert_int_equal(file_mkdir(parent, &err), 0);
		f->inputs.resume_dir = NULL;
		pid_t pid = fork();
		if (pid == 0) {
			train_and_save_for_ever(f, parent);
			_exit(1);
		}
		/* Half of the time not before there is one to lose. */
		char first[300];
		snprintf(first, sizeof(first), "%s/step-1", parent);
		for (int i = 0; round % 2 == 0 && access(first, F_OK) < 0 && i < WAIT_MS; i++)
			poll(NULL, 0, 1);
		poll(NULL, 0, (int)check_random_range(&random, 0, 150));
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		int64_t newest = check_all(f, parent);
		most = newest > most ? newest : most;
	}
	assert_true(most > 0); /* or the test has seen nothing */
}

static void a_model_is_replaced_whole(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct manifest m;
	const char *dir = fixture_path(f, "model");
	struct session *s = open_session(f, NULL);
	for (int i = 1; i <= 2; i++) {
		(void)step(s);
		assert_int_equal(session_write_model(s, dir, &err), 0);
		assert_int_equal(manifest_verify(dir, &m, &err), 0);
		assert_int_equal(m.step, i);
		/* weights, config, generation_config, three of the tokenizer, trainyard.json */
		assert_int_equal(m.count, 7);
	}
	session_close(s);
}

/* They are zeros until the first update. */
static void there_are_no_averages_before_the_first_step(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	const char *dir = fixture_path(f, "averages");
	const double before = f->spec.hyper.ema_decay;
	f->spec.hyper.ema_decay = 0.9;
	struct session *s = open_session(f, NULL);
	f->spec.hyper.ema_decay = before;
	assert_int_equal(session_write_model(s, dir, &err), 0);
	assert_false(file_exists(fixture_path(f, "averages/ema.safetensors")));
	(void)step(s);
	assert_int_equal(session_write_model(s, dir, &err), 0);
	assert_true(file_exists(fixture_path(f, "averages/ema.safetensors")));
	session_close(s);
}

static void a_plan_larger_than_the_device_is_refused_with_both_figures(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct session *s = NULL;
	char figure[32];
	assert_int_equal(session_open(&f->spec, &f->inputs, &s, &err), 0);
	int64_t needed = s->plan->total_bytes;
	session_close(s);
	f->inputs.memory_bytes = needed;
	assert_int_equal(session_open(&f->spec, &f->inputs, &s, &err), 0);
	session_close(s);
	s = NULL;
	f->inputs.memory_bytes = needed - 1;
	int rc = session_open(&f->spec, &f->inputs, &s, &err);
	f->inputs.memory_bytes = 0;
	assert_int_equal(rc, ERR_PLAN_TOO_LARGE);
	assert_null(s);
	assert_string_equal(session_reason(rc), "out_of_memory");
	for (int64_t bytes = needed - 1; bytes <= needed; bytes++) {
		snprintf(figure, sizeof(figure), " %lld bytes", (long long)bytes);
		assert_non_null(strstr(err.message, figure));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: it forks, and a forked OpenMP cannot go on once it has threads. */
		cmocka_unit_test(a_kill_at_any_moment_leaves_whole_checkpoints),
		cmocka_unit_test(a_resumed_training_has_the_same_bits),
		cmocka_unit_test(another_run_s_checkpoint_is_replaced),
		cmocka_unit_test(a_checkpoint_of_another_format_is_refused),
		cmocka_unit_test(a_checkpoint_of_another_model_is_refused),
		cmocka_unit_test(a_torn_checkpoint_is_refused),
		cmocka_unit_test(a_model_is_replaced_whole),
		cmocka_unit_test(a_retired_folder_is_gone_with_what_a_kill_left_of_another),
		cmocka_unit_test(there_are_no_averages_before_the_first_step),
		cmocka_unit_test(a_plan_larger_than_the_device_is_refused_with_both_figures),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
