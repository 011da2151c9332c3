/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints of several ranks: what any number of them saved, cut in any way, any other number
 * takes up with the same bits; the model that they write is one rank's; and nothing that is torn,
 * missing or killed is taken for whole. argv: the name of one test. */
#include "tests/parallel/checkpoint_compare.h"

#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
	SAVES = 20,
	GROWTH_KIB_MAX = 1024,
	KILLS = 24,
	KILL_MS_MAX = 100,
	KEPT = 2,
};

/* Each stage's checkpoint goes to one rank, to the same mesh, and to others of other stages. */
static void resume_everywhere(const char *name, struct life_job *job, int zero, double bound)
{
	const struct {
		int ranks, zero;
	} meshes[] = { { 1, 0 }, { SAVERS, zero }, { 2, (zero + 1) % 4 }, { 8, (zero + 2) % 4 },
		{ SAVERS, (zero + 3) % 4 } };
	char what[128];
	job->before = 0;
	job->after = AFTER;
	job->checkpoints = NULL;
	job->inputs.resume_dir = path_of("checkpoints/step-3");
	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		bool same = meshes[i].ranks == SAVERS && meshes[i].zero == zero;
		snprintf(what, sizeof(what), "%s, from %d ranks with ZeRO %d to %d with %d", name, SAVERS,
			zero, meshes[i].ranks, meshes[i].zero);
		life_run(job, meshes[i].ranks, meshes[i].zero, second);
		same_state(what, &first->saved, &second->opened);
		same_losses(what, first, second, same ? 0 : bound);
		/* Of what was loaded, without a step: the same bits. */
		job->after = 0;
		job->model = path_of(i == 0 ? "one" : "many");
		life_run(job, meshes[i].ranks, meshes[i].zero, second);
		same_model(what, path_of("one"), job->model);
		job->after = AFTER;
		job->model = NULL;
	}
	job->inputs.resume_dir = NULL;
}

static void any_mesh(const char *name, enum spec_precision precision, double bound)
{
	struct fixture f;
	struct job_spec spec = spec_of(name);
	spec.precision = precision;
	struct life_job job = life_job_of(&f, &spec);
	for (int zero = 0; zero <= 3; zero++) {
		job.before = BEFORE;
		job.after = AFTER;
		job.checkpoints = fresh_folder("checkpoints");
		life_run(&job, SAVERS, zero, first);
		assert_int_equal(
			file_exists(path_of("checkpoints/step-3/shard-00001-of-00004.safetensors")), zero > 0);
		resume_everywhere(name, &job, zero, bound);
	}
	life_forget(&f);
}

static void one_case(void **state)
{
	any_mesh(*state, SPEC_FP32, 1e-6);
}

/* In 16 bits the last bit of a sum in another order is larger. */
static void narrow_case(void **state)
{
	any_mesh(*state, SPEC_BF16, 2e-2);
	any_mesh(*state, SPEC_FP16, 2e-3);
}

/* As on machines that share no disk: rank 0 has it all, in the files of one rank. */
static void ranks_without_a_common_folder_send_to_the_first(void **state)
{
	static const char *const names[] = { "gpt2", "gpt2-lora", "resnet-bottleneck", "dlrm" };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct fixture f;
		struct job_spec spec = spec_of(names[i]);
		struct life_job job = life_job_of(&f, &spec);
		for (int zero = 1; zero <= 3; zero++) {
			job.before = BEFORE;
			job.after = AFTER;
			job.checkpoints = fresh_folder("checkpoints");
			job.elsewhere = fresh_folder("elsewhere");
			life_run(&job, SAVERS, zero, first);
			job.elsewhere = NULL;
			assert_int_equal(rmdir(path_of("elsewhere")), 0); /* empty */
			assert_true(file_exists(path_of("checkpoints/step-3/optimizer.safetensors")));
			resume_everywhere(names[i], &job, zero, 1e-6);
		}
		life_forget(&f);
	}
}

