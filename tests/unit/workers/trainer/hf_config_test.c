/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/hf_config*.c: every family's config comes back, has what transformers
 * needs, and configs of models that this engine is not are refused by field. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/hf_config.h"

static const struct hf_tokens no_tokens = { -1, -1, -1 };

static void write_config(const struct fixture *x, const char *text)
{
	struct err err = { 0 };
	const char *dir = fixture_path(x, "config");
	assert_int_equal(file_mkdir(dir, &err), 0);
	fixture_write(fixture_path(x, "config/config.json"), text, strlen(text));
}

static int read_config(const struct fixture *x, struct spec_model *m, struct err *err)
{
	return hf_config_read(fixture_path(x, "config"), m, err);
}

static struct spec_model model_of(const char *config)
{
	struct err err = { 0 };
	struct spec_model m = { 0 };
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(config, strlen(config), JSON_BYTES_MAX, &doc, &err), 0);
	if (spec_json_read_config(json_doc_root(doc), "$", &m, &err) < 0)
		fail_msg("%s", err.message);
	return m;
}

/* What hf_config_write says of a model; the plan only needs what it takes from there. */
static const char *text_of(const struct spec_model *m, const struct hf_tokens *tokens)
{
	static char text[131072];
	struct job_spec spec = { .model = *m, .hyper = { .dropout = 0.1 } };
	struct plan plan = { .in_channels = m->in_channels,
		.in_height = m->in_height,
		.in_width = m->in_width,
		.n_classes = m->n_classes };
	cleanup(buf_finish) struct buf out;
	buf_init(&out, sizeof(text) - 1);
	hf_config_write(&spec, &plan, tokens, &out);
	assert_int_equal(out.failed, 0);
	snprintf(text, sizeof(text), "%s", buf_cstr(&out));
	return text;
}

static const char *const configs[] = {
	"{\"family\":\"gpt2\",\"n_layer\":12,\"n_head\":12,\"n_embd\":768,\"n_positions\":1024,"
	"\"vocab_size\":50257}",
	"{\"family\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":8,\"n_positions\":16,"
	"\"vocab_size\":256,\"n_inner\":20,\"layer_norm_epsilon\":1e-6}",
	"{\"family\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":8,"
	"\"num_key_value_heads\":2,\"hidden_size\":64,\"intermediate_size\":100,"
	"\"max_position_embeddings\":128,\"vocab_size\":1000,\"rms_norm_eps\":1e-6,"
	"\"rope_theta\":500000,\"tie_word_embeddings\":true}",
	"{\"family\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":4,\"hidden_size\":32,"
	"\"intermediate_size\":48,\"max_position_embeddings\":64,\"vocab_size\":300}",
	"{\"family\":\"cnn\",\"channels\":[8,16],\"blocks_per_stage\":1,\"hidden\":[20],"
	"\"in_channels\":1,\"in_height\":28,\"in_width\":28,\"n_classes\":10}",
	"{\"family\":\"cnn\",\"block\":\"basic\",\"stem\":\"3x3\",\"channels\":[8,16],\"blocks\":[1,2],"
	"\"in_channels\":3,\"in_height\":32,\"in_width\":32,\"n_classes\":10}",
	"{\"family\":\"cnn\",\"block\":\"basic\",\"stem\":\"7x7\",\"channels\":[64,128,256,512],"
	"\"blocks\":[2,2,2,2],\"in_channels\":3,\"in_height\":224,\"in_width\":224,"
	"\"n_classes\":1000}",
	"{\"family\":\"cnn\",\"block\":\"bottleneck\",\"stem\":\"7x7\",\"channels\":[64,128,256,512],"
	"\"blocks\":[3,4,6,3],\"in_channels\":3,\"in_height\":224,\"in_width\":224,"
	"\"n_classes\":10}",
	"{\"family\":\"mlp\",\"hidden\":[24,16],\"in_channels\":1,\"in_height\":1,\"in_width\":10,"
	"\"n_classes\":3}",
	"{\"family\":\"dlrm\",\"dense_features\":3,\"embedding_dim\":8,\"lookups\":3,"
	"\"table_rows\":[11,7,40],\"bottom\":[12,8],\"top\":[16]}",
};

static void every_config_comes_back(void **state)
{
	struct fixture *x = *state;
	for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
		struct err err = { 0 };
		struct spec_model m = model_of(configs[i]), back;
		const char *text = text_of(&m, &no_tokens);
		write_config(x, text);
		if (read_config(x, &back, &err) < 0)
			fail_msg("%s: %s", text, err.message);
		assert_memory_equal(&back, &m, sizeof(m));
		assert_int_equal(hf_config_agree(&m, &back, &err), 0);
	}
}

