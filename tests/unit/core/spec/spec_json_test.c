/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/spec_json*.c: what is refused comes from spec_json_cases.txt (argument 1); what
 * is accepted is checked against the documented defaults; random specs are written and read. */
#include "core/spec/preset.h"
#include "core/spec/spec_json.h"
#include "core/spec/spec_json_private.h"
#include "tests/support/check.h"

enum { LINE_MAX_BYTES = 1024, TEXT_MAX = 4096, FIELDS = 5 };

static const char *cases_path;

/* The members come first: a later duplicate would be refused, so a base leaves out what the
 * addition gives. */
static const struct base {
	const char *name;
	const char *members[4][2];
} BASES[] = {
	{ "none", { { NULL } } },
	{ "lm",
		{ { "task", "\"language_model\"" }, { "model", "{\"preset\":\"gpt2-tiny\"}" },
			{ "training_file", "\"file_1\"" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
	{ "cnn",
		{ { "task", "\"image_classification\"" }, { "model", "{\"preset\":\"mnist-cnn\"}" },
			{ "training_file", "[\"file_1\",\"file_2\"]" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
	{ "mlp",
		{ { "task", "\"regression\"" },
			{ "model", "{\"config\":{\"family\":\"mlp\",\"hidden\":[]}}" },
			{ "training_file", "[\"file_1\",\"file_2\"]" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
};

static bool mentions_top_level(const char *added, const char *key)
{
	char quoted[64];
	(void)snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	int depth = 0;
	for (const char *p = added; *p; p++) {
		depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
		if (depth == 0 && strncmp(p, quoted, strlen(quoted)) == 0)
			return true;
	}
	return false;
}

static void compose(const char *base_name, const char *added, char ret[static TEXT_MAX])
{
	const struct base *base = NULL;
	for (size_t i = 0; i < ARRAY_LEN(BASES); i++) {
		if (strcmp(BASES[i].name, base_name) == 0)
			base = &BASES[i];
	}
	assert_non_null(base);
	size_t len = (size_t)snprintf(ret, TEXT_MAX, "{%s", added);
	for (size_t i = 0; i < ARRAY_LEN(base->members) && base->members[i][0]; i++) {
		if (mentions_top_level(added, base->members[i][0]))
			continue;
		len += (size_t)snprintf(ret + len, TEXT_MAX - len, "%s\"%s\":%s", len > 1 ? "," : "",
			base->members[i][0], base->members[i][1]);
	}
	(void)snprintf(ret + len, TEXT_MAX - len, "}");
}

static int read_text(const char *text, struct job_spec *spec, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int r = json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, err);
	return r < 0 ? r : spec_json_read(json_doc_root(doc), spec, NULL, err);
}

static void read_good(const char *base, const char *added, struct job_spec *spec)
{
	char text[TEXT_MAX];
	struct err err = { 0 };
	compose(base, added, text);
	if (read_text(text, spec, &err) < 0)
		fail_msg("%s\n%s: %s", text, err.param, err.message);
}

/* Splits at " | " in place; "||" with nothing between is an empty field. */
static int split(char *line, char *fields[FIELDS])
{
	int count = 0;
	line[strcspn(line, "\n")] = '\0';
	for (char *p = line; p && count < FIELDS; count++) {
		while (*p == ' ')
			p++;
		fields[count] = p;
		char *bar = strstr(p, *p == '|' ? "|" : " |");
		if (bar) {
			*bar = '\0';
			bar += *p == '\0' ? 1 : 2;
		}
		p = bar;
	}
	return count;
}

static void refused_specs_say_where_and_why(void **state)
{
	FILE *f = fopen(cases_path, "r");
	assert_non_null(f);
	char line[LINE_MAX_BYTES];
	int cases = 0;
	while (fgets(line, sizeof(line), f)) {
		char *fields[FIELDS];
		if (line[0] == '#' || line[0] == '\n')
			continue;
		assert_int_equal(split(line, fields), FIELDS);
		char text[TEXT_MAX];
		compose(fields[0], fields[3], text);
		struct err err = { 0 };
		struct job_spec spec;
		memset(&spec, 0x5A, sizeof(spec));
		int r = read_text(text, &spec, &err);
		if (r == 0 || strcmp(err_info(r)->name, fields[1]) != 0 || err.code != r ||
			strcmp(err.param, fields[2]) != 0 || !strstr(err.message, fields[4]))
			fail_msg("%s\ngot %s | %s | %s", text, err_info(r)->name, err.param, err.message);
		/* Nothing is returned on failure. */
		assert_int_equal(((unsigned char *)&spec)[0], 0x5A);
		cases++;
	}
	(void)fclose(f);
	assert_true(cases > 100);
}

static void defaults_are_the_documented_ones(void **state)
{
	struct job_spec s;
	read_good("lm", "", &s);
	assert_string_equal(s.name, "");
	assert_int_equal(s.model.n_embd, 128);
	assert_int_equal(s.training_file_count, 1);
	assert_string_equal(s.training_file[0], "file_1");
	assert_int_equal(s.validation_file_count, 0);
	assert_int_equal(s.data.format, SPEC_FORMAT_TEXT);
	assert_int_equal(s.data.tokenizer, SPEC_TOKENIZER_BYTES);
	assert_int_equal(s.data.sequence_length, 256);
	assert_true(s.data.shuffle);
	assert_true(s.hyper.epochs == 1 && s.hyper.learning_rate == 3e-4 && s.hyper.beta2 == 0.95);
	assert_true(s.hyper.weight_decay == 0.1 && s.hyper.grad_clip == 1 && s.hyper.eps == 1e-8);
	assert_true(s.hyper.min_lr_ratio == 0.1 && s.hyper.momentum == 0.9 && s.hyper.dropout == 0);
	assert_int_equal(s.hyper.batch_size, 32);
	assert_int_equal(s.hyper.micro_batch_size, 32);
	assert_int_equal(s.hyper.max_steps, 0);
	assert_int_equal(s.hyper.warmup_steps, 100);
	assert_int_equal(s.hyper.optimizer, SPEC_ADAMW);
	assert_int_equal(s.hyper.schedule, SPEC_COSINE);
	assert_int_equal(s.precision, SPEC_FP32);
	assert_string_equal(s.instance_type, "cpu-dev");
	assert_int_equal(s.device_count, 1);
	assert_int_equal(s.checkpoint_every_steps, 500);
	assert_int_equal(s.checkpoint_keep, 3);
	assert_int_equal(s.evaluation_every_steps, 200);
	assert_int_equal(s.residency_count, 0);
	assert_int_equal(s.limits.max_runtime_s, 0);
	assert_int_equal(s.limits.max_cost_micros, 0);
	assert_int_equal(s.priority, 0);
	assert_int_equal(s.seed, 42);

	/* An empty object and one that is absent mean the same; null means absent. */
	struct job_spec empty;
	read_good("lm", "\"hyperparameters\":{},\"data\":{},\"limits\":{},\"name\":null", &empty);
	assert_memory_equal(&s, &empty, sizeof(s));
}

static void accepted_values_are_read(void **state)
{
	struct job_spec s;
	read_good("lm",
		"\"name\":\"\xC3\xA9\xC3\xA9\",\"training_file\":[\"a\",\"b\"],\"validation_file\":\"c\","
		"\"priority\":\"high\",\"residency\":[\"us\",\"eu-west\"],\"seed\":9007199254740991,"
		"\"limits\":{\"max_runtime_s\":60,\"max_cost\":\"250.50\"},\"parallelism\":\"auto\","
		"\"precision\":\"auto\",\"activation_checkpointing\":\"auto\",\"metadata\":{\"a\":\"b\"},"
		"\"hyperparameters\":{\"max_steps\":50,\"batch_size\":48,\"micro_batch_size\":16}",
		&s);
	assert_string_equal(s.name, "\xC3\xA9\xC3\xA9");
	assert_int_equal(s.training_file_count, 2);
	assert_string_equal(s.validation_file[0], "c");
	assert_int_equal(s.priority, 1);
	assert_string_equal(s.residency[1], "eu-west");
	assert_true(s.seed == 9007199254740991);
	assert_int_equal(s.limits.max_cost_micros, 250500000);
	assert_int_equal(s.hyper.micro_batch_size, 16);
	assert_int_equal(s.hyper.warmup_steps, 5); /* the default fits the run */
}

static void every_hyperparameter_may_be_auto(void **state)
{
	static const char *const keys[] = { "epochs", "max_steps", "batch_size", "micro_batch_size",
		"optimizer", "learning_rate", "schedule", "warmup_steps", "min_lr_ratio", "weight_decay",
		"beta1", "beta2", "eps", "momentum", "grad_clip", "dropout", "label_smoothing" };
	char added[1024] = "\"hyperparameters\":{";
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		size_t len = strlen(added);
		(void)snprintf(
			added + len, sizeof(added) - len, "%s\"%s\":\"auto\"", i ? "," : "", keys[i]);
	}
	size_t len = strlen(added);
	(void)snprintf(added + len, sizeof(added) - len, "}");
	struct job_spec s;
	read_good("lm", added, &s);
	assert_true(s.hyper.learning_rate == 1e-3);
	assert_int_equal(s.hyper.batch_size, 32);
	read_good("cnn", added, &s);
	assert_true(s.hyper.learning_rate == 1e-3 && s.hyper.beta2 == 0.999);
	assert_int_equal(s.hyper.batch_size, 64);
	read_good("cnn", "\"hyperparameters\":{\"optimizer\":\"sgd\",\"learning_rate\":\"auto\"}", &s);
	assert_true(s.hyper.learning_rate == 0.05 && s.hyper.weight_decay == 0.1);
}

static void auto_micro_batches_divide(void **state)
{
	struct check_random random = check_random_start();
	for (int i = 0; i < 500; i++) {
		char added[256];
		(void)snprintf(added, sizeof(added),
			"\"hyperparameters\":{\"batch_size\":%d},\"data\":{\"sequence_length\":%d}",
			(int)check_random_range(&random, 1, 4096), (int)check_random_range(&random, 1, 256));
		struct job_spec s;
		read_good("lm", added, &s);
		assert_int_equal(s.hyper.batch_size % s.hyper.micro_batch_size, 0);
		assert_true(s.hyper.micro_batch_size * s.data.sequence_length <= 8192);
	}
}

static void metadata_is_borrowed(void **state)
{
	char text[TEXT_MAX];
	compose("lm", "\"metadata\":{\"team\":\"nlp\"}", text);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err err = { 0 };
	struct job_spec s;
	const struct json_val *metadata = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_int_equal(spec_json_read(json_doc_root(doc), &s, &metadata, &err), 0);
	assert_string_equal(json_str_or(json_get(metadata, "team"), ""), "nlp");
	assert_int_equal(spec_json_read(json_doc_root(doc), &s, NULL, &err), 0);
	assert_int_equal(spec_json_read(NULL, &s, NULL, &err), ERR_INVALID_TYPE);
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

static void fill_model(struct check_random *r, struct job_spec *s)
{
	struct spec_model *m = &s->model;
	if (m->family == SPEC_GPT2) {
		m->n_layer = pick(r, 1, SPEC_LAYERS_MAX);
		m->n_head = pick(r, 1, 64);
		m->n_embd = m->n_head * pick(r, 1, 512);
		m->n_positions = pick(r, 1, 1024);
		m->vocab_size = pick(r, 256, 1024 * 1024);
		s->data.sequence_length = pick(r, 1, m->n_positions);
		return;
	}
	m->hidden_count = (int)pick(r, 0, SPEC_LAYERS_MAX);
	for (int i = 0; i < m->hidden_count; i++)
		m->hidden[i] = pick(r, 1, SPEC_HIDDEN_UNITS_MAX);
	if (m->family == SPEC_CNN) {
		m->channel_count = (int)pick(r, 1, SPEC_CHANNELS_MAX);
		for (int i = 0; i < m->channel_count; i++)
			m->channels[i] = pick(r, 1, SPEC_CHANNEL_MAX);
		m->blocks_per_stage = pick(r, 1, SPEC_BLOCKS_MAX);
	}
	m->in_channels = pick(r, 0, 4);
	m->in_height = pick(r, 0, 100);
	m->in_width = pick(r, 0, 100);
	m->n_classes = pick(r, 0, 65536);
}

static void fill_hyper(struct check_random *r, struct spec_hyper *h)
{
	h->epochs = pick_real(r, 0.001, 100);
	h->max_steps = pick(r, 0, 1) ? pick(r, 1, SPEC_STEPS_MAX) : 0;
	h->micro_batch_size = pick(r, 1, 200);
	h->batch_size = h->micro_batch_size * pick(r, 1, 200);
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
}

static void fill_run(struct check_random *r, struct job_spec *s)
{
	static const char *const regions[] = { "any", "us", "us-east-1", "eu-central" };
	fill_text(r, s->instance_type, SPEC_ID_MAX, "abcxyz0189-._");
	s->device_count = 1;
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

static void fill_random(struct check_random *r, struct job_spec *s)
{
	memset(s, 0, sizeof(*s));
	if (pick(r, 0, 3))
		fill_text(r, s->name, 65, "ab \"\\'<>{}[]:,\x7E");
	s->task = (enum spec_task)pick(r, SPEC_LANGUAGE_MODEL, SPEC_CLASSIFICATION);
	bool language = s->task == SPEC_LANGUAGE_MODEL;
	s->model.family = language                 ? SPEC_GPT2
		: s->task == SPEC_IMAGE_CLASSIFICATION ? (enum spec_family)pick(r, SPEC_MLP, SPEC_CNN)
											   : SPEC_MLP;
	fill_model(r, s);
	s->training_file_count = language ? (int)pick(r, 1, SPEC_FILES_MAX) : 2;
	s->validation_file_count = language ? (int)pick(r, 0, SPEC_FILES_MAX) : 2 * (int)pick(r, 0, 1);
	for (int i = 0; i < s->training_file_count; i++)
		fill_text(r, s->training_file[i], SPEC_ID_MAX, "abcXYZ019_-");
	for (int i = 0; i < s->validation_file_count; i++)
		fill_text(r, s->validation_file[i], SPEC_ID_MAX, "abcXYZ019_-");
	s->data.format = language ? SPEC_FORMAT_TEXT : SPEC_FORMAT_IDX;
	s->data.tokenizer = language ? SPEC_TOKENIZER_BYTES : SPEC_TOKENIZER_NONE;
	s->data.shuffle = pick(r, 0, 1);
	fill_hyper(r, &s->hyper);
	fill_run(r, s);
}

static void random_specs_read_back(void **state)
{
	struct check_random random = check_random_start();
	for (int i = 0; i < 3000; i++) {
		struct job_spec s;
		fill_random(&random, &s);
		expect_round_trip(&s);
	}
}

/* Complete specs with damaged bytes: refused with a code of the reader, or accepted, and then what
 * was accepted reads back like any other. */
static void damaged_specs_are_refused_or_read_back(void **state)
{
	struct check_random random = check_random_start();
	cleanup(buf_finish) struct buf text;
	buf_init(&text, JSON_BYTES_MAX);
	int accepted = 0;
	for (int i = 0; i < 5000; i++) {
		struct job_spec s;
		fill_random(&random, &s);
		s.model.hidden_count = s.model.hidden_count % 4;
		memset(&s.model.hidden[s.model.hidden_count], 0,
			sizeof(s.model.hidden) - (size_t)s.model.hidden_count * sizeof(s.model.hidden[0]));
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
	static const char *const bases[] = { "lm", "cnn" };
	size_t count;
	const struct preset *all = preset_all(&count);
	for (size_t i = 0; i < count; i++) {
		char added[128];
		(void)snprintf(added, sizeof(added), "\"model\":{\"preset\":\"%s\"}", all[i].name);
		struct job_spec s;
		read_good(bases[all[i].task != SPEC_LANGUAGE_MODEL], added, &s);
		assert_memory_equal(&s.model, &all[i].model, sizeof(s.model));
		expect_round_trip(&s);
	}
}

static void a_full_buffer_is_told(void **state)
{
	struct job_spec s;
	read_good("lm", "", &s);
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 100);
	assert_int_equal(spec_json_write(&s, &out), ERR_TOO_LARGE);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_specs_say_where_and_why),
		cmocka_unit_test(defaults_are_the_documented_ones),
		cmocka_unit_test(accepted_values_are_read),
		cmocka_unit_test(every_hyperparameter_may_be_auto),
		cmocka_unit_test(auto_micro_batches_divide),
		cmocka_unit_test(metadata_is_borrowed),
		cmocka_unit_test(random_specs_read_back),
		cmocka_unit_test(damaged_specs_are_refused_or_read_back),
		cmocka_unit_test(presets_read_back),
		cmocka_unit_test(a_full_buffer_is_told),
	};
	if (argc != 2)
		return 2;
	cases_path = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