/* The files of one rank, read in pieces, and by ranges, as the start of several ranks' training. */
static void files_are_read_by_ranges(void **state)
{
	struct fixture f;
	struct job_spec spec = spec_of("gpt2");
	struct life_job job = life_job_of(&f, &spec);
	(void)state;
	job.model = path_of("init");
	life_run(&job, 1, 0, first);
	job.model = NULL;
	job.spec.seed++; /* so that fresh weights would be others */
	job.inputs.init_dir = path_of("init");
	for (int zero = 0; zero <= 3; zero++) {
		life_run(&job, SAVERS, zero, second);
		first->opened.engine = second->opened.engine; /* of another seed */
		same_state("init", &first->opened, &second->opened);
	}
	life_forget(&f);
}

/* ------------------------------------------------------------------------------ torn, missing */

static void refused(struct life_job *job, const char *words)
{
	job->inputs.resume_dir = path_of("checkpoints/step-3");
	job->may_fail = true;
	for (int ranks = 1; ranks <= 2; ranks++) {
		life_run(job, ranks, 2, second);
		for (int r = 0; r < ranks; r++)
			if (second->code[r] != ERR_INTERNAL || strstr(second->message[r], words) == NULL)
				fail_msg("rank %d of %d: %d \"%s\" does not say \"%s\"", r, ranks, second->code[r],
					second->message[r], words);
	}
	job->inputs.resume_dir = NULL;
	job->may_fail = false;
}

/* A manifest that vouches for what is there now, without the file named. */
static void vouch(const char *without)
{
	const char *folder = path_of("checkpoints/step-3");
	struct err err = { 0 };
	struct manifest m, n = { 0 };
	assert_ok(manifest_read(folder, &m, &err));
	n.step = m.step;
	for (int i = 0; i < m.count; i++)
		if (strcmp(m.files[i].name, without) != 0)
			assert_ok(manifest_add(&n, m.files[i].name, &err));
	assert_int_equal(unlink(path_of("checkpoints/step-3/manifest.json")), 0);
	assert_ok(manifest_seal(&n, folder, &err));
}

static void copy_file(const char *from, const char *to)
{
	char *bytes = NULL;
	size_t count = 0;
	struct err err = { 0 };
	assert_ok(file_read(from, 1 << 20, &bytes, &count, &err));
	FILE *out = fopen(to, "we");
	assert_non_null(out);
	assert_int_equal(fwrite(bytes, 1, count, out), count);
	assert_int_equal(fclose(out), 0);
	free(bytes);
}

#define SHARD(n) "checkpoints/step-3/shard-0000" n "-of-00004.safetensors"

static void a_shard_that_is_torn_or_missing_is_named(void **state)
{
	struct fixture f;
	struct job_spec spec = spec_of("llama");
	struct life_job job = life_job_of(&f, &spec);
	struct stat st;
	(void)state;
	job.before = BEFORE;
	job.checkpoints = fresh_folder("checkpoints");
	life_run(&job, SAVERS, 1, first);
	job.before = 0;
	job.checkpoints = NULL;
	copy_file(path_of(SHARD("3")), path_of("kept"));
	assert_int_equal(stat(path_of(SHARD("3")), &st), 0);

	assert_int_equal(truncate(path_of(SHARD("3")), st.st_size - 2), 0);
	refused(&job, "shard-00003-of-00004.safetensors");
	vouch("");
	refused(&job, "shard-00003-of-00004.safetensors");
	copy_file(path_of("kept"), path_of(SHARD("3")));
	FILE *flip = fopen(path_of(SHARD("3")), "r+e");
	assert_int_equal(fseek(flip, -1, SEEK_END), 0);
	int last = fgetc(flip);
	assert_int_equal(fseek(flip, -1, SEEK_END), 0);
	assert_true(fputc(last ^ 1, flip) >= 0);
	assert_int_equal(fclose(flip), 0);
	refused(&job, "shard-00003-of-00004.safetensors");
	copy_file(path_of(SHARD("2")), path_of(SHARD("3")));
	vouch("");
	refused(&job, "another piece has it too");
	vouch("shard-00003-of-00004.safetensors");
	refused(&job, "lacks shard-00003-of-00004.safetensors");
	assert_int_equal(unlink(path_of(SHARD("3"))), 0);
	refused(&job, "lacks shard-00003-of-00004.safetensors");
	life_forget(&f);
}

