/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints of ranks that keep columns, rows or heads of a matrix, with and without ZeRO, or the
 * layers of a stage: any other mesh takes them up with the same bits and goes on, and the model
 * that they write is one rank's. argv: the name of one test. */
#include "tests/parallel/checkpoint_compare.h"

#include "workers/trainer/safetensors.h"

/* data, tensor, pipeline, ZeRO */
static const struct spec_parallel alone = { 1, 1, 1, 0, 0, 0 };
static const struct spec_parallel savers[] = { { 1, 2, 1, 0, 0, 0 }, { 1, 4, 1, 0, 0, 0 },
	{ 2, 2, 1, 0, 0, 0 }, { 2, 2, 1, 3, 0, 0 }, { 4, 2, 1, 1, 0, 0 }, { 2, 4, 1, 2, 0, 0 },
	{ 1, 1, 2, 0, 0, 0 }, { 2, 1, 2, 2, 0, 0 }, { 1, 2, 2, 0, 0, 0 }, { 2, 2, 2, 1, 0, 0 } };
static const struct spec_parallel readers[] = { { 1, 2, 1, 0, 0, 0 }, { 2, 1, 1, 2, 0, 0 },
	{ 1, 4, 1, 0, 0, 0 }, { 1, 1, 2, 0, 0, 0 }, { 8, 1, 1, 3, 0, 0 }, { 2, 4, 1, 1, 0, 0 },
	{ 2, 2, 2, 3, 0, 0 }, { 2, 2, 1, 3, 0, 0 }, { 4, 2, 1, 0, 0, 0 }, { 2, 1, 2, 1, 0, 0 } };

/* With as many heads as any mesh has tensor ranks. */
static struct life_job job_of(struct fixture *f, const char *name)
{
	struct job_spec spec = spec_of(name);
	spec.model.n_head = 4;
	if (spec.model.family == SPEC_LLAMA)
		spec.model.n_kv_head = 4;
	return life_job_of(f, &spec);
}

static const char *words_of(const struct spec_parallel *p)
{
	static char words[4][64];
	static int next;
	char *w = words[next++ % 4];
	snprintf(w, sizeof(words[0]), "data %lld tensor %lld pipeline %lld ZeRO %lld",
		(long long)p->data, (long long)p->tensor, (long long)p->pipeline, (long long)p->zero_stage);
	return w;
}

static bool same_mesh(const struct spec_parallel *a, const struct spec_parallel *b)
{
	return a->data == b->data && a->tensor == b->tensor && a->pipeline == b->pipeline &&
		a->zero_stage == b->zero_stage;
}

static void save_on(struct life_job *job, const struct spec_parallel *p)
{
	char shard[64];
	job->before = BEFORE;
	job->after = AFTER;
	job->checkpoints = fresh_folder("checkpoints");
	job->model = path_of("trained");
	life_run_on(job, *p, first);
	snprintf(shard, sizeof(shard), "checkpoints/step-%d/shard-00001-of-%05d.safetensors", BEFORE,
		(int)job->spec.device_count);
	assert_int_equal(file_exists(path_of(shard)), job->elsewhere == NULL && !same_mesh(p, &alone));
	job->checkpoints = NULL;
	job->model = NULL;
}

/* The checkpoint of the first run on this mesh: state, losses, and the model of that state. */
static void resume_on(struct life_job *job, const char *name, const struct spec_parallel *from,
	struct spec_parallel to)
{
	char what[256];
	snprintf(what, sizeof(what), "%s, from %s to %s", name, words_of(from), words_of(&to));
	job->before = 0;
	job->after = AFTER;
	job->inputs.resume_dir = path_of("checkpoints/step-3");
	life_run_on(job, to, second);
	same_state(what, &first->saved, &second->opened);
	same_losses(what, first, second, same_mesh(from, &to) ? 0 : 1e-6);
	job->after = 0;
	job->model = path_of(same_mesh(&alone, &to) ? "one" : "many");
	life_run_on(job, to, second);
	same_model(what, path_of("one"), job->model);
	job->model = NULL;
	job->inputs.resume_dir = NULL;
}

