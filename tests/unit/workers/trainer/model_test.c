/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/hf_model.c and session.c on a real engine: a model of every family and
 * precision that was written is what training goes on from, bit for bit; adapters leave their base
 * alone; resumed trainings with averages, adapters and loss scales end the same. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/hf_config.h"
#include "workers/trainer/made_data.h"

enum { STEPS = 3 };

static const struct {
	const char *name, *model;
} models[] = {
	{ "gpt2",
		"\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"gpt2\",\"n_layer\":2,"
		"\"n_head\":2,\"n_embd\":16,\"n_positions\":16,\"vocab_size\":256}},"
		"\"data\":{\"sequence_length\":16,\"tokenizer\":\"bytes\"}" },
	{ "llama",
		"\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"llama\","
		"\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
		"\"hidden_size\":32,\"intermediate_size\":48,\"max_position_embeddings\":16,"
		"\"vocab_size\":256}},\"data\":{\"sequence_length\":16,\"tokenizer\":\"bytes\"}" },
	{ "tied",
		"\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"llama\","
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"hidden_size\":16,"
		"\"intermediate_size\":24,\"max_position_embeddings\":16,\"vocab_size\":256,"
		"\"tie_word_embeddings\":true}},"
		"\"data\":{\"sequence_length\":16,\"tokenizer\":\"bytes\"}" },
	{ "cnn",
		"\"task\":\"image_classification\",\"model\":{\"config\":{\"family\":\"cnn\","
		"\"channels\":[4,8],\"blocks_per_stage\":1,\"hidden\":[8],\"in_channels\":1,"
		"\"in_height\":8,\"in_width\":8,\"n_classes\":5}}" },
	{ "resnet",
		"\"task\":\"image_classification\",\"model\":{\"config\":{\"family\":\"cnn\","
		"\"block\":\"bottleneck\",\"stem\":\"7x7\",\"channels\":[4,8],\"blocks\":[1,1],"
		"\"in_channels\":3,\"in_height\":16,\"in_width\":16,\"n_classes\":5}}" },
	{ "mlp",
		"\"task\":\"classification\",\"model\":{\"config\":{\"family\":\"mlp\","
		"\"hidden\":[12],\"in_channels\":1,\"in_height\":1,\"in_width\":9,"
		"\"n_classes\":4}}" },
	{ "dlrm",
		"\"task\":\"click_through\",\"model\":{\"config\":{\"family\":\"dlrm\","
		"\"dense_features\":3,\"embedding_dim\":8,\"lookups\":2,\"table_rows\":[20,30],"
		"\"bottom\":[8],\"top\":[8]}},\"data\":{\"categorical\":[\"c0\",\"c1\"]}" },
};

struct training {
	struct job_spec spec;
	struct made_data data;
	struct session_inputs inputs;
};

/* more: further members of the spec, with a comma in front. */
static void prepare(struct training *t, const char *model, const char *precision, const char *more)
{
	char text[2048];
	struct err err = { 0 };
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	memset(t, 0, sizeof(*t));
	int n = snprintf(text, sizeof(text),
		"{%s,\"precision\":\"%s\",\"hyperparameters\":{\"batch_size\":8,\"micro_batch_size\":4,"
		"\"max_steps\":20,\"learning_rate\":0.01,\"ema_decay\":0.9},"
		"\"training_file\":[\"file_0\",\"file_1\"],"
		"\"resources\":{\"instance_type\":\"here\",\"count\":1}%s}",
		model, precision, more);
	assert_int_equal(json_doc_parse(text, (size_t)n, sizeof(text), &doc, &err), 0);
	if (spec_json_read(json_doc_root(doc), &t->spec, &metadata, &err) < 0)
		fail_msg("%s: %s", err.param, err.message);
	t->inputs.threads = 1;
	if (made_data_write(&t->data, &t->spec, &t->inputs, &err) < 0)
		fail_msg("%s", err.message);
}

static struct session *open_session(const struct training *t, const char *init, const char *resume)
{
	struct err err = { 0 };
	struct session *s = NULL;
	struct session_inputs in = t->inputs;
	in.init_dir = init;
	in.resume_dir = resume;
	if (session_open(&t->spec, &in, &s, &err) < 0)
		fail_msg("%s: %s", err.param, err.message);
	return s;
}

static double step(struct session *s)
{
	struct engine_step e;
	struct err err = { 0 };
	if (engine_step(s->engine, &e, &err) < 0)
		fail_msg("%s", err.message);
	assert_false(e.non_finite);
	return e.loss;
}