/* ------------------------------------------------------------------------------ while saving */

static void save_often(struct rank *r)
{
	const struct life_job *job = r->all->arg;
	struct err err = { 0 };
	struct session *s = NULL;
	struct saver *saver = NULL;
	struct session_inputs inputs = job->inputs;
	struct mesh *mesh = inputs.mesh = life_join(r, &job->spec);
	RANK_OK(session_open(&job->spec, &inputs, &s, &err));
	struct hf_model model = session_model(s);
	RANK_OK(saver_create(&model, &saver, &err));
	for (int i = 1; i <= SAVES; i++) {
		(void)life_step(s);
		RANK_OK(saver_begin(saver, &s->metrics, job->checkpoints, &err));
		RANK_OK(saver_finish(saver, NULL, NULL, &err));
		if (i == 5)
			life_of(r)->memory_kib[r->rank][0] = fixture_memory_kib("VmHWM:");
	}
	life_of(r)->memory_kib[r->rank][1] = fixture_memory_kib("VmHWM:");
	saver_destroy(saver);
	session_close(s);
	mesh_close(mesh);
}

static void twenty_saves_take_no_more_than_five(void **state)
{
	struct fixture f;
	struct job_spec spec = spec_of("gpt2");
	struct life_job job = life_job_of(&f, &spec);
	(void)state;
	job.checkpoints = fresh_folder("checkpoints");
	life_mesh(&job, SAVERS, 3);
	memset(first, 0, sizeof(*first));
	fixture_run(SAVERS, save_often, &job, first);
#if !defined(__SANITIZE_ADDRESS__) /* it keeps what was freed */
	for (int r = 0; r < SAVERS; r++)
		if (first->memory_kib[r][1] - first->memory_kib[r][0] > GROWTH_KIB_MAX)
			fail_msg("rank %d: %lld KiB after five saves, %lld after %d", r,
				(long long)first->memory_kib[r][0], (long long)first->memory_kib[r][1], SAVES);
#endif
	life_forget(&f);
}

/* A model of 36 MiB, of which a rank keeps half. */
static void export_twice(struct rank *r)
{
	const struct life_job *job = r->all->arg;
	struct err err = { 0 };
	struct session *s = NULL;
	struct session_inputs inputs = job->inputs;
	struct mesh *mesh = inputs.mesh = life_join(r, &job->spec);
	RANK_OK(session_open(&job->spec, &inputs, &s, &err));
	(void)life_step(s);
	for (int i = 0; i < 2; i++) {
		/* The first time the rings between the ranks are touched. */
		fixture_memory_reset();
		life_of(r)->memory_kib[r->rank][0] = fixture_memory_kib("VmHWM:");
		RANK_OK(session_write_model(s, job->model, &err));
		life_of(r)->memory_kib[r->rank][1] = fixture_memory_kib("VmHWM:");
	}
	session_close(s);
	mesh_close(mesh);
}

static void an_export_takes_a_block_more(void **state)
{
	struct fixture f;
	struct job_spec spec = spec_of("mlp");
	(void)state;
	spec.model.hidden[0] = spec.model.hidden[1] = 3000;
	spec.model.hidden_count = 2;
	struct life_job job = life_job_of(&f, &spec);
	job.model = path_of("large");
	life_mesh(&job, 2, 3);
	memset(first, 0, sizeof(*first));
	fixture_run(2, export_twice, &job, first);
	struct stat st;
	assert_int_equal(stat(path_of("large/model.safetensors"), &st), 0);
	assert_true(st.st_size > 32 << 20);
#if !defined(__SANITIZE_ADDRESS__)
	for (int r = 0; r < 2; r++)
		if (first->memory_kib[r][1] - first->memory_kib[r][0] > (8 << 10))
			fail_msg("rank %d: %lld KiB before, %lld during an export", r,
				(long long)first->memory_kib[r][0], (long long)first->memory_kib[r][1]);
#endif
	life_forget(&f);
}

