/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/shards.c and shards_read.c with made-up tensors: what the ranks of any mesh
 * write, those of any other read; and pieces that do not make up a tensor are refused, with file,
 * tensor and element. */
#include "tests/unit/workers/trainer/parts_fixture.h"

#include "core/base/file.h"
#include "workers/trainer/shards.h"

#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 60, READERS = 3, PIECES_MAX = 64 };

static char dir[64];

static const char *path_of(const char *name)
{
	static char path[FILE_PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

/* One rank's file. Returns its bytes. */
static int64_t write_rank(
	struct manifest *m, int rank, int size, const struct safetensors_tensor *list, int count)
{
	struct err err = { 0 };
	int64_t bytes = 0;
	struct manifest_file *f = &m->files[m->count++];
	shards_name(rank, size, f->name);
	(void)unlink(path_of(f->name)); /* of the last round */
	if (safetensors_write(path_of(f->name), list, count, &err) < 0)
		fail_msg("%s", err.message);
	for (int i = 0; i < count; i++)
		bytes += list[i].bytes;
	return bytes;
}

/* All of a mesh. Returns the bytes of all. */
static int64_t write_mesh(
	const struct parts_model *model, const struct plan_mesh *mesh, struct manifest *ret)
{
	struct err err = { 0 };
	const int size = plan_mesh_size(mesh);
	int64_t bytes = 0;
	*ret = (struct manifest){ 0 };
	for (int r = 0; r < size; r++) {
		struct plan_mesh place = parts_place(mesh, r);
		struct hf_weights w = parts_weights(model, &place, true);
		struct safetensors_tensor *list = NULL;
		int count = 0;
		assert_int_equal(shards_list(&w, false, &list, &count, &err), 0);
		bytes += write_rank(ret, r, size, list, count);
		free(list);
		parts_free(&w);
	}
	return bytes;
}

static void read_mesh(
	const struct parts_model *model, const struct plan_mesh *mesh, const struct manifest *m)
{
	for (int r = 0; r < plan_mesh_size(mesh); r++) {
		struct err err = { 0 };
		struct plan_mesh place = parts_place(mesh, r);
		struct hf_weights w = parts_weights(model, &place, false);
		struct shards *s = NULL;
		if (shards_open(dir, m, &s, &err) < 0)
			fail_msg("%s", err.message);
		for (int i = 0; i < w.count; i++) {
			if (shards_load(s, &w.list[i], &err) < 0)
				fail_msg("%s", err.message);
			int64_t wrong = parts_wrong(&w.list[i]);
			if (wrong >= 0)
				fail_msg(
					"rank %d: element %lld of %s is wrong", r, (long long)wrong, w.list[i].name);
		}
		if (mesh->pipeline == 1)
			assert_int_equal(shards_check_used(s, &w, &err), 0);
		else if (w.count < model->count) /* and nobody has said that others have the rest */
			assert_int_equal(shards_check_used(s, &w, &err), ERR_INVALID_DATA);
		shards_close(s);
		parts_free(&w);
	}
}

static void any_mesh_reads_what_any_other_wrote(void **state)
{
	struct check_random r = check_random_start();
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct parts_model model;
		struct manifest m;
		int64_t bytes = 0;
		parts_random(&r, &model);
		if (round % 4 == 0) { /* written in parts by those that share it */
			parts_shape(&model.tensors[0], 2, 400, 900, 1, 1);
			model.tensors[0].cut_dim = round % 3 - 1;
			model.tensors[0].blocks = 1;
		}
		for (int i = 0; i < model.count; i++)
			bytes += model.tensors[i].whole.bytes;
		const struct plan_mesh writers = parts_mesh(&r);
		assert_int_equal(write_mesh(&model, &writers, &m), bytes); /* each element once */
		for (int k = 0; k < READERS; k++) {
			const struct plan_mesh readers =
				k == 0 ? (struct plan_mesh){ 1, 1, 1, 0, 0, 0, 0 } : parts_mesh(&r);
			print_message("round %d: data %d tensor %d pipeline %d zero %d to %d %d %d %d\n", round,
				writers.data, writers.tensor, writers.pipeline, writers.zero, readers.data,
				readers.tensor, readers.pipeline, readers.zero);
			read_mesh(&model, &readers, &m);
		}
	}
}

/* What several keep alike is written by all of them in equal parts. */
static void the_work_is_shared(void **state)
{
	const struct plan_mesh mesh = { .data = 2, .tensor = 4, .pipeline = 1 };
	struct parts_model model = { 0 };
	struct manifest m;
	int64_t bytes = 0, most = 0;
	(void)state;
	parts_shape(parts_add(&model, ENGINE_PARAMETER, PLAN_F32), 2, 1000, 1000, 1, 1);
	for (int i = 0; i < 16; i++)
		parts_shape(parts_add(&model, ENGINE_PARAMETER, PLAN_F32), 1, 1000, 1, 1, 1);
	bytes = write_mesh(&model, &mesh, &m);
	for (int r = 0; r < 8; r++) {
		struct stat st;
		assert_int_equal(stat(path_of(m.files[r].name), &st), 0);
		most = st.st_size > most ? st.st_size : most;
	}
	assert_true(most < bytes / 8 + 8192);
}

/* ------------------------------------------------------------------------------ refused */

struct forged {
	const char *name, *note;
	int64_t count;
};

/* A tensor of 4 x 6 floats from one rank, of which the file has those pieces, and what is said. */
static void refused(const struct forged *pieces, int count, const char *words)
{
	static float data[64];
	struct safetensors_tensor list[2][PIECES_MAX] = { 0 };
	struct parts_model model = { 0 };
	struct manifest m = { 0 };
	struct shards *s = NULL;
	struct err err = { 0 };
	int n[2] = { 0 };
	for (int i = 0; i < count; i++) { /* a file has a name once */
		const int file = n[0] == 0 ? 0 : 1;
		struct safetensors_tensor *t = &list[file][n[file]++];
		*t = (struct safetensors_tensor){ .rank = 1, .shape = { pieces[i].count } };
		t->bytes = pieces[i].count * 4;
		t->data = data;
		snprintf(t->name, sizeof(t->name), "%s", pieces[i].name);
		snprintf(t->dtype, sizeof(t->dtype), "F32");
		snprintf(t->note, sizeof(t->note), "%s", pieces[i].note);
	}
	for (int f = 0; f < 2; f++)
		(void)write_rank(&m, f, 2, list[f], n[f]);
	parts_shape(parts_add(&model, ENGINE_PARAMETER, PLAN_F32), 2, 4, 6, 1, 1);
	const struct plan_mesh alone = { .data = 1, .tensor = 1, .pipeline = 1 };
	struct hf_weights w = parts_weights(&model, &alone, false);
	int rc = shards_open(dir, &m, &s, &err);
	if (rc == 0)
		rc = shards_load(s, &w.list[0], &err);
	if (rc == 0)
		rc = shards_check_used(s, &w, &err);
	if (words == NULL)
		assert_int_equal(rc, 0);
	else if (rc != ERR_INVALID_DATA || strstr(err.message, words) == NULL)
		fail_msg("%d \"%s\" does not say \"%s\"", rc, err.message, words);
	shards_close(s);
	parts_free(&w);
}

#define REFUSED(words, ...)                         \
	refused((const struct forged[]){ __VA_ARGS__ }, \
		sizeof((const struct forged[]){ __VA_ARGS__ }) / sizeof(struct forged), words)

static void pieces_that_are_not_a_tensor_are_refused(void **state)
{
	(void)state;
	REFUSED(NULL, { "t.0", "0 of 4x6", 24 });
	REFUSED(NULL, { "t.0", "0 of 4x6 cut 2/6+0", 8 }, { "t.0", "0 of 4x6 cut 4/6+2", 16 });
	REFUSED(NULL, { "t.0", "0 of 4x6 cut 3/6+3", 12 }, { "t.0", "0 of 4x6 cut 3/6+0", 12 });
	/* missing */
	REFUSED("not element 2", { "t.0", "0 of 4x6 cut 2/6+0", 8 });
	REFUSED("not element 18", { "t.0", "0 of 4x6", 18 });
	REFUSED("none has those from 0 on", { "t.0", "0 of 4x6 cut 4/6+2", 16 });
	REFUSED("shard-00001-of-00002.safetensors goes on with element 4 of t.0, and none has those "
			"from 3 on",
		{ "t.0", "0 of 4x6 cut 2/6+4", 8 }, { "t.0", "0 of 4x6 cut 3/6+0", 12 });
	REFUSED("goes on with element 3 of t.0, and none has those from 7 on",
		{ "t.0", "0 of 4x6 cut 3/6+0", 4 }, { "t.0", "0 of 4x6 cut 3/6+3", 12 });
	/* twice */
	REFUSED("shard-00002-of-00002.safetensors has element 0 of t.0, and another piece has it too",
		{ "t.0", "0 of 4x6 cut 3/6+0", 12 }, { "t.0", "0 of 4x6 cut 3/6+0", 12 });
	REFUSED("has element 3 of t.0, and another piece has it too",
		{ "t.0", "0 of 4x6 cut 4/6+0", 16 }, { "t.0", "0 of 4x6 cut 3/6+3", 12 });
	REFUSED("cut as no other is", { "t.0", "0 of 4x6", 24 },
		{ "t.0", "0 of 4x6 cut 6/6+0", 24 }); /* the same in other words */
	/* of another cut */
	REFUSED("cut as no other is", { "t.0", "0 of 4x6 cut 3/6+0", 12 },
		{ "t.0", "0 of 4x6 cut 6/12+6", 12 });
	/* of another shape */
	REFUSED("the type or shape of t.0", { "t.0", "0 of 6x4", 24 });
	REFUSED("the type or shape of t.0", { "t.0", "0 of 24", 24 });
	/* unknown */
	REFUSED("has the tensor t.7, which the model does not have", { "t.0", "0 of 4x6", 24 },
		{ "t.7", "0 of 4x6", 24 });
}

static void a_place_that_is_none_is_refused(void **state)
{
	static const char *const notes[] = { "", "0", "0 of ", "0 of 4x", "0 of 4x6 ", "-1 of 4x6",
		"1 of 4x6", "0 of 0x6", "0 of 4x6 cut", "0 of 4x6 cut 6/6", "0 of 4x6 cut 0/6+0",
		"0 of 4x6 cut 6/0+0", "0 of 4x6 cut 7/6+0", "0 of 4x6 cut 3/6+4", "0 of 4x6 cut 6/7+0",
		"0 of 4x6 cut 3/6+0", "0 of 4x6 cut 6/6+-1", "0 of 4x6 cut 6/6+0 ", "0 of 1x2x3x4x5",
		"0 of 4294967296x4294967296", "0 of 4x6 cut 99999999999999999999/6+0" };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(notes); i++)
		REFUSED("does not say where its piece of t.0 belongs", { "t.0", notes[i], 24 });
	REFUSED("does not say where", { "t.0", "0 of 4x6 cut 5/7+0", 15 });
}