/* Tensors of a kind in both, bit by bit; returns how many there are. */
static int same_tensors(struct session *a, struct session *b, enum engine_tensor_kind kind)
{
	int count = 0;
	assert_int_equal(engine_tensor_count(a->engine), engine_tensor_count(b->engine));
	for (int i = 0; i < engine_tensor_count(a->engine); i++) {
		struct engine_tensor x, y;
		engine_tensor_at(a->engine, i, &x);
		engine_tensor_at(b->engine, i, &y);
		if (x.kind != kind)
			continue;
		count++;
		if (memcmp(x.data, y.data, (size_t)x.bytes) != 0)
			fail_msg("%s differs", x.name);
	}
	return count;
}

static void write_model(struct session *s, const char *dir)
{
	struct err err = { 0 };
	if (session_write_model(s, dir, &err) < 0)
		fail_msg("%s", err.message);
}

static void a_written_model_is_what_training_goes_on_from(void **state)
{
	static const char *const precisions[] = { "fp32", "bf16", "fp16" };
	struct fixture *f = *state;
	for (size_t m = 0; m < ARRAY_LEN(models); m++)
		for (size_t p = 0; p < ARRAY_LEN(precisions); p++) {
			struct training t;
			const char *dir = fixture_path(f, "model");
			prepare(&t, models[m].model, precisions[p], "");
			struct session *a = open_session(&t, NULL, NULL);
			for (int i = 0; i < STEPS; i++)
				(void)step(a);
			write_model(a, dir);
			struct spec_model config;
			struct err err = { 0 };
			assert_int_equal(hf_config_read(dir, &config, &err), 0);
			assert_memory_equal(&config, &t.spec.model, sizeof(config));
			struct session *b = open_session(&t, dir, NULL);
			assert_true(same_tensors(a, b, ENGINE_PARAMETER) > 0);
			/* And from the same weights the same steps follow. */
			struct session *c = open_session(&t, dir, NULL);
			for (int i = 0; i < STEPS; i++) {
				double x = step(b), y = step(c);
				assert_memory_equal(&x, &y, sizeof(x));
			}
			assert_true(file_exists(fixture_path(f, "model/ema.safetensors")));
			session_close(a);
			session_close(b);
			session_close(c);
			made_data_remove(&t.data);
		}
}

static void a_resumed_training_has_the_same_bits(void **state)
{
	static const char *const precisions[] = { "fp32", "bf16", "fp16" };
	struct fixture *f = *state;
	for (size_t m = 0; m < ARRAY_LEN(models); m++)
		for (size_t p = 0; p < ARRAY_LEN(precisions); p++) {
			struct training t;
			struct err err = { 0 };
			const char *parent = fixture_path(f, "resume");
			int64_t at = 0;
			prepare(&t, models[m].model, precisions[p], "");
			assert_int_equal(file_remove_tree(parent, &err), 0);
			assert_int_equal(file_mkdir(parent, &err), 0);
			struct session *a = open_session(&t, NULL, NULL);
			for (int i = 0; i < STEPS; i++)
				(void)step(a);
			struct hf_model model = session_model(a);
			if (checkpoint_write(&model, &a->metrics, parent, &at, &err) < 0)
				fail_msg("%s", err.message);
			struct session *b = open_session(&t, NULL, fixture_path(f, "resume/step-3"));
			assert_int_equal(b->resumed_step, 3);
			for (int i = 0; i < STEPS; i++) {
				double x = step(a), y = step(b);
				assert_memory_equal(&x, &y, sizeof(x));
			}
			(void)same_tensors(a, b, ENGINE_PARAMETER);
			(void)same_tensors(a, b, ENGINE_OPTIMIZER);
			assert_true(same_tensors(a, b, ENGINE_AVERAGE) > 0);
			session_close(a);
			session_close(b);
			made_data_remove(&t.data);
		}
}

#define LORA(targets) ",\"lora\":{\"rank\":2,\"alpha\":4,\"target_modules\":[" targets "]}"
static const char *const adapted[] = { LORA("\"c_attn\",\"c_fc\""),
	LORA("\"q_proj\",\"down_proj\"") };

