/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/hf_weights.c and hf_weights_read.c: what is written comes back bit for bit,
 * in one file and in shards; files of others are read in all their spellings; whatever does not fit
 * is refused by name. */
#include "tests/unit/workers/trainer/hf_fixture.h"

#include "workers/trainer/half.h"

static struct hf_weights_options whole = { 0 };

static bool equal(const struct hf_fixture *a, const struct hf_fixture *b)
{
	for (int i = 0; i < a->weights.count; i++)
		if (memcmp(a->list[i].data, b->list[i].data, (size_t)a->list[i].bytes) != 0)
			return false;
	return true;
}

static int read_into(struct hf_fixture *f, const char *dir, struct err *err)
{
	hf_fixture_clear(f);
	return hf_weights_read(&f->weights, dir, "model", &f->model, false, err);
}

/* Writes tensors under any names, without a folder's ceremony. */
static void write_file(const struct fixture *x, const char *dir, const char *name,
	const struct safetensors_tensor *list, int count)
{
	struct err err = { 0 };
	char path[300];
	const char *at = fixture_path(x, dir);
	assert_int_equal(file_mkdir(at, &err), 0);
	snprintf(path, sizeof(path), "%s/%s", at, name);
	unlink(path);
	if (safetensors_write(path, list, count, &err) < 0)
		fail_msg("%s", err.message);
}

static struct safetensors_tensor tensor_of(const struct engine_tensor *t, const char *name)
{
	struct safetensors_tensor s = { .rank = t->rank, .bytes = t->bytes, .data = t->data };
	snprintf(s.name, sizeof(s.name), "%s", name);
	snprintf(s.dtype, sizeof(s.dtype), "%s", t->dtype);
	memcpy(s.shape, t->shape, sizeof(t->shape));
	return s;
}

/* The tensors of a model as they are, for a test to change. */
static int list_of(const struct hf_fixture *f, struct safetensors_tensor *list)
{
	for (int i = 0; i < f->weights.count; i++)
		list[i] = tensor_of(&f->list[i], f->list[i].name);
	return f->weights.count;
}

