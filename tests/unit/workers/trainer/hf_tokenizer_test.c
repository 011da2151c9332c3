/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/hf_tokenizer.c and hf_adapter.c: the files beside a model. The tokenizer of
 * bytes is read back by the engine's own reader of tokenizer.json. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/engine/tokenizer/tokenizer.h"
#include "workers/trainer/hf_adapter.h"
#include "workers/trainer/hf_tokenizer.h"

static const char small[] =
	"{\"version\":\"1.0\",\"added_tokens\":[{\"id\":5,\"content\":\"<|endoftext|>\",\"special\":"
	"true},"
	"{\"id\":6,\"content\":\"<pad>\",\"special\":true}],\"pre_tokenizer\":null,"
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4}"
	","
	"\"merges\":[\"a b\",[\"\\u0120\",\"ab\"]]}}";

static void write_all(struct fixture *f, const struct job_spec *spec, const char *path)
{
	struct err err = { 0 };
	struct folder folder;
	struct hf_tokenizer t;
	if (hf_tokenizer_open(spec, path, &t, &err) < 0 ||
		folder_begin(&folder, f->dir, ".writing", "tok", 0, &err) < 0 ||
		hf_tokenizer_write(&t, spec, &folder, &err) < 0 || folder_publish(&folder, &err) < 0)
		fail_msg("%s", err.message);
	hf_tokenizer_close(&t);
}

static char *text_of(struct fixture *f, const char *name)
{
	struct err err = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	if (file_read(fixture_path(f, name), 1 << 20, &text, &bytes, &err) < 0)
		fail_msg("%s", err.message);
	return text;
}

static void has(struct fixture *f, const char *name, const char *part)
{
	cleanup(freep) char *text = text_of(f, name);
	if (strstr(text, part) == NULL)
		fail_msg("%s: %s", name, text);
}

static void files_are_as_transformers_reads_them(void **state)
{
	struct fixture *f = *state;
	struct job_spec spec = f->spec;
	spec.data.tokenizer = SPEC_TOKENIZER_GPT2;
	fixture_write(fixture_path(f, "t.json"), small, strlen(small));
	write_all(f, &spec, fixture_path(f, "t.json"));
	cleanup(freep) char *copy = text_of(f, "tok/tokenizer.json");
	assert_string_equal(copy, small);
	cleanup(freep) char *merges = text_of(f, "tok/merges.txt");
	assert_string_equal(merges, "#version: 0.2\na b\n\xc4\xa0 ab\n");
	cleanup(freep) char *vocab = text_of(f, "tok/vocab.json");
	assert_string_equal(vocab, "{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4}");
	has(f, "tok/tokenizer_config.json", "\"tokenizer_class\":\"GPT2Tokenizer\"");
	has(f, "tok/tokenizer_config.json", "\"model_max_length\":16");
	has(f, "tok/special_tokens_map.json", "\"eos_token\":\"<|endoftext|>\"");
	has(f, "tok/special_tokens_map.json", "\"bos_token\":\"<|endoftext|>\"");
	has(f, "tok/special_tokens_map.json", "\"pad_token\":\"<pad>\"");
	spec.data.tokenizer = SPEC_TOKENIZER_FILE;
	write_all(f, &spec, fixture_path(f, "t.json"));
	has(f, "tok/tokenizer_config.json", "\"tokenizer_class\":\"PreTrainedTokenizerFast\"");
	assert_false(file_exists(fixture_path(f, "tok/vocab.json")));
}

static void conversations_have_the_form_that_was_trained(void **state)
{
	struct fixture *f = *state;
	struct job_spec spec = f->spec;
	write_all(f, &spec, NULL);
	cleanup(freep) char *plain = text_of(f, "tok/tokenizer_config.json");
	assert_null(strstr(plain, "chat_template"));
	spec.task = SPEC_FINE_TUNE;
	write_all(f, &spec, NULL);
	has(f, "tok/tokenizer_config.json", "{{ '\\\\x00' }}");
	fixture_write(fixture_path(f, "t.json"), small, strlen(small));
	spec.data.tokenizer = SPEC_TOKENIZER_FILE;
	write_all(f, &spec, fixture_path(f, "t.json"));
	has(f, "tok/tokenizer_config.json",
		"\"chat_template\":\"{% for message in messages %}{% if not loop.first %}{{ '\\\\n' }}"
		"{% endif %}{{ '<|' + message['role'] + '|>\\\\n' + message['content'] }}"
		"{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
		"{% if add_generation_prompt %}{{ '\\\\n<|assistant|>\\\\n' }}{% endif %}\"");
}

static void special_tokens_have_their_ids(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct hf_tokenizer t;
	struct job_spec spec = f->spec;
	fixture_write(fixture_path(f, "t.json"), small, strlen(small));
	spec.data.tokenizer = SPEC_TOKENIZER_FILE;
	assert_int_equal(hf_tokenizer_open(&spec, fixture_path(f, "t.json"), &t, &err), 0);
	assert_int_equal(t.ids.eos, 5);
	assert_int_equal(t.ids.bos, 5);
	assert_int_equal(t.ids.pad, 6);
	hf_tokenizer_close(&t);
	spec.data.tokenizer = SPEC_TOKENIZER_NONE;
	assert_int_equal(hf_tokenizer_open(&spec, NULL, &t, &err), 0);
	assert_null(t.text);
	assert_int_equal(t.ids.eos, -1);
	assert_int_equal(hf_tokenizer_open(&spec, fixture_path(f, "none"), &t, &err), ERR_IO);
}