static void adapters_leave_their_base_alone(void **state)
{
	static const char *const precisions[] = { "fp32", "bf16" };
	struct fixture *f = *state;
	struct err err = { 0 };
	for (size_t m = 0; m < ARRAY_LEN(adapted); m++)
		for (size_t p = 0; p < ARRAY_LEN(precisions); p++) {
			struct training t, whole;
			char before[DIGEST_HEX_MAX], after[DIGEST_HEX_MAX];
			int adapters = 0;
			const char *base = fixture_path(f, "base"), *tuned = fixture_path(f, "tuned");
			prepare(&whole, models[m].model, precisions[p], "");
			struct session *a = open_session(&whole, NULL, NULL);
			(void)step(a);
			write_model(a, base);
			assert_int_equal(
				digest_file(fixture_path(f, "base/model.safetensors"), before, NULL, &err), 0);
			prepare(&t, models[m].model, precisions[p], adapted[m]);
			struct session *b = open_session(&t, base, NULL);
			struct session *fresh = open_session(&t, base, NULL);
			for (int i = 0; i < STEPS; i++)
				(void)step(b);
			for (int i = 0; i < engine_tensor_count(b->engine); i++) {
				struct engine_tensor x, y;
				engine_tensor_at(b->engine, i, &x);
				engine_tensor_at(fresh->engine, i, &y);
				bool same = memcmp(x.data, y.data, (size_t)x.bytes) == 0;
				if (x.kind != ENGINE_PARAMETER)
					continue;
				adapters += hf_weights_is_adapter(x.name);
				if (same == hf_weights_is_adapter(x.name))
					fail_msg("%s has%s changed", x.name, same ? " not" : "");
			}
			assert_int_equal(adapters, 2 * 2 * 2);
			write_model(b, tuned);
			assert_false(file_exists(fixture_path(f, "tuned/model.safetensors")));
			assert_true(file_exists(fixture_path(f, "tuned/adapter_config.json")));
			assert_int_equal(
				digest_file(fixture_path(f, "base/model.safetensors"), after, NULL, &err), 0);
			assert_string_equal(before, after);
			/* Base and adapters together are the tuned model again. */
			assert_int_equal(
				hf_model_read_adapters(fresh->engine, NULL, &fresh->spec, tuned, &err), 0);
			(void)same_tensors(b, fresh, ENGINE_PARAMETER);
			session_close(a);
			session_close(b);
			session_close(fresh);
			made_data_remove(&t.data);
			made_data_remove(&whole.data);
		}
}

static void adapters_resume_over_their_base(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct training t, whole;
	int64_t at = 0;
	const char *base = fixture_path(f, "base"), *parent = fixture_path(f, "lora");
	prepare(&whole, models[0].model, "fp32", "");
	struct session *a = open_session(&whole, NULL, NULL);
	(void)step(a);
	write_model(a, base);
	session_close(a);
	prepare(&t, models[0].model, "fp32", adapted[0]);
	assert_int_equal(file_mkdir(parent, &err), 0);
	a = open_session(&t, base, NULL);
	(void)step(a);
	struct hf_model model = session_model(a);
	assert_int_equal(checkpoint_write(&model, &a->metrics, parent, &at, &err), 0);
	assert_true(file_exists(fixture_path(f, "lora/step-1/adapter_model.safetensors")));
	assert_false(file_exists(fixture_path(f, "lora/step-1/model.safetensors")));
	struct session *b = open_session(&t, base, fixture_path(f, "lora/step-1"));
	for (int i = 0; i < STEPS; i++) {
		double x = step(a), y = step(b);
		assert_memory_equal(&x, &y, sizeof(x));
	}
	(void)same_tensors(a, b, ENGINE_PARAMETER);
	session_close(a);
	session_close(b);
	made_data_remove(&t.data);
	made_data_remove(&whole.data);
}

static void refused(const struct training *t, const char *init, const char *part)
{
	struct err err = { 0 };
	struct session *s = NULL;
	struct session_inputs in = t->inputs;
	in.init_dir = init;
	int rc = session_open(&t->spec, &in, &s, &err);
	assert_null(s);
	assert_string_equal(session_reason(rc), "user_error");
	if (strstr(err.message, part) == NULL)
		fail_msg("%s", err.message);
}

static void files_that_do_not_fit_are_refused(void **state)
{
	struct fixture *f = *state;
	struct training t, other, lora;
	const char *dir = fixture_path(f, "fit"), *tuned = fixture_path(f, "fit-tuned");
	prepare(&t, models[0].model, "fp32", "");
	prepare(&other, models[0].model, "fp32", "");
	prepare(&lora, models[0].model, "fp32", adapted[0]);
	struct session *s = open_session(&t, NULL, NULL);
	write_model(s, dir);
	session_close(s);
	other.spec.model.n_layer = 1;
	refused(&other, dir, "n_layer");
	refused(&t, fixture_path(f, "nowhere"), "config.json");
	s = open_session(&lora, dir, NULL);
	write_model(s, tuned);
	session_close(s);
	refused(&t, tuned, "adapters without the model");
	made_data_remove(&t.data);
	made_data_remove(&other.data);
	made_data_remove(&lora.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_written_model_is_what_training_goes_on_from),
		cmocka_unit_test(a_resumed_training_has_the_same_bits),
		cmocka_unit_test(adapters_leave_their_base_alone),
		cmocka_unit_test(adapters_resume_over_their_base),
		cmocka_unit_test(files_that_do_not_fit_are_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