static void a_model_comes_back_bit_for_bit(void **state)
{
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	/* From whole tensors in one file down to one tensor a file. */
	for (int64_t shard = 1 << 20; shard >= 1; shard /= 4) {
		struct hf_weights_options o = { .shard_bytes = shard };
		const char *dir = hf_fixture_publish(x, a, "whole", "model", &o);
		assert_int_equal(read_into(b, dir, &err), 0);
		assert_true(equal(a, b));
		assert_true(hf_weights_exist(dir, "model"));
		assert_false(hf_weights_exist(dir, "adapter_model"));
		bool one = file_exists(fixture_path(x, "whole/model.safetensors"));
		assert_int_equal(one, shard >= 1024);
		assert_int_equal(file_exists(fixture_path(x, "whole/model.safetensors.index.json")), !one);
	}
	assert_true(file_exists(fixture_path(x, "whole/model-00005-of-00005.safetensors")));
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

static void the_index_says_where_everything_is(void **state)
{
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2();
	struct hf_weights_options o = { .shard_bytes = 200 };
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	(void)hf_fixture_publish(x, a, "index", "model", &o);
	assert_int_equal(
		file_read(fixture_path(x, "index/model.safetensors.index.json"), 4096, &text, &bytes, &err),
		0);
	/* wte 112 and wpe 80 bytes share the first shard of at most 200. */
	assert_string_equal(text,
		"{\"metadata\":{\"total_size\":448},\"weight_map\":{"
		"\"transformer.h.0.attn.c_attn.bias\":\"model-00003-of-00003.safetensors\","
		"\"transformer.h.0.attn.c_attn.weight\":\"model-00002-of-00003.safetensors\","
		"\"transformer.ln_f.weight\":\"model-00003-of-00003.safetensors\","
		"\"transformer.wpe.weight\":\"model-00001-of-00003.safetensors\","
		"\"transformer.wte.weight\":\"model-00001-of-00003.safetensors\"}}\n");
	hf_fixture_free(a);
	free(a);
}

static void there_are_never_too_many_shards(void **state)
{
	struct fixture *x = *state;
	struct hf_fixture many = { 0 };
	struct hf_weights_options o = { .shard_bytes = 1 };
	struct engine_tensor list[4 * HF_SHARDS_MAX];
	static float data[4 * HF_SHARDS_MAX];
	for (size_t i = 0; i < ARRAY_LEN(list); i++) {
		list[i] = (struct engine_tensor){
			.dtype = "F32", .rank = 1, .shape = { 1 }, .bytes = 4, .data = &data[i]
		};
		snprintf(list[i].name, sizeof(list[i].name), "t.%zu", i);
	}
	many.weights = (struct hf_weights){ .list = list, .count = ARRAY_LEN(list) };
	(void)hf_fixture_publish(x, &many, "many", "model", &o);
	assert_true(file_exists(fixture_path(x, "many/model-00048-of-00048.safetensors")));
}

static void names_of_others_are_understood(void **state)
{
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	struct safetensors_tensor list[HF_FIXTURE_TENSORS];
	static float mask[25];
	int count = list_of(a, list);
	/* As the first published files have it: no prefix, mask buffers, the head beside. */
	for (int i = 0; i < count; i++)
		snprintf(
			list[i].name, sizeof(list[i].name), "%s", a->list[i].name + sizeof("transformer.") - 1);
	list[count] = tensor_of(&a->list[0], "h.0.attn.bias");
	list[count].rank = 4;
	list[count].shape[0] = list[count].shape[1] = 1;
	list[count].shape[2] = list[count].shape[3] = 5;
	list[count].bytes = sizeof(mask);
	list[count++].data = mask;
	list[count] = list[count - 1];
	snprintf(list[count].name, sizeof(list[count].name), "h.0.attn.masked_bias");
	list[count].rank = 0;
	list[count++].bytes = 4;
	list[count++] = tensor_of(&a->list[0], "lm_head.weight");
	write_file(x, "hub", "model.safetensors", list, count);
	if (read_into(b, fixture_path(x, "hub"), &err) < 0)
		fail_msg("%s", err.message);
	assert_true(equal(a, b));
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

static void refused(
	const struct fixture *x, struct hf_fixture *f, const char *dir, const char *tensor)
{
	struct err err = { 0 };
	assert_int_equal(read_into(f, fixture_path(x, dir), &err), ERR_INVALID_DATA);
	if (tensor != NULL) {
		assert_string_equal(err.param, tensor);
		assert_non_null(strstr(err.message, tensor));
	}
}

static void a_head_that_is_not_the_embedding_is_refused(void **state)
{
	struct fixture *x = *state;
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	struct safetensors_tensor list[HF_FIXTURE_TENSORS];
	float head[28];
	int count = list_of(a, list);
	memcpy(head, a->list[0].data, sizeof(head));
	head[27] += 1;
	list[count] = tensor_of(&a->list[0], "lm_head.weight");
	list[count].data = head;
	write_file(x, "head", "model.safetensors", list, count + 1);
	refused(x, b, "head", "lm_head.weight");
	b->model.tied = false; /* then it is one tensor too many for this list */
	refused(x, b, "head", "lm_head.weight");
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

static void what_does_not_fit_is_named(void **state)
{
	struct fixture *x = *state;
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	struct safetensors_tensor list[HF_FIXTURE_TENSORS];
	int count = list_of(a, list);
	write_file(x, "bad", "model.safetensors", list, count - 1);
	refused(x, b, "bad", "transformer.ln_f.weight"); /* missing */
	list[count] = tensor_of(&a->list[4], "transformer.ln_g.weight");
	write_file(x, "bad", "model.safetensors", list, count + 1);
	refused(x, b, "bad", "transformer.ln_g.weight"); /* unexpected */
	list[count] = tensor_of(&a->list[4], "ln_f.weight");
	write_file(x, "bad", "model.safetensors", list, count + 1);
	refused(x, b, "bad", "transformer.ln_f.weight"); /* under both names */
	(void)list_of(a, list);
	list[2].shape[0] = 12, list[2].shape[1] = 4; /* transposed */
	write_file(x, "bad", "model.safetensors", list, count);
	refused(x, b, "bad", "transformer.h.0.attn.c_attn.weight");
	(void)list_of(a, list);
	snprintf(list[3].dtype, sizeof(list[3].dtype), "I32");
	write_file(x, "bad", "model.safetensors", list, count);
	refused(x, b, "bad", "transformer.h.0.attn.c_attn.bias");
	refused(x, b, "nowhere", NULL);
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

static void small_types_are_read(void **state)
{
	static const struct {
		const char *word;
		enum half_type type;
	} types[] = { { "BF16", HALF_BF16 }, { "F16", HALF_F16 } };
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	for (size_t k = 0; k < ARRAY_LEN(types); k++) {
		struct safetensors_tensor list[HF_FIXTURE_TENSORS];
		uint16_t small[HF_FIXTURE_TENSORS][64];
		int count = list_of(a, list);
		for (int i = 0; i < count; i++) {
			half_convert(list[i].bytes / 4, HALF_F32, list[i].data, types[k].type, small[i]);
			snprintf(list[i].dtype, sizeof(list[i].dtype), "%s", types[k].word);
			list[i].bytes /= 2;
			list[i].data = small[i];
		}
		list[count] = list[0];
		snprintf(list[count].name, sizeof(list[count].name), "lm_head.weight");
		write_file(x, "small", "model.safetensors", list, count + 1);
		if (read_into(b, fixture_path(x, "small"), &err) < 0)
			fail_msg("%s", err.message);
		assert_true(equal(a, b));
	}
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

/* A frozen base that the engine keeps in bf16 comes from an fp32 file, rounded. */
static void a_frozen_base_takes_its_own_type(void **state)
{
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2(), b = { 0 };
	uint16_t want[28];
	(void)hf_fixture_publish(x, a, "frozen", "model", &whole);
	b.model = a->model;
	for (int i = 0; i < a->weights.count; i++)
		hf_fixture_add_typed(&b, a->list[i].name, ENGINE_PARAMETER,
			a->list[i].rank == 2 ? "BF16" : "F32", a->list[i].shape[0], a->list[i].shape[1]);
	assert_int_equal(read_into(&b, fixture_path(x, "frozen"), &err), 0);
	half_convert(28, HALF_F32, a->list[0].data, HALF_BF16, want);
	assert_memory_equal(b.list[0].data, want, sizeof(want));
	/* … and is written as it is. */
	(void)hf_fixture_publish(x, &b, "again", "model", &whole);
	hf_fixture_clear(&b);
	assert_int_equal(read_into(&b, fixture_path(x, "again"), &err), 0);
	assert_memory_equal(b.list[0].data, want, sizeof(want));
	hf_fixture_free(a), hf_fixture_free(&b);
	free(a);
}

static void an_index_that_lies_is_refused(void **state)
{
	static const char *const maps[] = {
		"[]",
		"{\"weight_map\":[]}",
		/* a path, a file of another folder, a file that is not there */
		"{\"weight_map\":{\"transformer.wte.weight\":\"../index/"
		"model-00001-of-00003.safetensors\"}}",
		"{\"weight_map\":{\"transformer.wte.weight\":\"/etc/passwd\"}}",
		"{\"weight_map\":{\"transformer.wte.weight\":\".model\"}}",
		"{\"weight_map\":{\"transformer.wte.weight\":1}}",
		/* says less than the file has */
		"{\"weight_map\":{\"transformer.wte.weight\":\"model-00001-of-00003.safetensors\"}}",
		/* all there, one in another place than it says */
		"{\"weight_map\":{\"transformer.wte.weight\":\"model-00001-of-00003.safetensors\","
		"\"transformer.wpe.weight\":\"model-00002-of-00003.safetensors\","
		"\"transformer.h.0.attn.c_attn.weight\":\"model-00002-of-00003.safetensors\","
		"\"transformer.h.0.attn.c_attn.bias\":\"model-00003-of-00003.safetensors\","
		"\"transformer.ln_f.weight\":\"model-00003-of-00003.safetensors\"}}",
	};
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2();
	struct hf_weights_options o = { .shard_bytes = 200 };
	(void)hf_fixture_publish(x, a, "lies", "model", &o);
	for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
		fixture_write(
			fixture_path(x, "lies/model.safetensors.index.json"), maps[i], strlen(maps[i]));
		refused(x, a, "lies", NULL);
	}
	fixture_write(fixture_path(x, "lies/model.safetensors.index.json"), "{", 1);
	assert_true(read_into(a, fixture_path(x, "lies"), &err) < 0);
	hf_fixture_free(a);
	free(a);
}

static void adapters_and_averages_have_files_of_their_own(void **state)
{
	static const char lora[] = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight";
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture *a = hf_fixture_gpt2(), *b = hf_fixture_gpt2();
	struct hf_weights_options o = { .adapters = true };
	cleanup(safetensors_closep) struct safetensors *file = NULL;
	hf_fixture_add(a, lora, 2, 4);
	hf_fixture_add_typed(a, "average.transformer.ln_f.weight", ENGINE_AVERAGE, "F32", 4, 0);
	hf_fixture_add_typed(
		a, "optimizer.exp_avg.transformer.ln_f.weight", ENGINE_OPTIMIZER, "F32", 4, 0);
	hf_fixture_fill(a);
	(void)hf_fixture_publish(x, a, "adapter", "adapter_model", &o);
	assert_int_equal(
		safetensors_open(fixture_path(x, "adapter/adapter_model.safetensors"), &file, &err), 0);
	assert_int_equal(safetensors_count(file), 1);
	assert_non_null(safetensors_find(file, lora));
	safetensors_close(file);
	file = NULL;
	o = (struct hf_weights_options){ .averages = true };
	(void)hf_fixture_publish(x, a, "ema", "ema", &o);
	assert_int_equal(safetensors_open(fixture_path(x, "ema/ema.safetensors"), &file, &err), 0);
	assert_int_equal(safetensors_count(file), 5); /* the whole model, without the adapter */
	assert_memory_equal(
		safetensors_find(file, "transformer.ln_f.weight")->data, a->list[6].data, 16);
	assert_memory_equal(
		safetensors_find(file, "transformer.wte.weight")->data, a->list[0].data, 112);

	hf_fixture_add(b, lora, 2, 4);
	hf_fixture_clear(b);
	assert_int_equal(hf_weights_read(&b->weights, fixture_path(x, "adapter"), "adapter_model",
						 &b->model, true, &err),
		0);
	assert_memory_equal(b->list[5].data, a->list[5].data, 32);
	assert_true(((float *)b->list[0].data)[0] == 0); /* nothing else was touched */
	assert_int_equal(
		hf_weights_read(&b->weights, fixture_path(x, "ema"), "ema", &b->model, false, &err), 0);
	hf_fixture_free(a), hf_fixture_free(b);
	free(a), free(b);
}

static void batch_norms_count_their_batches(void **state)
{
	struct fixture *x = *state;
	struct err err = { 0 };
	struct hf_fixture f = { .model = { .family = SPEC_CNN } };
	struct hf_weights_options o = { .batches = 77 };
	int64_t batches = 0;
	{
		cleanup(safetensors_closep) struct safetensors *file = NULL;
		hf_fixture_add(&f, "resnet.n.running_mean", 3, 0);
		hf_fixture_add(&f, "resnet.n.running_var", 3, 0);
		f.list[0].role = f.list[1].role = PLAN_STATE;
		(void)hf_fixture_publish(x, &f, "norm", "model", &o);
		assert_int_equal(
			safetensors_open(fixture_path(x, "norm/model.safetensors"), &file, &err), 0);
		const struct safetensors_tensor *t = safetensors_find(file, "resnet.n.num_batches_tracked");
		assert_non_null(t);
		assert_string_equal(t->dtype, "I64");
		assert_int_equal(t->rank, 0);
		memcpy(&batches, t->data, sizeof(batches));
		assert_int_equal(batches, 77);
	}
	assert_int_equal(read_into(&f, fixture_path(x, "norm"), &err), 0);
	hf_fixture_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_model_comes_back_bit_for_bit),
		cmocka_unit_test(the_index_says_where_everything_is),
		cmocka_unit_test(there_are_never_too_many_shards),
		cmocka_unit_test(names_of_others_are_understood),
		cmocka_unit_test(a_head_that_is_not_the_embedding_is_refused),
		cmocka_unit_test(what_does_not_fit_is_named),
		cmocka_unit_test(small_types_are_read),
		cmocka_unit_test(a_frozen_base_takes_its_own_type),
		cmocka_unit_test(an_index_that_lies_is_refused),
		cmocka_unit_test(adapters_and_averages_have_files_of_their_own),
		cmocka_unit_test(batch_norms_count_their_batches),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