struct ids {
	int32_t id[1024];
	size_t count;
};

static int take(void *ctx, const int32_t *ids, size_t count, struct err *err)
{
	struct ids *x = ctx;
	(void)err;
	assert_true(x->count + count <= ARRAY_LEN(x->id));
	memcpy(x->id + x->count, ids, count * sizeof(*ids));
	x->count += count;
	return 0;
}

/* Every byte that can stand in UTF-8, by the file that we write, is its own id. */
static void the_tokenizer_of_bytes_is_one_of_hugging_face(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct ids ids = { 0 };
	char text[512];
	size_t bytes = 0;
	cleanup(tokenizer_closep) struct tokenizer *t = NULL;
	cleanup(tokenizer_encoder_destroyp) struct tokenizer_encoder *e = NULL;
	/* The fixture's tokenizer: bytes, whatever file there is. */
	fixture_write(fixture_path(f, "t.json"), small, strlen(small));
	write_all(f, &f->spec, fixture_path(f, "t.json"));
	if (tokenizer_open(fixture_path(f, "tok/tokenizer.json"), "t", "p", &t, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(tokenizer_vocabulary(t), 256);
	for (int c = 0; c < 128; c++)
		text[bytes++] = (char)c;
	static const char more[] = "\xc2\x80\xc2\xad\xc3\xbf\xc4\xa0\xe2\x82\xac\xf0\x9f\x98\x80  a  ";
	memcpy(text + bytes, more, sizeof(more) - 1);
	bytes += sizeof(more) - 1;
	assert_int_equal(tokenizer_encoder_create(t, &e, &err), 0);
	assert_int_equal(tokenizer_encode(e, text, bytes, take, &ids, &err), 0);
	assert_int_equal(ids.count, bytes);
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(ids.id[i], (unsigned char)text[i]);
}

static void adapters_say_what_they_are(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct spec_lora back;
	struct job_spec spec = f->spec;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, 65536);
	spec.lora = (struct spec_lora){
		.rank = 8, .alpha = 16, .dropout = 0.05, .target_count = 2, .target = { "c_attn", "c_proj" }
	};
	hf_adapter_write(&spec, &text);
	assert_string_equal(buf_cstr(&text),
		"{\"base_model_name_or_path\":null,\"bias\":\"none\",\"fan_in_fan_out\":true,"
		"\"inference_mode\":true,\"init_lora_weights\":true,\"lora_alpha\":16,"
		"\"lora_dropout\":0.05,\"modules_to_save\":null,\"peft_type\":\"LORA\",\"r\":8,"
		"\"target_modules\":[\"c_attn\",\"c_proj\"],\"task_type\":\"CAUSAL_LM\"}\n");
	fixture_write(fixture_path(f, "adapter_config.json"), text.data, text.len);
	assert_int_equal(hf_adapter_read(f->dir, &back, &err), 0);
	assert_int_equal(back.rank, 8);
	assert_true(back.alpha == 16);
	assert_int_equal(hf_adapter_agree(f->dir, &spec.lora, &err), 0);
	struct spec_lora other = spec.lora;
	snprintf(other.target[0], SPEC_TARGET_MAX, "c_proj");
	snprintf(other.target[1], SPEC_TARGET_MAX, "c_attn"); /* the order says nothing */
	assert_int_equal(hf_adapter_agree(f->dir, &other, &err), 0);
	snprintf(other.target[0], SPEC_TARGET_MAX, "c_fc");
	assert_int_equal(hf_adapter_agree(f->dir, &other, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "target_modules");
	other = spec.lora;
	other.rank = 4;
	assert_int_equal(hf_adapter_agree(f->dir, &other, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "r");
	other = spec.lora;
	other.alpha = 8;
	assert_int_equal(hf_adapter_agree(f->dir, &other, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "lora_alpha");
}

static void adapters_of_other_kinds_are_refused(void **state)
{
	static const struct {
		const char *text, *field;
	} cases[] = {
		{ "{}", "r" },
		{ "{\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"]}", "peft_type" },
		{ "{\"peft_type\":\"IA3\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"]}",
			"peft_type" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"],"
		  "\"use_rslora\":true}",
			"use_rslora" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"],"
		  "\"use_dora\":true}",
			"use_dora" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"],"
		  "\"bias\":\"all\"}",
			"bias" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"],"
		  "\"alpha_pattern\":{\"q\":2}}",
			"alpha_pattern" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q\"],"
		  "\"alpha_pattern\":{},\"rank_pattern\":{\"q\":2}}",
			"rank_pattern" },
		{ "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":\"all-linear\"}",
			"target_modules" },
	};
	struct fixture *f = *state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		struct spec_lora l;
		fixture_write(fixture_path(f, "adapter_config.json"), cases[i].text, strlen(cases[i].text));
		assert_int_equal(hf_adapter_read(f->dir, &l, &err), ERR_INVALID_DATA);
		assert_string_equal(err.param, cases[i].field);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_as_transformers_reads_them),
		cmocka_unit_test(conversations_have_the_form_that_was_trained),
		cmocka_unit_test(special_tokens_have_their_ids),
		cmocka_unit_test(the_tokenizer_of_bytes_is_one_of_hugging_face),
		cmocka_unit_test(adapters_say_what_they_are),
		cmocka_unit_test(adapters_of_other_kinds_are_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
