/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/spec_json*.c: what is refused comes from spec_json_cases.txt (argument 1); what
 * is accepted is checked against the documented defaults. */
#include "core/spec/spec_json.h"
#include "tests/support/check.h"

enum { LINE_MAX_BYTES = 1024, TEXT_MAX = 4096, FIELDS = 5 };

static const char *cases_path;

/* One for each table of the preset. */
#define COLUMNS                                                                                \
	"\"C1\",\"C2\",\"C3\",\"C4\",\"C5\",\"C6\",\"C7\",\"C8\",\"C9\",\"C10\",\"C11\",\"C12\","  \
	"\"C13\",\"C14\",\"C15\",\"C16\",\"C17\",\"C18\",\"C19\",\"C20\",\"C21\",\"C22\",\"C23\"," \
	"\"C24\",\"C25\",\"C26\""

/* The members come first: a later duplicate would be refused, so a base leaves out what the
 * addition gives. */
static const struct base {
	const char *name;
	const char *members[5][2];
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
	{ "llama",
		{ { "task", "\"language_model\"" }, { "model", "{\"preset\":\"llama-tiny\"}" },
			{ "training_file", "\"file_1\"" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
	{ "tune",
		{ { "task", "\"fine_tune\"" }, { "model", "{\"preset\":\"gpt2-124m\"}" },
			{ "training_file", "\"file_1\"" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
	{ "resnet",
		{ { "task", "\"image_classification\"" }, { "model", "{\"preset\":\"resnet-50\"}" },
			{ "training_file", "[\"file_1\",\"file_2\"]" },
			{ "resources", "{\"instance_type\":\"cpu-dev\"}" } } },
	{ "dlrm",
		{ { "task", "\"click_through\"" }, { "model", "{\"preset\":\"dlrm-small\"}" },
			{ "training_file", "\"file_1\"" }, { "data", "{\"categorical\":[" COLUMNS "]}" },
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
	assert_true(cases > 180);
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
	assert_false(s.hyper.stochastic_rounding);
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
	read_good("lm", "\"precision\":\"tf32\"", &s);
	assert_int_equal(s.precision, SPEC_TF32);
	read_good(
		"lm", "\"precision\":\"bf16\",\"hyperparameters\":{\"stochastic_rounding\":true}", &s);
	assert_true(s.hyper.stochastic_rounding);
}

static void every_hyperparameter_may_be_auto(void **state)
{
	static const char *const keys[] = { "epochs", "max_steps", "batch_size", "micro_batch_size",
		"optimizer", "learning_rate", "schedule", "warmup_steps", "min_lr_ratio", "weight_decay",
		"beta1", "beta2", "eps", "momentum", "grad_clip", "dropout", "label_smoothing", "ema_decay",
		"stochastic_rounding" };
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

#define DEVICES(n) "\"resources\":{\"instance_type\":\"cpu-dev\",\"count\":" #n "}"

static void ranks_share_the_batch(void **state)
{
	struct job_spec s;
	read_good("lm", "", &s);
	assert_int_equal(s.parallel.data, 1);
	assert_int_equal(s.parallel.tensor, 1);
	assert_int_equal(s.parallel.pipeline, 1);
	read_good("lm", "\"parallelism\":{\"data\":1,\"zero_stage\":3}", &s);
	assert_int_equal(s.parallel.zero_stage, 0); /* nobody to share with */
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"zero_stage\":3}", &s);
	assert_int_equal(s.parallel.zero_stage, 3);
	assert_int_equal(s.parallel.data, 4);
	assert_int_equal(s.parallel.min_data, 0);
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"min_data\":2}", &s);
	assert_int_equal(s.parallel.min_data, 2);
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"min_data\":4}", &s);
	assert_int_equal(s.parallel.min_data, 0); /* that is not elastic */
	assert_int_equal(s.parallel.interleave, 1);
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"pipeline\":2,\"interleave\":3}", &s);
	assert_int_equal(s.parallel.data, 2);
	assert_int_equal(s.parallel.pipeline, 2);
	assert_int_equal(s.parallel.interleave, 3);
	assert_int_equal(s.hyper.batch_size, 32);
	assert_int_equal(s.hyper.micro_batch_size, 2); /* a rank's 16 are several for each stage */
	/* Left out, "auto", and what is left over of the devices: the same. */
	struct job_spec t;
	read_good("lm", DEVICES(4), &s);
	read_good("lm", DEVICES(4) ",\"parallelism\":\"auto\"", &t);
	assert_memory_equal(&s, &t, sizeof(s));
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"tensor\":1,\"data\":\"auto\"}", &t);
	assert_memory_equal(&s, &t, sizeof(s));
	read_good("lm", DEVICES(4) ",\"parallelism\":{\"data\":4}", &t);
	assert_memory_equal(&s, &t, sizeof(s));
	assert_int_equal(s.parallel.data, 4);
	assert_int_equal(s.hyper.batch_size, 32);
	assert_int_equal(s.hyper.micro_batch_size, 8);
	/* A batch that is chosen fits; one that is given must. */
	read_good("lm", DEVICES(3), &s);
	assert_int_equal(s.hyper.batch_size, 33);
	assert_int_equal(s.hyper.micro_batch_size, 11);
	read_good(
		"lm", DEVICES(2) ",\"hyperparameters\":{\"batch_size\":24,\"micro_batch_size\":4}", &s);
	assert_int_equal(s.hyper.micro_batch_size, 4);
}

static struct spec_open opened(const char *added, struct job_spec *s)
{
	char text[TEXT_MAX];
	compose("lm", added, text);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err err = { 0 };
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_int_equal(spec_json_read(json_doc_root(doc), s, NULL, &err), 0);
	return spec_json_open(json_doc_root(doc), s);
}

/* What nobody said, and several devices could do in several ways. */
static void what_is_left_open_is_told(void **state)
{
	static const struct {
		const char *added;
		bool mesh, micro_batch, checkpointing;
	} cases[] = {
		{ "", false, false, false },
		{ "\"parallelism\":\"auto\"", false, false, false },
		{ DEVICES(4), true, true, true },
		{ DEVICES(4) ",\"parallelism\":null", true, true, true },
		{ DEVICES(4) ",\"parallelism\":{}", false, false, false },
		{ DEVICES(4) ",\"parallelism\":{\"data\":\"auto\"}", false, false, false },
		{ DEVICES(4) ",\"activation_checkpointing\":\"none\"", true, true, false },
		{ DEVICES(4) ",\"activation_checkpointing\":\"auto\"", true, true, true },
		{ DEVICES(4) ",\"hyperparameters\":{\"micro_batch_size\":2}", true, false, true },
		{ DEVICES(4) ",\"hyperparameters\":{\"micro_batch_size\":\"auto\"}", true, true, true },
	};
	struct job_spec s;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct spec_open o = opened(cases[i].added, &s);
		if (o.mesh != cases[i].mesh || o.micro_batch != cases[i].micro_batch ||
			o.checkpointing != cases[i].checkpointing)
			fail_msg("%s: %d %d %d", cases[i].added, o.mesh, o.micro_batch, o.checkpointing);
		if (o.micro_batch)
			assert_int_equal(o.micro_batch_most, 8192 / s.data.sequence_length);
	}
	/* Other meshes than data's may share a batch that data cannot. */
	read_good("lm", DEVICES(3) ",\"hyperparameters\":{\"batch_size\":32}", &s);
	assert_int_equal(s.hyper.batch_size, 32);
	read_good(
		"lm", DEVICES(2) ",\"hyperparameters\":{\"batch_size\":32,\"micro_batch_size\":32}", &s);
	assert_int_equal(s.hyper.micro_batch_size, 32);
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

/* What a base brings: its config and its tokenizer, unless the spec names one. */
static void a_base_brings_its_config(void **state)
{
	char text[TEXT_MAX];
	struct job_spec job, s;
	struct err err = { 0 };
	read_good(
		"llama", "\"model\":{\"preset\":\"llama-15m\"},\"data\":{\"tokenizer\":\"file_9\"}", &job);
	struct spec_base base;
	memset(&base, 0, sizeof(base));
	memcpy(&base.model, &job.model, sizeof(base.model));
	base.tokenizer = job.data.tokenizer;
	memcpy(base.tokenizer_file, job.data.tokenizer_file, sizeof(base.tokenizer_file));

	compose("tune", "\"model\":{\"base\":\"ckpt_1\"},\"lora\":{}", text);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_string_equal(spec_json_base(json_doc_root(doc)), "ckpt_1");
	assert_int_equal(spec_json_read_from(json_doc_root(doc), &base, &s, NULL, &err), 0);
	assert_string_equal(s.base, "ckpt_1");
	assert_memory_equal(&s.model, &job.model, sizeof(s.model));
	assert_int_equal(s.data.tokenizer, SPEC_TOKENIZER_FILE);
	assert_string_equal(s.data.tokenizer_file, "file_9");
	assert_string_equal(s.lora.target[0], "q_proj");
	assert_int_equal(s.lora.target_count, 2);

	compose("tune", "\"model\":{\"base\":\"ckpt_1\"},\"data\":{\"tokenizer\":\"bytes\"}", text);
	json_doc_freep(&doc);
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_int_equal(spec_json_read_from(json_doc_root(doc), &base, &s, NULL, &err), 0);
	assert_int_equal(s.data.tokenizer, SPEC_TOKENIZER_BYTES);
	assert_string_equal(s.data.tokenizer_file, "");

	/* Its family must fit the task, as any other. */
	compose("cnn", "\"model\":{\"base\":\"ckpt_1\"}", text);
	json_doc_freep(&doc);
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_int_equal(
		spec_json_read_from(json_doc_root(doc), &base, &s, NULL, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "$.model");
}

/* A resolved spec may be posted again: its config is then the base's, or it is refused. */
static void a_config_beside_a_base_must_be_its_own(void **state)
{
	static const char config[] = "{\"family\":\"gpt2\",\"n_layer\":%d,\"n_head\":2,"
								 "\"n_embd\":64,\"n_positions\":32}";
	for (int layers = 1; layers <= 2; layers++) {
		char text[TEXT_MAX], added[512], written[256];
		struct job_spec job, s;
		struct err err = { 0 };
		(void)snprintf(written, sizeof(written), config, 2);
		(void)snprintf(added, sizeof(added), "\"model\":{\"config\":%s}", written);
		read_good("lm", added, &job);
		struct spec_base base = { .tokenizer = SPEC_TOKENIZER_BYTES };
		memcpy(&base.model, &job.model, sizeof(base.model));
		(void)snprintf(written, sizeof(written), config, layers);
		(void)snprintf(
			added, sizeof(added), "\"model\":{\"config\":%s,\"base\":\"job_1\"}", written);
		compose("lm", added, text);
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
		int r = spec_json_read_from(json_doc_root(doc), &base, &s, NULL, &err);
		assert_int_equal(r, layers == 2 ? 0 : ERR_INVALID_VALUE);
		if (r < 0)
			assert_string_equal(err.param, "$.model.config");
		/* The trainer, which knows no base, takes the config as it stands. */
		assert_int_equal(spec_json_read(json_doc_root(doc), &s, NULL, &err), 0);
		assert_int_equal(s.model.n_layer, layers);
		assert_string_equal(s.base, "job_1");
	}
}

static void a_base_without_a_tokenizer_needs_one_for_text(void **state)
{
	char text[TEXT_MAX];
	struct job_spec s;
	struct err err = { 0 };
	struct spec_base base = { .tokenizer = SPEC_TOKENIZER_NONE };
	read_good("lm", "", &s);
	memcpy(&base.model, &s.model, sizeof(base.model));
	compose("lm", "\"model\":{\"base\":\"ckpt_1\"}", text);
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, &err), 0);
	assert_int_equal(
		spec_json_read_from(json_doc_root(doc), &base, &s, NULL, &err), ERR_MISSING_FIELD);
	assert_string_equal(err.param, "$.data.tokenizer");
	assert_null(spec_json_base(NULL));
}

/* Tasks and families that came later read what is absent as "auto". */
static void later_families_choose_by_themselves(void **state)
{
	struct job_spec s;
	read_good("resnet", "", &s);
	assert_int_equal(s.hyper.optimizer, SPEC_SGD);
	assert_true(s.hyper.learning_rate == 0.1 && s.hyper.momentum == 0.9);
	assert_true(s.hyper.weight_decay == 1e-4 && s.hyper.grad_clip == 0);
	assert_int_equal(s.hyper.batch_size, 128);
	assert_int_equal(s.hyper.micro_batch_size, 16); /* of 224 x 224 */
	assert_int_equal(s.precision, SPEC_FP32);
	read_good("resnet", "\"model\":{\"preset\":\"resnet-18-cifar\"},\"precision\":\"auto\"", &s);
	assert_true(s.hyper.weight_decay == 5e-4);
	assert_int_equal(s.hyper.micro_batch_size, 128);
	assert_int_equal(s.precision, SPEC_FP32);
	assert_false(s.data.flip);
	read_good("resnet", "\"hyperparameters\":{\"optimizer\":\"adamw\"}", &s);
	assert_true(s.hyper.learning_rate == 1e-3 && s.hyper.weight_decay == 0.01);

	read_good("dlrm", "", &s);
	assert_int_equal(s.hyper.optimizer, SPEC_SGD);
	assert_true(s.hyper.learning_rate == 0.1 && s.hyper.momentum == 0);
	assert_true(s.hyper.weight_decay == 0 && s.hyper.grad_clip == 0);
	assert_int_equal(s.hyper.batch_size, 2048);
	assert_int_equal(s.hyper.micro_batch_size, 2048);
	assert_int_equal(s.data.format, SPEC_FORMAT_CSV);
	assert_string_equal(s.data.label_column, "label");
	assert_int_equal(s.data.categorical_count, 26);
	assert_string_equal(s.data.categorical[25], "C26");

	read_good("tune", "", &s);
	assert_int_equal(s.data.format, SPEC_FORMAT_JSONL);
	assert_true(s.data.packing && s.hyper.learning_rate == 5e-5);
	assert_int_equal(s.lora.rank, 0);
	read_good("tune", "\"lora\":{},\"precision\":\"auto\",\"data\":{\"packing\":false}", &s);
	assert_true(s.hyper.learning_rate == 2e-4 && !s.data.packing);
	assert_int_equal(s.lora.rank, 16);
	assert_true(s.lora.alpha == 32 && s.lora.dropout == 0);
	assert_int_equal(s.lora.target_count, 1);
	assert_string_equal(s.lora.target[0], "c_attn");
	assert_int_equal(s.precision, SPEC_BF16);
	assert_int_equal(s.checkpointing, SPEC_KEEP_ALL);
}

static void configs_fill_themselves_in(void **state)
{
	struct job_spec s;
	read_good("llama",
		"\"model\":{\"config\":{\"family\":\"llama\",\"num_hidden_layers\":2,"
		"\"num_attention_heads\":4,\"hidden_size\":64,\"intermediate_size\":96,"
		"\"max_position_embeddings\":64}},\"data\":{\"tokenizer\":\"gpt2\"}",
		&s);
	assert_int_equal(s.model.n_kv_head, 4);
	assert_true(s.model.norm_eps == 1e-5 && s.model.rope_theta == 10000 && !s.model.tied);
	assert_int_equal(s.model.vocab_size, 50257);
	assert_int_equal(s.data.sequence_length, 64);
	read_good("lm",
		"\"model\":{\"config\":{\"family\":\"gpt2\",\"n_layer\":1,\"n_head\":2,"
		"\"n_embd\":64,\"n_positions\":8}}",
		&s);
	assert_int_equal(s.model.n_inner, 256);
	assert_int_equal(s.model.n_kv_head, 2);
	assert_int_equal(s.model.vocab_size, 256);
	assert_true(s.model.tied && s.model.norm_eps == 1e-5 && s.model.rope_theta == 0);
	read_good("lm", "\"data\":{\"format\":\"tokens\"}", &s);
	assert_int_equal(s.data.tokenizer, SPEC_TOKENIZER_NONE);
	assert_true(s.data.packing);
	read_good("resnet",
		"\"model\":{\"config\":{\"family\":\"cnn\",\"block\":\"bottleneck\","
		"\"channels\":[8],\"blocks\":[3]}}",
		&s);
	assert_int_equal(s.model.stem, SPEC_STEM_3);
	assert_int_equal(s.model.blocks_per_stage, 0);
	assert_int_equal(s.hyper.micro_batch_size, 32); /* of images of any size */
	read_good("mlp", "\"data\":{\"format\":\"csv\"},\"training_file\":\"a\"", &s);
	assert_string_equal(s.data.label_column, "");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_specs_say_where_and_why),
		cmocka_unit_test(defaults_are_the_documented_ones),
		cmocka_unit_test(accepted_values_are_read),
		cmocka_unit_test(every_hyperparameter_may_be_auto),
		cmocka_unit_test(auto_micro_batches_divide),
		cmocka_unit_test(ranks_share_the_batch),
		cmocka_unit_test(what_is_left_open_is_told),
		cmocka_unit_test(metadata_is_borrowed),
		cmocka_unit_test(a_base_brings_its_config),
		cmocka_unit_test(a_config_beside_a_base_must_be_its_own),
		cmocka_unit_test(a_base_without_a_tokenizer_needs_one_for_text),
		cmocka_unit_test(later_families_choose_by_themselves),
		cmocka_unit_test(configs_fill_themselves_in),
	};
	if (argc != 2)
		return 2;
	cases_path = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
