/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/gather.c and hf_weights_ranks.c with made-up tensors on ranks that are
 * processes: what any mesh keeps comes to rank 0 whole, is written as one rank would, and is read
 * back in parts, where a tensor that no rank has is told from one that another has. */
#include "tests/unit/workers/comm/comm_fixture.h"
#include "tests/unit/workers/trainer/parts_fixture.h"

#include "workers/engine/mesh.h"
#include "workers/trainer/gather.h"
#include "workers/trainer/safetensors.h"

enum {
	ROUNDS = 12,
	SLACK_KIB = 1024,
	SHORT_DEADLINE_MS = 300, /* of ranks that compute */
};

static char dir[64];

struct job {
	struct parts_model model;
	struct plan_mesh mesh;
	int hidden;   /* rank 1 does not say that it has its part of this tensor; -1: it says all */
	bool foreign; /* the file has a tensor that no rank has */
	bool slow;    /* rank 0 writes for longer than ranks that compute would wait */
};

static const struct spec_model family = { .family = SPEC_MLP };

static struct mesh joined(struct rank *r, const struct job *job)
{
	return (struct mesh){ .place = parts_place(&job->mesh, r->rank),
		.save =
			fixture_group(r, "save", true, job->slow ? SHORT_DEADLINE_MS : FIXTURE_DEADLINE_MS) };
}

static void take_all(struct gather *g, const struct job *job)
{
	struct err err = { 0 };
	const struct hf_weights *w = gather_tensors(g);
	RANK_CHECK(w->count == job->model.count);
	for (int i = 0; i < w->count; i++) {
		struct engine_tensor t = w->list[i];
		const struct engine_tensor *want = &job->model.tensors[i].whole;
		RANK_CHECK(strcmp(t.name, want->name) == 0 && strcmp(t.dtype, want->dtype) == 0);
		RANK_CHECK(t.count == want->count && t.bytes == want->bytes);
		RANK_CHECK(memcmp(t.shape, want->shape, sizeof(t.shape)) == 0);
		t.data = fixture_alloc(t.bytes);
		for (int64_t at = 0, bytes = 0; at < t.bytes; at += bytes) {
			const void *data = NULL;
			RANK_OK(gather_next(g, i, at, &data, &bytes, &err));
			RANK_CHECK(bytes > 0 && bytes <= GATHER_BLOCK_BYTES && at + bytes <= t.bytes);
			memcpy((char *)t.data + at, data, (size_t)bytes);
		}
		int64_t wrong = parts_wrong(&t);
		if (wrong >= 0)
			fprintf(stderr, "element %lld of %s is wrong\n", (long long)wrong, t.name);
		RANK_CHECK(wrong < 0);
		free(t.data);
	}
}

/* As a disk does. */
static void work(int64_t ms)
{
	int64_t begin = fixture_now_ms();
	while (fixture_now_ms() - begin < ms)
		usleep(1000);
}

static void gather_rank(struct rank *r)
{
	const struct job *job = r->all->arg;
	struct err err = { 0 };
	struct mesh mesh = joined(r, job);
	struct hf_weights w = parts_weights(&job->model, &mesh.place, true);
	struct gather *g = NULL;
	RANK_OK(gather_create(&mesh, &w, &g, &err));
	if (r->rank == 0 && job->slow)
		work(4 * (int64_t)SHORT_DEADLINE_MS);
	if (r->rank == 0)
		take_all(g, job);
	else
		for (int i = 0; i < gather_tensors(g)->count; i++)
			RANK_OK(gather_send(g, i, &err));
	gather_destroy(g);
	parts_free(&w);
	comm_close(mesh.save);
}

static void any_mesh_comes_together(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct job job = { .mesh = parts_mesh(&r), .hidden = -1 };
		parts_random(&r, &job.model);
		if (round % 4 == 0) { /* of several blocks, cut in each way */
			struct parts_tensor *x = &job.model.tensors[round / 4];
			parts_shape(x, 2, 1030, 2100, 1, 1);
			x->cut_dim = round / 4 % 2;
			x->blocks = 1 + round % 3 % 2;
		}
		print_message("data %d tensor %d pipeline %d zero %d\n", job.mesh.data, job.mesh.tensor,
			job.mesh.pipeline, job.mesh.zero);
		fixture_run(plan_mesh_size(&job.mesh), gather_rank, &job, NULL);
	}
}