/* One rank's disk is full: all hear of it, with the file; and then it is not. */
static void fail_then_save(struct rank *r)
{
	const struct life_job *job = r->all->arg;
	struct err err = { 0 };
	struct session *s = NULL;
	struct saver *saver = NULL;
	struct session_inputs inputs = job->inputs;
	struct mesh *mesh = inputs.mesh = life_join(r, &job->spec);
	RANK_OK(session_open(&job->spec, &inputs, &s, &err));
	struct hf_model model = session_model(s);
	RANK_OK(saver_create(&model, &saver, &err));
	(void)life_step(s);
	struct rlimit before, few;
	RANK_CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
	few = before;
	few.rlim_cur = 1000;
	signal(SIGXFSZ, SIG_IGN);
	RANK_CHECK(r->rank != 2 || setrlimit(RLIMIT_FSIZE, &few) == 0);
	RANK_OK(saver_begin(saver, &s->metrics, job->checkpoints, &err));
	int code = saver_finish(saver, NULL, NULL, &err);
	RANK_CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
	RANK_CHECK(code == ERR_IO && strstr(err.message, "rank 2: ") != NULL);
	RANK_CHECK(strstr(err.message, "shard-00003-of-00004.safetensors") != NULL);
	RANK_CHECK(!file_exists(job->model));
	RANK_OK(saver_begin(saver, &s->metrics, job->checkpoints, &err));
	RANK_OK(saver_finish(saver, NULL, NULL, &err));
	RANK_CHECK(file_exists(job->model));
	saver_destroy(saver);
	session_close(s);
	mesh_close(mesh);
}

static void what_one_rank_cannot_write_all_hear_of(void **state)
{
	struct fixture f;
	struct job_spec spec = spec_of("gpt2");
	struct life_job job = life_job_of(&f, &spec);
	(void)state;
	job.checkpoints = fresh_folder("checkpoints");
	job.model = path_of("checkpoints/step-1");
	life_mesh(&job, SAVERS, 2);
	fixture_run(SAVERS, fail_then_save, &job, NULL);
	life_forget(&f);
}

/* As the loop does it: steps go on while a checkpoint is written, old ones go. Ends when a rank is
 * lost. */
static void save_for_ever(struct rank *r)
{
	const struct life_job *job = r->all->arg;
	struct err err = { 0 };
	struct session *s = NULL;
	struct session_inputs inputs = job->inputs;
	struct mesh *mesh = inputs.mesh = life_join(r, &job->spec);
	RANK_OK(session_open(&job->spec, &inputs, &s, &err));
	struct hf_model model = session_model(s);
	struct life_watch watch = { .plan = s->plan };
	RANK_OK(saver_create(&model, &watch.saver, &err));
	engine_trace(s->engine, life_hold, &watch);
	int rc = 0;
	for (int64_t count = 0; rc == 0; count++) {
		struct engine_step now;
		char old[CHECKPOINT_NAME_MAX];
		rc = engine_step(s->engine, &now, &err);
		if (rc == 0 && saver_busy(watch.saver))
			rc = saver_finish(watch.saver, NULL, NULL, &err);
		if (rc == 0)
			rc = saver_begin(watch.saver, &s->metrics, job->checkpoints, &err);
		checkpoint_name(count - KEPT, old);
		if (rc == 0 && r->rank == 0 && count > KEPT)
			rc = folder_retire(job->checkpoints, old, &err);
	}
	saver_destroy(watch.saver);
	session_close(s);
	mesh_close(mesh);
	/* Not a word of a file: a rank was lost. */
	RANK_CHECK(rc == ERR_NETWORK || rc == ERR_CANCELLED);
}