/* Two trainings whose sums came in other orders. */
static void near_model(const char *what, const char *a, const char *b, const char *stem)
{
	struct safetensors *x = NULL, *y = NULL;
	struct err err = { 0 };
	char path[2][FILE_PATH_MAX];
	double diff = 0, size = 0;
	snprintf(path[0], sizeof(path[0]), "%s/%s.safetensors", a, stem);
	snprintf(path[1], sizeof(path[1]), "%s/%s.safetensors", b, stem);
	assert_ok(safetensors_open(path[0], &x, &err));
	assert_ok(safetensors_open(path[1], &y, &err));
	assert_int_equal(safetensors_count(x), safetensors_count(y));
	for (int i = 0; i < safetensors_count(x); i++) {
		const struct safetensors_tensor *s = safetensors_at(x, i), *t = safetensors_at(y, i);
		assert_string_equal(s->name, t->name);
		assert_string_equal(s->dtype, "F32");
		assert_int_equal(s->bytes, t->bytes);
		for (int64_t k = 0; k < s->bytes / 4; k++) {
			double u = ((const float *)s->data)[k], v = ((const float *)t->data)[k];
			diff += (u - v) * (u - v);
			size += u * u;
		}
	}
	if (!(sqrt(diff / size) <= 1e-3))
		fail_msg("%s: the models differ by %.3g", what, sqrt(diff / size));
	safetensors_close(x);
	safetensors_close(y);
}

static void one_case(void **state)
{
	const char *name = *state;
	struct fixture f;
	struct life_job job = job_of(&f, name);
	const char *stem = job.spec.lora.rank > 0 ? "adapter_model" : "model";
	struct err err = { 0 };
	save_on(&job, &alone);
	assert_ok(file_remove_tree(path_of("reference"), &err));
	assert_int_equal(rename(path_of("trained"), path_of("reference")), 0);
	for (size_t i = 0; i < ARRAY_LEN(savers); i++) {
		const struct spec_parallel *from = &savers[i];
		save_on(&job, from);
		near_model(words_of(from), path_of("reference"), path_of("trained"), stem);
		resume_on(&job, name, from, alone);
		resume_on(&job, name, from, *from);
		for (size_t k = 0; k < 3; k++)
			resume_on(&job, name, from, readers[(i + 2 * k) % ARRAY_LEN(readers)]);
	}
	/* And the files of one rank. */
	save_on(&job, &alone);
	resume_on(&job, name, &alone, alone);
	for (size_t k = 0; k < ARRAY_LEN(readers); k++)
		resume_on(&job, name, &alone, readers[k]);
	life_forget(&f);
}

/* As on machines that share no disk: rank 0 has it all, in the files of one rank. */
static void ranks_without_a_common_folder_send_to_the_first(void **state)
{
	static const char *const names[] = { "gpt2", "llama" };
	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(names); n++) {
		struct fixture f;
		struct life_job job = job_of(&f, names[n]);
		for (size_t i = 0; i < ARRAY_LEN(savers); i += 3) {
			job.elsewhere = fresh_folder("elsewhere");
			save_on(&job, &savers[i]);
			job.elsewhere = NULL;
			assert_int_equal(rmdir(path_of("elsewhere")), 0); /* empty */
			assert_true(file_exists(path_of("checkpoints/step-3/optimizer.safetensors")));
			resume_on(&job, names[n], &savers[i], alone);
			resume_on(&job, names[n], &savers[i], savers[i]);
			resume_on(&job, names[n], &savers[i], readers[i]);
		}
		life_forget(&f);
	}
}

/* Weights of one rank as the start of a mesh's training. */
static void files_are_read_in_parts(void **state)
{
	struct fixture f;
	struct life_job job = job_of(&f, "gpt2");
	(void)state;
	job.model = path_of("init");
	life_run_on(&job, alone, first);
	job.model = NULL;
	job.spec.seed++; /* so that fresh weights would be others */
	job.inputs.init_dir = path_of("init");
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		life_run_on(&job, readers[i], second);
		first->opened.engine = second->opened.engine; /* of another seed */
		same_state(words_of(&readers[i]), &first->opened, &second->opened);
	}
	life_forget(&f);
}

int main(int argc, char **argv)
{
	static char names[][24] = { "gpt2", "gpt2-lora", "llama" };
	struct CMUnitTest tests[8] = {
		cmocka_unit_test(files_are_read_in_parts),
		cmocka_unit_test(ranks_without_a_common_folder_send_to_the_first),
	};
	size_t n = 2;
	life_start();
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		tests[n++] = (struct CMUnitTest){ names[i], one_case, NULL, NULL, names[i] };
	return life_main("parallel_checkpoint_cut", tests, n, argc, argv);
}
