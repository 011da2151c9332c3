/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/spec_json_write*.c: random specs of every task and family, damaged ones and the
 * presets are written and read back to the same bytes. */
#include "core/spec/preset.h"
#include "core/spec/spec_json.h"
#include "core/spec/spec_json_private.h"
#include "tests/support/check.h"

static int read_text(const char *text, struct job_spec *spec, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int r = json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, err);
	return r < 0 ? r : spec_json_read(json_doc_root(doc), spec, NULL, err);
}

/* Writes and reads back; both the struct and the text must be the same. */
static void expect_round_trip(const struct job_spec *spec)
{
	cleanup(buf_finish) struct buf once, twice;
	buf_init(&once, JSON_BYTES_MAX);
	buf_init(&twice, JSON_BYTES_MAX);
	assert_int_equal(spec_json_write(spec, &once), 0);
	struct job_spec back;
	struct err err = { 0 };
	if (read_text(buf_cstr(&once), &back, &err) < 0)
		fail_msg("%s\n%s", err.message, buf_cstr(&once));
	assert_int_equal(spec_json_write(&back, &twice), 0);
	assert_string_equal(buf_cstr(&once), buf_cstr(&twice));
	if (memcmp(spec, &back, sizeof(back)) != 0)
		fail_msg("reads back differently: %s", buf_cstr(&once));
}

static int64_t pick(struct check_random *r, int64_t min, int64_t max)
{
	return check_random_range(r, min, max);
}

static double pick_real(struct check_random *r, double min, double max)
{
	return min + (max - min) * (double)(check_random_bits(r) >> 11) / 9007199254740992.0;
}

static void fill_text(struct check_random *r, char *ret, size_t max, const char *alphabet)
{
	size_t len = (size_t)pick(r, 1, (int64_t)max - 1);
	for (size_t i = 0; i < len; i++)
		ret[i] = alphabet[pick(r, 0, (int64_t)strlen(alphabet) - 1)];
}

static void fill_widths(struct check_random *r, int64_t *ret, int count, int64_t max)
{
	for (int i = 0; i < count; i++)
		ret[i] = pick(r, 1, max);
}

static void fill_language(struct check_random *r, struct job_spec *s)
{
	struct spec_model *m = &s->model;
	bool llama = m->family == SPEC_LLAMA;
	m->n_layer = pick(r, 1, SPEC_LAYERS_MAX);
	m->n_kv_head = pick(r, 1, 16);
	m->n_head = llama ? m->n_kv_head * pick(r, 1, 8) : m->n_kv_head;
	m->n_embd = m->n_head * 2 * pick(r, 1, 128);
	m->n_inner = pick(r, 1, 128 * 1024);
	m->n_positions = pick(r, 1, 1024);
	m->vocab_size = pick(r, 50257, 1024 * 1024);
	m->norm_eps = pick_real(r, 0, 0.1);
	m->rope_theta = llama ? pick_real(r, 1, 1e6) : 0;
	m->tied = !llama || pick(r, 0, 1);
	s->data.sequence_length = pick(r, 1, m->n_positions);
	s->data.format = SPEC_FORMAT_JSONL;
	if (s->task == SPEC_LANGUAGE_MODEL) {
		static const enum spec_format formats[] = { SPEC_FORMAT_TEXT, SPEC_FORMAT_JSONL,
			SPEC_FORMAT_TOKENS };
		s->data.format = formats[pick(r, 0, 2)];
	}
	s->data.packing = s->data.format != SPEC_FORMAT_JSONL || pick(r, 0, 1);
	bool tokens = s->data.format == SPEC_FORMAT_TOKENS;
	s->data.tokenizer = (enum spec_tokenizer)pick(
		r, tokens ? SPEC_TOKENIZER_NONE : SPEC_TOKENIZER_BYTES, SPEC_TOKENIZER_FILE);
	if (s->data.tokenizer == SPEC_TOKENIZER_FILE) {
		memcpy(s->data.tokenizer_file, "file_", 5);
		fill_text(r, s->data.tokenizer_file + 5, SPEC_ID_MAX - 5, "abcXYZ019_-");
	}
	s->checkpointing = (enum spec_checkpointing)pick(r, SPEC_KEEP_ALL, SPEC_FULL);
}