/* Twice: the first time the rings between the ranks are touched. */
static void measured_rank(struct rank *r)
{
	const struct job *job = r->all->arg;
	struct err err = { 0 };
	struct mesh mesh = joined(r, job);
	struct hf_weights w = parts_weights(&job->model, &mesh.place, true);
	for (int round = 0; round < 2; round++) {
		struct gather *g = NULL;
		fixture_memory_reset();
		int64_t before = fixture_memory_kib("VmHWM:");
		RANK_OK(gather_create(&mesh, &w, &g, &err));
		const struct engine_tensor *t = &gather_tensors(g)->list[0];
		for (int64_t at = 0, bytes = 0; r->rank == 0 && at < t->bytes; at += bytes) {
			const void *data = NULL;
			RANK_OK(gather_next(g, 0, at, &data, &bytes, &err));
		}
		if (r->rank > 0)
			RANK_OK(gather_send(g, 0, &err));
		gather_destroy(g);
#if !defined(__SANITIZE_ADDRESS__)
		int64_t more = fixture_memory_kib("VmHWM:") - before;
		int64_t blocks = r->rank == 0 ? 2 : 0;
		if (round == 1 && more > blocks * (GATHER_BLOCK_BYTES >> 10) + SLACK_KIB)
			fprintf(stderr, "rank %d: %lld KiB more\n", r->rank, (long long)more);
		RANK_CHECK(round == 0 || more <= blocks * (GATHER_BLOCK_BYTES >> 10) + SLACK_KIB);
#else
		(void)before;
#endif
	}
	parts_free(&w);
	comm_close(mesh.save);
}

static void a_large_tensor_takes_two_blocks(void **state)
{
	struct job job = { .mesh = { .data = 1, .tensor = 2, .pipeline = 1 }, .hidden = -1 };
	struct parts_tensor *x = parts_add(&job.model, ENGINE_PARAMETER, PLAN_F32);
	(void)state;
	parts_shape(x, 2, 3000, 4000, 1, 1); /* 46 MiB */
	x->cut_dim = 1;
	fixture_run(2, measured_rank, &job, NULL);
}

/* What a rank sends first may have to wait until rank 0 has written all that others had before. */
static void ranks_wait_for_the_disk(void **state)
{
	struct job job = {
		.mesh = { .data = 1, .tensor = 2, .pipeline = 1 }, .hidden = -1, .slow = true
	};
	struct parts_tensor *x = parts_add(&job.model, ENGINE_PARAMETER, PLAN_F32);
	(void)state;
	parts_shape(x, 2, 300, 400, 1, 1);
	x->cut_dim = 1;
	fixture_run(2, gather_rank, &job, NULL);
}

/* All hear of it, and none waits for the other. */
static void incomplete_rank(struct rank *r)
{
	const struct job *job = r->all->arg;
	struct err err = { 0 };
	struct mesh mesh = joined(r, job);
	struct hf_weights w = parts_weights(&job->model, &mesh.place, true);
	struct gather *g = NULL;
	if (r->rank == 1)
		w.list[job->hidden].copy = 1; /* as if another had it */
	RANK_CHECK(gather_create(&mesh, &w, &g, &err) < 0);
	RANK_CHECK(r->rank != 0 || err.code == ERR_INTERNAL);
	RANK_CHECK(r->rank != 0 || strstr(err.message, "t.1 is not the whole of it") != NULL);
	parts_free(&w);
	comm_close(mesh.save);
}

static void what_no_rank_has_is_told_at_once(void **state)
{
	struct job job = { .mesh = { .data = 1, .tensor = 3, .pipeline = 1 }, .hidden = 1 };
	(void)state;
	for (int i = 0; i < 3; i++) {
		struct parts_tensor *x = parts_add(&job.model, ENGINE_PARAMETER, PLAN_F32);
		parts_shape(x, 2, 6, 6, 1, 1);
		x->cut_dim = 1;
	}
	fixture_run(3, incomplete_rank, &job, NULL);
}

/* ------------------------------------------------------------------------------ files */