/* Every published folder is whole. Returns the newest's step. */
static int64_t check_whole(const char *parent)
{
	struct err err = { 0 };
	int64_t newest = 0;
	DIR *d = opendir(parent);
	struct dirent *e;
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		struct manifest m;
		char path[FILE_PATH_MAX];
		if (strncmp(e->d_name, "step-", 5) != 0)
			continue;
		assert_ok(file_join(path, parent, e->d_name, &err));
		assert_ok(manifest_verify(path, &m, &err));
		newest = m.step > newest ? m.step : newest;
	}
	closedir(d);
	return newest;
}

static void a_rank_killed_while_saving_leaves_whole_checkpoints(void **state)
{
	struct fixture f;
	struct check_random random = check_random_start();
	struct job_spec spec = spec_of("gpt2");
	struct life_job job = life_job_of(&f, &spec);
	char name[64];
	(void)state;
	for (int round = 0; round < KILLS; round++) {
		const int victim = round % 2 == 0 ? 0 : 1 + round / 2 % (SAVERS - 1); /* rank 0 publishes */
		struct ranks all = { .size = SAVERS, .body = save_for_ever, .arg = &job, .shared = first };
		job.inputs.resume_dir = NULL;
		job.checkpoints = fresh_folder("checkpoints");
		const char *one = path_of("checkpoints/step-1");
		life_mesh(&job, SAVERS, 1 + round % 3);
		fixture_start(&all);
		for (int i = 0; i < FIXTURE_PROMPT_MS && !file_exists(one); i++)
			poll(NULL, 0, 1);
		poll(NULL, 0, (int)check_random_range(&random, 0, KILL_MS_MAX));
		kill(all.pids[victim], SIGKILL);
		fixture_finish(&all, victim);
		int64_t newest = check_whole(job.checkpoints);
		assert_true(newest > 0);
		snprintf(name, sizeof(name), "checkpoints/step-%lld", (long long)newest);
		job.inputs.resume_dir = path_of(name);
		job.before = job.after = 1; /* and saves over what was left */
		life_run(&job, 2, 3, second);
		assert_int_equal(second->opened.engine.step, newest);
		assert_int_equal(check_whole(job.checkpoints), newest + 1);
		job.before = job.after = 0;
	}
	life_forget(&f);
}

int main(int argc, char **argv)
{
	static char narrow[][24] = { "gpt2", "gpt2-lora" };
	static char whole[][24] = { "gpt2", "gpt2-lora", "llama", "cnn", "resnet-bottleneck", "mlp",
		"dlrm" };
	static char names[2][64];
	struct CMUnitTest tests[32] = {
		cmocka_unit_test(files_are_read_by_ranges),
		cmocka_unit_test(ranks_without_a_common_folder_send_to_the_first),
		cmocka_unit_test(a_shard_that_is_torn_or_missing_is_named),
		cmocka_unit_test(twenty_saves_take_no_more_than_five),
		cmocka_unit_test(an_export_takes_a_block_more),
		cmocka_unit_test(what_one_rank_cannot_write_all_hear_of),
		cmocka_unit_test(a_rank_killed_while_saving_leaves_whole_checkpoints),
	};
	size_t n = 7;
	life_start();
	for (size_t i = 0; i < ARRAY_LEN(whole); i++)
		tests[n++] = (struct CMUnitTest){ whole[i], one_case, NULL, NULL, whole[i] };
	for (size_t i = 0; i < ARRAY_LEN(narrow); i++) {
		snprintf(names[i], sizeof(names[i]), "%s-16bit", narrow[i]);
		tests[n++] = (struct CMUnitTest){ names[i], narrow_case, NULL, NULL, narrow[i] };
	}
	return life_main("parallel_checkpoint", tests, n, argc, argv);
}