static void fill_lora(struct check_random *r, struct job_spec *s)
{
	static const char *const gpt2[] = { "c_fc", "c_attn", "c_proj" };
	static const char *const llama[] = { "q_proj", "k_proj", "down_proj", "o_proj", "v_proj",
		"up_proj", "gate_proj" };
	bool is_gpt2 = s->model.family == SPEC_GPT2;
	struct spec_lora *l = &s->lora;
	if (pick(r, 0, 1))
		return;
	l->rank = pick(r, 1, SPEC_LORA_RANK_MAX);
	l->alpha = pick_real(r, 1e-3, 1e3);
	l->dropout = pick_real(r, 0, 0.95);
	l->target_count = (int)pick(r, 1, is_gpt2 ? 3 : 7);
	for (int i = 0; i < l->target_count; i++)
		(void)snprintf(l->target[i], SPEC_TARGET_MAX, "%s", is_gpt2 ? gpt2[i] : llama[i]);
}

static void fill_dlrm(struct check_random *r, struct job_spec *s)
{
	struct spec_model *m = &s->model;
	m->dense_features = pick(r, 1, 4096);
	m->embedding_dim = pick(r, 1, 1024);
	m->lookups = pick(r, 1, 256);
	m->table_count = (int)pick(r, 1, SPEC_TABLES_MAX);
	fill_widths(r, m->table_rows, m->table_count, SPEC_TABLE_ROWS_MAX);
	m->hidden_count = (int)pick(r, 1, SPEC_LAYERS_MAX);
	fill_widths(r, m->hidden, m->hidden_count, SPEC_HIDDEN_UNITS_MAX);
	m->hidden[m->hidden_count - 1] = m->embedding_dim;
	m->top_count = (int)pick(r, 0, SPEC_LAYERS_MAX);
	fill_widths(r, m->top, m->top_count, SPEC_HIDDEN_UNITS_MAX - 1);
	if (m->top_count > 0)
		m->top[m->top_count - 1]++;
	s->data.format = SPEC_FORMAT_CSV;
	fill_text(r, s->data.label_column, SPEC_COLUMN_MAX, "abc \"\\{}[],");
	s->data.categorical_count = m->table_count;
	for (int i = 0; i < s->data.categorical_count; i++)
		(void)snprintf(s->data.categorical[i], SPEC_COLUMN_MAX, "C%d", i);
}

static void fill_image(struct check_random *r, struct job_spec *s)
{
	struct spec_model *m = &s->model;
	m->block = m->family == SPEC_CNN
		? (enum spec_block)pick(r, SPEC_BLOCK_PLAIN, SPEC_BLOCK_BOTTLENECK)
		: SPEC_BLOCK_PLAIN;
	if (m->block == SPEC_BLOCK_PLAIN) {
		m->hidden_count = (int)pick(r, 0, SPEC_LAYERS_MAX);
		fill_widths(r, m->hidden, m->hidden_count, SPEC_HIDDEN_UNITS_MAX);
	}
	if (m->family == SPEC_CNN) {
		m->channel_count = (int)pick(r, 1, SPEC_CHANNELS_MAX);
		fill_widths(r, m->channels, m->channel_count, SPEC_CHANNEL_MAX);
	}
	if (m->block != SPEC_BLOCK_PLAIN) {
		m->stem = (enum spec_stem)pick(r, SPEC_STEM_3, SPEC_STEM_7);
		fill_widths(r, m->blocks, m->channel_count, SPEC_LAYERS_MAX);
	} else if (m->family == SPEC_CNN) {
		m->blocks_per_stage = pick(r, 1, SPEC_BLOCKS_MAX);
	}
	m->in_channels = pick(r, 0, 4);
	m->in_height = pick(r, 0, 100);
	m->in_width = pick(r, 0, 100);
	m->n_classes = pick(r, 0, 65536);
	bool images = s->task == SPEC_IMAGE_CLASSIFICATION;
	s->data.format = pick(r, 0, 1) ? SPEC_FORMAT_IDX : SPEC_FORMAT_NPY;
	if (pick(r, 0, 1))
		s->data.format = images ? SPEC_FORMAT_IMAGE_TAR : SPEC_FORMAT_CSV;
	if (s->data.format == SPEC_FORMAT_CSV && pick(r, 0, 1))
		fill_text(r, s->data.label_column, SPEC_COLUMN_MAX, "abc \"\\{}[],");
	s->data.flip = images && pick(r, 0, 1);
	s->data.crop_padding = images ? pick(r, 0, SPEC_CROP_PADDING_MAX) : 0;
}