static void has(const char *text, const char *member)
{
	if (strstr(text, member) == NULL)
		fail_msg("%s lacks %s", text, member);
}

static void transformers_finds_what_it_needs(void **state)
{
	static const char *const gpt2[] = { "\"architectures\":[\"GPT2LMHeadModel\"]",
		"\"model_type\":\"gpt2\"", "\"activation_function\":\"gelu_new\"", "\"n_layer\":12",
		"\"n_head\":12", "\"n_embd\":768", "\"n_positions\":1024", "\"n_ctx\":1024",
		"\"n_inner\":null", "\"layer_norm_epsilon\":1e-05", "\"vocab_size\":50257",
		"\"bos_token_id\":50256", "\"eos_token_id\":50256", "\"resid_pdrop\":0.1",
		"\"attn_pdrop\":0.1", "\"embd_pdrop\":0.1", "\"torch_dtype\":\"float32\"",
		"\"tie_word_embeddings\":true" };
	static const char *const llama[] = { "\"architectures\":[\"LlamaForCausalLM\"]",
		"\"model_type\":\"llama\"", "\"hidden_act\":\"silu\"", "\"hidden_size\":64",
		"\"intermediate_size\":100", "\"num_hidden_layers\":2", "\"num_attention_heads\":8",
		"\"num_key_value_heads\":2", "\"max_position_embeddings\":128", "\"rms_norm_eps\":1e-06",
		"\"rope_theta\":500000", "\"rope_scaling\":null", "\"tie_word_embeddings\":true",
		"\"head_dim\":8", "\"attention_bias\":false", "\"vocab_size\":1000",
		"\"bos_token_id\":null" };
	static const char *const resnet[] = { "\"architectures\":[\"ResNetForImageClassification\"]",
		"\"model_type\":\"resnet\"", "\"depths\":[3,4,6,3]", "\"embedding_size\":64",
		"\"hidden_sizes\":[256,512,1024,2048]", "\"layer_type\":\"bottleneck\"",
		"\"num_channels\":3", "\"9\":\"LABEL_9\"", "\"LABEL_9\":9",
		"\"downsample_in_first_stage\":false", "\"downsample_in_bottleneck\":false" };
	const struct hf_tokens ends = { 50256, 50256, -1 };
	(void)state;
	struct spec_model m = model_of(configs[0]);
	for (size_t i = 0; i < ARRAY_LEN(gpt2); i++)
		has(text_of(&m, &ends), gpt2[i]);
	m = model_of(configs[2]);
	for (size_t i = 0; i < ARRAY_LEN(llama); i++)
		has(text_of(&m, &no_tokens), llama[i]);
	m = model_of(configs[7]);
	for (size_t i = 0; i < ARRAY_LEN(resnet); i++)
		has(text_of(&m, &no_tokens), resnet[i]);
}

static void configs_of_others_are_read(void **state)
{
	static const struct {
		const char *text;
		size_t config; /* that it is */
	} cases[] = {
		{ "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],"
		  "\"activation_function\":\"gelu_new\",\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,"
		  "\"n_layer\":12,\"n_positions\":1024,\"vocab_size\":50257,\"n_inner\":null,"
		  "\"task_specific_params\":{\"text-generation\":{\"do_sample\":true}},"
		  "\"summary_type\":\"cls_index\",\"layer_norm_epsilon\":1e-05}",
			0 },
		{ "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,"
		  "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"intermediate_size\":100,"
		  "\"max_position_embeddings\":128,\"vocab_size\":1000,\"rms_norm_eps\":1e-06,"
		  "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},"
		  "\"eos_token_id\":[1,2],\"tie_word_embeddings\":true}",
			2 },
	};
	struct fixture *x = *state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		struct spec_model back, m = model_of(configs[cases[i].config]);
		write_config(x, cases[i].text);
		if (read_config(x, &back, &err) < 0)
			fail_msg("%s", err.message);
		assert_memory_equal(&back, &m, sizeof(m));
	}
}

#define GPT2_FIELDS                                                                              \
	"\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":2,\"n_embd\":8,\"n_positions\":4,\"vocab_" \
	"size\":9"
#define LLAMA_FIELDS                                                                               \
	"\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":" \
	"8,\"intermediate_size\":100,\"max_position_embeddings\":128,\"vocab_size\":1000"