static void a_file_that_is_torn_is_named(void **state)
{
	const struct plan_mesh mesh = { .data = 1, .tensor = 2, .pipeline = 1 };
	struct check_random r = check_random_start();
	struct parts_model model;
	struct manifest m;
	struct shards *s = NULL;
	struct err err = { 0 };
	struct stat st;
	(void)state;
	parts_random(&r, &model);
	(void)write_mesh(&model, &mesh, &m);
	const char *second = path_of("shard-00002-of-00002.safetensors");
	assert_int_equal(stat(second, &st), 0);
	assert_int_equal(truncate(second, st.st_size - 1), 0);
	assert_int_equal(shards_open(dir, &m, &s, &err), ERR_INVALID_DATA);
	assert_non_null(strstr(err.message, "shard-00002-of-00002.safetensors"));
	m.count = 1;
	assert_int_equal(shards_open(dir, &m, &s, &err), ERR_INVALID_DATA);
	assert_non_null(strstr(err.message, "lacks shard-00002-of-00002.safetensors"));
}

static void a_model_in_parts_is_written_in_shards(void **state)
{
	const struct {
		struct plan_mesh place;
		bool used;
	} cases[] = {
		{ { .data = 1, .tensor = 1, .pipeline = 1 }, false },
		{ { .data = 8, .tensor = 1, .pipeline = 1 }, false },
		{ { .data = 8, .tensor = 1, .pipeline = 1, .zero = 1 }, true },
		{ { .data = 1, .tensor = 2, .pipeline = 1 }, true },
		{ { .data = 1, .tensor = 1, .pipeline = 2 }, true },
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(shards_are_used(&cases[i].place), cases[i].used);
}

int main(void)
{
	struct err err = { 0 };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_mesh_reads_what_any_other_wrote),
		cmocka_unit_test(the_work_is_shared),
		cmocka_unit_test(pieces_that_are_not_a_tensor_are_refused),
		cmocka_unit_test(a_place_that_is_none_is_refused),
		cmocka_unit_test(a_file_that_is_torn_is_named),
		cmocka_unit_test(a_model_in_parts_is_written_in_shards),
	};
	snprintf(dir, sizeof(dir), "/tmp/shards_test_XXXXXX");
	if (mkdtemp(dir) == NULL)
		return 1;
	int failed = cmocka_run_group_tests_name("shards", tests, NULL, NULL);
	return file_remove_tree(dir, &err) < 0 ? 1 : failed;
}