static void fill_hyper(struct check_random *r, struct spec_hyper *h)
{
	h->epochs = pick_real(r, 0.001, 100);
	h->max_steps = pick(r, 0, 1) ? pick(r, 1, SPEC_STEPS_MAX) : 0;
	h->micro_batch_size = pick(r, 1, 100);
	h->batch_size = h->micro_batch_size * pick(r, 1, 100); /* of one rank */
	h->optimizer = (enum spec_optimizer)pick(r, SPEC_ADAMW, SPEC_SGD);
	h->schedule = (enum spec_schedule)pick(r, SPEC_CONSTANT, SPEC_COSINE);
	h->learning_rate = pick_real(r, 0, 1) * pick_real(r, 0, 1e-3);
	h->min_lr_ratio = pick_real(r, 0, 1);
	h->warmup_steps = pick(r, 0, h->max_steps ? h->max_steps : SPEC_STEPS_MAX);
	h->weight_decay = pick_real(r, 0, 1);
	h->beta1 = pick_real(r, 0, 0.9999);
	h->beta2 = pick_real(r, 0, 0.9999);
	h->eps = pick_real(r, 1e-12, 1e-4);
	h->momentum = pick_real(r, 0, 0.99);
	h->grad_clip = pick(r, 0, 1) ? pick_real(r, 0, 10) : 0;
	h->dropout = pick_real(r, 0, 0.9);
	h->label_smoothing = pick_real(r, 0, 0.9);
	h->ema_decay = pick(r, 0, 1) ? pick_real(r, 0.9, 0.9999) : 0;
}

static void fill_run(struct check_random *r, struct job_spec *s)
{
	static const char *const regions[] = { "any", "us", "us-east-1", "eu-central" };
	s->precision = (enum spec_precision)pick(r, SPEC_FP32, SPEC_TF32);
	s->hyper.stochastic_rounding = s->precision == SPEC_BF16 && pick(r, 0, 1);
	fill_text(r, s->instance_type, SPEC_ID_MAX, "abcxyz0189-._");
	s->device_count = s->parallel.data = pick(r, 1, 6);
	s->parallel.tensor = s->parallel.pipeline = s->parallel.interleave = 1;
	s->parallel.min_data = pick(r, 0, s->parallel.data - 1);
	s->hyper.batch_size *= s->parallel.data;
	s->checkpoint_every_steps = pick(r, 0, SPEC_STEPS_MAX);
	s->checkpoint_keep = pick(r, 1, 100);
	s->evaluation_every_steps = pick(r, 0, SPEC_STEPS_MAX);
	s->residency_count = (int)pick(r, 0, SPEC_REGIONS_MAX);
	for (int i = 0; i < s->residency_count; i++)
		(void)snprintf(s->residency[i], SPEC_REGION_MAX, "%s", regions[pick(r, 0, 3)]);
	s->limits.max_runtime_s = pick(r, 0, 365 * 24 * 3600);
	s->limits.max_cost_micros = pick(r, 0, 1000000000000);
	s->priority = (int)pick(r, -1, 1);
	s->seed = pick(r, 0, 9007199254740991);
}

static void fill_family(struct check_random *r, struct job_spec *s)
{
	switch (s->task) {
	case SPEC_LANGUAGE_MODEL:
	case SPEC_FINE_TUNE: s->model.family = pick(r, 0, 1) ? SPEC_GPT2 : SPEC_LLAMA; break;
	case SPEC_IMAGE_CLASSIFICATION: s->model.family = pick(r, 0, 1) ? SPEC_CNN : SPEC_MLP; break;
	case SPEC_CLICK_THROUGH: s->model.family = SPEC_DLRM; break;
	default: s->model.family = SPEC_MLP; break;
	}
	if (spec_is_language(s)) {
		fill_language(r, s);
		fill_lora(r, s);
	} else if (s->model.family == SPEC_DLRM) {
		fill_dlrm(r, s);
	} else {
		fill_image(r, s);
	}
	if (pick(r, 0, 3) == 0) {
		static const char *const prefixes[] = { "ckpt_", "job_", "model_" };
		size_t n = (size_t)snprintf(s->base, SPEC_ID_MAX, "%s", prefixes[pick(r, 0, 2)]);
		fill_text(r, s->base + n, SPEC_ID_MAX - n, "0123456789ABCDEF");
	}
}