static const char *file_of(const char *name)
{
	static char path[FILE_PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void write_rank(struct rank *r)
{
	const struct job *job = r->all->arg;
	struct err err = { 0 };
	struct folder f;
	struct mesh mesh = joined(r, job);
	struct hf_weights w = parts_weights(&job->model, &mesh.place, true);
	struct hf_weights_options o = { 0 };
	RANK_OK(gather_create(&mesh, &w, &o.gather, &err));
	if (r->rank == 0)
		RANK_OK(folder_begin(&f, dir, ".writing", "many", 0, &err));
	RANK_OK(hf_weights_write(&w, "model", &o, r->rank == 0 ? &f : NULL, &err));
	if (r->rank == 0)
		RANK_OK(folder_publish(&f, &err));
	gather_destroy(o.gather);
	parts_free(&w);
	comm_close(mesh.save);
}

static void write_alone(const struct parts_model *model, const char *name)
{
	const struct plan_mesh alone = { .data = 1, .tensor = 1, .pipeline = 1 };
	struct hf_weights w = parts_weights(model, &alone, true);
	struct hf_weights_options o = { 0 };
	struct folder f;
	struct err err = { 0 };
	assert_int_equal(folder_begin(&f, dir, ".writing", name, 0, &err), 0);
	assert_int_equal(hf_weights_write(&w, "model", &o, &f, &err), 0);
	assert_int_equal(folder_publish(&f, &err), 0);
	parts_free(&w);
}

/* Each takes its part, and only the own. */
static void read_rank(struct rank *r)
{
	const struct job *job = r->all->arg;
	struct err err = { 0 };
	struct mesh mesh = joined(r, job);
	struct hf_weights w = parts_weights(&job->model, &mesh.place, false);
	if (job->mesh.pipeline > 1)
		RANK_OK(hf_weights_meet(mesh.save, &w, &err));
	int rc = hf_weights_read(&w, file_of("one"), "model", &family, false, &err);
	if (job->foreign) {
		RANK_CHECK(rc == ERR_INVALID_DATA);
		RANK_CHECK(strstr(err.message,
					   "model.safetensors has the tensor foreign, which the model "
					   "does not have") != NULL);
	} else {
		RANK_OK(rc);
		for (int i = 0; i < w.count; i++)
			RANK_CHECK(w.list[i].kind != ENGINE_PARAMETER || parts_wrong(&w.list[i]) < 0);
	}
	parts_free(&w);
	comm_close(mesh.save);
}

static bool same_files(const char *name)
{
	struct err err = { 0 };
	char *a = NULL, *b = NULL, path[FILE_PATH_MAX];
	size_t a_bytes = 0, b_bytes = 0;
	snprintf(path, sizeof(path), "%s/one/%s", dir, name);
	assert_int_equal(file_read(path, 1 << 26, &a, &a_bytes, &err), 0);
	snprintf(path, sizeof(path), "%s/many/%s", dir, name);
	assert_int_equal(file_read(path, 1 << 26, &b, &b_bytes, &err), 0);
	bool same = a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
	free(a);
	free(b);
	return same;
}

static void files_are_those_of_one_rank(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct job job = { .mesh = parts_mesh(&r), .hidden = -1 };
		parts_random(&r, &job.model);
		print_message("data %d tensor %d pipeline %d zero %d\n", job.mesh.data, job.mesh.tensor,
			job.mesh.pipeline, job.mesh.zero);
		write_alone(&job.model, "one");
		fixture_run(plan_mesh_size(&job.mesh), write_rank, &job, NULL);
		assert_true(same_files("model.safetensors"));
		job.mesh = parts_mesh(&r);
		fixture_run(plan_mesh_size(&job.mesh), read_rank, &job, NULL);
	}
}

static void a_tensor_that_no_rank_has_is_refused(void **state)
{
	struct job job = { .mesh = { .data = 1, .tensor = 2, .pipeline = 2 }, .hidden = -1 };
	struct parts_model more;
	(void)state;
	for (int i = 0; i < 5; i++)
		parts_shape(parts_add(&job.model, ENGINE_PARAMETER, PLAN_F32), 2, 6, 4, 1, 1);
	more = job.model;
	write_alone(&more, "one");
	fixture_run(4, read_rank, &job, NULL);
	struct parts_tensor *x = parts_add(&more, ENGINE_PARAMETER, PLAN_F32);
	parts_shape(x, 1, 3, 1, 1, 1);
	snprintf(x->whole.name, sizeof(x->whole.name), "foreign");
	write_alone(&more, "one");
	job.foreign = true;
	fixture_run(4, read_rank, &job, NULL);
	job.mesh.pipeline = 1;
	fixture_run(2, read_rank, &job, NULL);
}

int main(void)
{
	struct err err = { 0 };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_mesh_comes_together),
		cmocka_unit_test(a_large_tensor_takes_two_blocks),
		cmocka_unit_test(ranks_wait_for_the_disk),
		cmocka_unit_test(what_no_rank_has_is_told_at_once),
		cmocka_unit_test(files_are_those_of_one_rank),
		cmocka_unit_test(a_tensor_that_no_rank_has_is_refused),
	};
	snprintf(dir, sizeof(dir), "/tmp/gather_test_XXXXXX");
	if (mkdtemp(dir) == NULL)
		return 1;
	int failed = cmocka_run_group_tests_name("gather", tests, NULL, NULL);
	return file_remove_tree(dir, &err) < 0 ? 1 : failed;
}