static void models_of_another_kind_are_refused_by_field(void **state)
{
	static const struct {
		const char *text, *field;
	} cases[] = {
		{ "{\"model_type\":\"bert\"}", "model_type" },
		{ "{}", "model_type" },
		{ "{" GPT2_FIELDS ",\"activation_function\":\"gelu\"}", "activation_function" },
		{ "{" GPT2_FIELDS ",\"scale_attn_by_inverse_layer_idx\":true}",
			"scale_attn_by_inverse_layer_idx" },
		{ "{" GPT2_FIELDS ",\"tie_word_embeddings\":false}", "tie_word_embeddings" },
		{ "{" GPT2_FIELDS ",\"n_inner\":-1}", "config.json.n_inner" },
		{ "{\"model_type\":\"gpt2\"}", "config.json.n_layer" },
		{ "{" LLAMA_FIELDS ",\"hidden_act\":\"gelu\"}", "hidden_act" },
		{ "{" LLAMA_FIELDS ",\"attention_bias\":true}", "attention_bias" },
		{ "{" LLAMA_FIELDS ",\"head_dim\":16}", "head_dim" },
		{ "{" LLAMA_FIELDS ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}",
			"rope_scaling" },
		{ "{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}",
			"rope_scaling" },
		{ "{" LLAMA_FIELDS ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "rope_parameters" },
		{ "{" LLAMA_FIELDS ",\"num_key_value_heads\":3}", "config.json.num_key_value_heads" },
		{ "{\"model_type\":\"resnet\",\"layer_type\":\"bottleneck\",\"hidden_sizes\":[250],"
		  "\"depths\":[1]}",
			"hidden_sizes" },
		{ "{\"model_type\":\"resnet\",\"layer_type\":\"basic\",\"hidden_sizes\":[32],"
		  "\"depths\":[1]}",
			"embedding_size" },
		{ "{\"model_type\":\"resnet\",\"downsample_in_bottleneck\":true}",
			"downsample_in_bottleneck" },
		{ "{\"model_type\":\"resnet\",\"hidden_act\":\"gelu\"}", "hidden_act" },
	};
	struct fixture *x = *state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		struct spec_model m;
		write_config(x, cases[i].text);
		assert_int_equal(read_config(x, &m, &err), ERR_INVALID_DATA);
		if (strcmp(err.param, cases[i].field) != 0)
			fail_msg("%s: %s: %s", cases[i].text, err.param, err.message);
	}
	struct err err = { 0 };
	struct spec_model m;
	write_config(x, "{" LLAMA_FIELDS "}"); /* transformers' default, not the spec's */
	assert_int_equal(read_config(x, &m, &err), 0);
	assert_true(m.norm_eps == 1e-6);
	write_config(x, "{\"model_type\":");
	assert_int_equal(read_config(x, &m, &err), ERR_INVALID_DATA);
	assert_int_equal(hf_config_read(x->dir, &m, &err), ERR_INVALID_DATA);
}

static void a_spec_that_says_otherwise_is_refused(void **state)
{
	static const struct {
		size_t spec, files;
		const char *field;
	} cases[] = { { 0, 1, ".n_layer" }, { 2, 3, ".num_hidden_layers" }, { 0, 2, ".family" },
		{ 5, 6, ".channels" }, { 6, 7, ".block" }, { 8, 9, ".family" } };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		struct spec_model spec = model_of(configs[cases[i].spec]),
						  files = model_of(configs[cases[i].files]);
		assert_int_equal(hf_config_agree(&spec, &files, &err), ERR_INVALID_VALUE);
		if (strstr(err.message, cases[i].field) == NULL)
			fail_msg("%s: %s", cases[i].field, err.message);
	}
	/* What a spec leaves to the data comes from the files. */
	struct err err = { 0 };
	struct spec_model files = model_of(configs[4]), spec = files;
	spec.n_classes = spec.in_height = 0;
	assert_int_equal(hf_config_agree(&spec, &files, &err), 0);
	assert_memory_equal(&spec, &files, sizeof(spec));
	spec.n_classes = 11;
	assert_int_equal(hf_config_agree(&spec, &files, &err), ERR_INVALID_VALUE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_config_comes_back),
		cmocka_unit_test(transformers_finds_what_it_needs),
		cmocka_unit_test(configs_of_others_are_read),
		cmocka_unit_test(models_of_another_kind_are_refused_by_field),
		cmocka_unit_test(a_spec_that_says_otherwise_is_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