static void fill_random(struct check_random *r, struct job_spec *s)
{
	memset(s, 0, sizeof(*s));
	if (pick(r, 0, 3))
		fill_text(r, s->name, 65, "ab \"\\'<>{}[]:,\x7E");
	s->task = (enum spec_task)pick(r, 0, SPEC_TASK_COUNT - 1);
	s->data.shuffle = pick(r, 0, 1);
	fill_family(r, s);
	bool pairs = s->data.format == SPEC_FORMAT_IDX || s->data.format == SPEC_FORMAT_NPY;
	s->training_file_count = pairs ? 2 : (int)pick(r, 1, SPEC_FILES_MAX);
	s->validation_file_count = pairs ? 2 * (int)pick(r, 0, 1) : (int)pick(r, 0, SPEC_FILES_MAX);
	for (int i = 0; i < s->training_file_count; i++)
		fill_text(r, s->training_file[i], SPEC_ID_MAX, "abcXYZ019_-");
	for (int i = 0; i < s->validation_file_count; i++)
		fill_text(r, s->validation_file[i], SPEC_ID_MAX, "abcXYZ019_-");
	fill_hyper(r, &s->hyper);
	fill_run(r, s);
}

static void random_specs_read_back(void **state)
{
	struct check_random random = check_random_start();
	for (int i = 0; i < 4000; i++) {
		struct job_spec s;
		fill_random(&random, &s);
		expect_round_trip(&s);
	}
}

/* Fewer layers, so that a damaged byte hits something else too. */
static void shorten(struct job_spec *s)
{
	struct spec_model *m = &s->model;
	if (m->family == SPEC_DLRM) {
		m->hidden[0] = m->embedding_dim;
		m->hidden_count = 1;
		m->top_count = 0;
		memset(m->top, 0, sizeof(m->top));
	} else {
		m->hidden_count = m->hidden_count % 4;
	}
	memset(&m->hidden[m->hidden_count], 0,
		sizeof(m->hidden) - (size_t)m->hidden_count * sizeof(m->hidden[0]));
}

/* Complete specs with damaged bytes: refused with a code of the reader, or accepted, and then what
 * was accepted reads back like any other. */
static void damaged_specs_are_refused_or_read_back(void **state)
{
	struct check_random random = check_random_start();
	cleanup(buf_finish) struct buf text;
	buf_init(&text, JSON_BYTES_MAX);
	int accepted = 0;
	for (int i = 0; i < 6000; i++) {
		struct job_spec s;
		fill_random(&random, &s);
		shorten(&s);
		buf_reset(&text);
		assert_int_equal(spec_json_write(&s, &text), 0);
		int flips = (int)pick(&random, 1, 3);
		for (int k = 0; k < flips; k++)
			text.data[pick(&random, 0, (int64_t)text.len - 1)] =
				"0123456789-+.eE\"{}[]:,ntf"[pick(&random, 0, 25)];
		struct job_spec back;
		struct err err = { 0 };
		int r = read_text(text.data, &back, &err);
		assert_true(r == 0 || (err.code == r && err.message[0]));
		assert_true(r == 0 || err_info(r)->http_status == 400);
		if (r == 0) {
			accepted++;
			expect_round_trip(&back);
		}
	}
	assert_true(accepted > 100);
}

static void presets_read_back(void **state)
{
	size_t count;
	const struct preset *all = preset_all(&count);
	for (size_t i = 0; i < count; i++) {
		cleanup(buf_finish) struct buf text;
		struct job_spec s;
		struct err err = { 0 };
		bool pairs = all[i].task == SPEC_IMAGE_CLASSIFICATION;
		buf_init(&text, JSON_BYTES_MAX);
		buf_printf(&text, "{\"task\":\"%s\",\"model\":{\"preset\":\"%s\"}",
			spec_task_word(all[i].task), all[i].name);
		for (int t = 0; t < all[i].model.table_count; t++)
			buf_printf(&text, "%s\"C%d\"", t ? "," : ",\"data\":{\"categorical\":[", t);
		buf_printf(&text,
			"%s,\"training_file\":[\"a\"%s],\"resources\":{\"instance_type\":\"cpu-dev\"}}",
			all[i].model.table_count ? "]}" : "", pairs ? ",\"b\"" : "");
		if (read_text(buf_cstr(&text), &s, &err) < 0)
			fail_msg("%s: %s", all[i].name, err.message);
		assert_memory_equal(&s.model, &all[i].model, sizeof(s.model));
		expect_round_trip(&s);
	}
}

static void a_full_buffer_is_told(void **state)
{
	struct check_random random = check_random_start();
	struct job_spec s;
	fill_random(&random, &s);
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 100);
	assert_int_equal(spec_json_write(&s, &out), ERR_TOO_LARGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_specs_read_back),
		cmocka_unit_test(damaged_specs_are_refused_or_read_back),
		cmocka_unit_test(presets_read_back),
		cmocka_unit_test(a_full_buffer_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
