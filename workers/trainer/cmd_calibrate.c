/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer calibrate: measures what this machine does in each precision, on small models
 * whose operations have the shapes of real ones. The file is what --rates reads, and what an
 * instance type's rates are. */
#include "workers/trainer/command.h"

#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "core/spec/spec_json.h"
#include "workers/trainer/folder.h"
#include "workers/trainer/measure.h"
#include "workers/trainer/options.h"

#include <stdio.h>
#include <string.h>

enum {
	RATES_TEXT_MAX = 256 * 1024,
	SPEC_TEXT_MAX = 2048,
	WARM = 1,
	STEPS_DEFAULT = 3,
	STREAM_BYTES_MIN = 256 * 1024 * 1024
};

static const char usage[] =
	"usage: trainyard-trainer calibrate [options]\n"
	"\n"
	"Measures this machine: the rate of matrix products and convolutions in each precision, "
	"memory\n"
	"bandwidth, and what each kind of operation reaches of them. Prints one JSON object.\n"
	"\n"
	"  --device KIND        " DEVICE_WORDS " (auto: a GPU where there is one)\n"
	"  --threads N          compute threads (1)\n"
	"  --steps N            of each model and precision (3)\n"
	"  --precision P[,P…]   fp32, bf16, fp16 (fp32,bf16)\n"
	"  --out FILE           write it there\n";

/* The shapes of GPT-2 124M and of its like, of ResNet-18 on small images, of a click-through model
 * and of wide layers; a few layers of each are enough. %s: the precision. */
static const char *const specs[] = {
	"{\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"gpt2\",\"n_layer\":2,"
	"\"n_head\":12,\"n_embd\":768,\"n_positions\":256,\"vocab_size\":8192}},"
	"\"data\":{\"sequence_length\":256,\"tokenizer\":\"bytes\"},"
	"\"hyperparameters\":{\"batch_size\":4,\"max_steps\":100},\"precision\":\"%s\","
	"\"training_file\":\"file_0\",\"resources\":{\"instance_type\":\"here\",\"count\":1}}",
	"{\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"llama\","
	"\"num_hidden_layers\":2,\"num_attention_heads\":12,\"num_key_value_heads\":4,"
	"\"hidden_size\":768,\"intermediate_size\":2048,\"max_position_embeddings\":256,"
	"\"vocab_size\":8192}},\"data\":{\"sequence_length\":256,\"tokenizer\":\"bytes\"},"
	"\"hyperparameters\":{\"batch_size\":4,\"max_steps\":100},\"precision\":\"%s\","
	"\"training_file\":\"file_0\",\"resources\":{\"instance_type\":\"here\",\"count\":1}}",
	"{\"task\":\"image_classification\",\"model\":{\"config\":{\"family\":\"cnn\","
	"\"block\":\"basic\",\"channels\":[64,128,256,512],\"blocks\":[1,1,1,1],\"in_channels\":3,"
	"\"in_height\":32,\"in_width\":32,\"n_classes\":10}},"
	"\"hyperparameters\":{\"batch_size\":32,\"max_steps\":100},\"precision\":\"%s\","
	"\"training_file\":[\"file_0\",\"file_1\"],"
	"\"resources\":{\"instance_type\":\"here\",\"count\":1}}",
	"{\"task\":\"click_through\",\"model\":{\"config\":{\"family\":\"dlrm\",\"dense_features\":13,"
	"\"embedding_dim\":64,\"lookups\":4,\"table_rows\":[100000,100000,100000,100000],"
	"\"bottom\":[512,64],\"top\":[512,256]}},\"data\":{\"categorical\":[\"c0\",\"c1\",\"c2\","
	"\"c3\"]},\"hyperparameters\":{\"batch_size\":256,\"max_steps\":100},\"precision\":\"%s\","
	"\"training_file\":\"file_0\",\"resources\":{\"instance_type\":\"here\",\"count\":1}}",
	"{\"task\":\"classification\",\"model\":{\"config\":{\"family\":\"mlp\","
	"\"hidden\":[2048,2048],\"in_channels\":1,\"in_height\":1,\"in_width\":2048,"
	"\"n_classes\":10}},\"hyperparameters\":{\"batch_size\":1024,\"max_steps\":100},"
	"\"precision\":\"%s\",\"training_file\":[\"file_0\",\"file_1\"],"
	"\"resources\":{\"instance_type\":\"here\",\"count\":1}}",
};

struct calibrate_command {
	const char *precisions, *out, *device_word;
	enum device_kind device;
	int64_t threads, steps;
};

/* What was measured in one precision. */
struct rates {
	struct measure_kind kinds[PLAN_OP_COUNT];
	double peak_flops, bytes_per_s;
	const char *backend;
};

static int read_spec(const char *form, const char *precision, struct job_spec *ret, struct err *err)
{
	char text[SPEC_TEXT_MAX];
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	const char *mark = strstr(form, "%s");
	int bytes =
		snprintf(text, sizeof(text), "%.*s%s%s", (int)(mark - form), form, precision, mark + 2);
	int rc = json_doc_parse(text, (size_t)bytes, sizeof(text), &doc, err);
	return rc < 0 ? rc : spec_json_read(json_doc_root(doc), ret, &metadata, err);
}

static void add(struct rates *r, const struct measure *m)
{
	for (int k = 0; k < PLAN_OP_COUNT; k++) {
		r->kinds[k].count += m->kinds[k].count;
		r->kinds[k].ns += m->kinds[k].ns;
		r->kinds[k].flops += m->kinds[k].flops;
		r->kinds[k].bytes += m->kinds[k].bytes;
	}
	r->backend = m->backend;
}

static bool is_product(int kind)
{
	switch (kind) {
	case PLAN_OP_LINEAR:
	case PLAN_OP_LINEAR_BACKWARD_DATA:
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT:
	case PLAN_OP_CONV:
	case PLAN_OP_CONV_BACKWARD_DATA:
	case PLAN_OP_CONV_BACKWARD_WEIGHT:
	case PLAN_OP_CLASSIFIER: return true;
	default: return false;
	}
}

/* The best that any product reached over a whole model, and the optimizer, which is nothing but
 * memory traffic over arrays larger than any cache. */
static void note_peaks(struct rates *r, const struct measure *m)
{
	for (int k = 0; k < PLAN_OP_COUNT; k++) {
		const struct measure_kind *kind = &m->kinds[k];
		if (kind->ns == 0)
			continue;
		double flops = kind->flops * 1e9 / (double)kind->ns;
		double bytes = kind->bytes * 1e9 / (double)kind->ns;
		if (is_product(k) && flops > r->peak_flops)
			r->peak_flops = flops;
		if ((k == PLAN_OP_ADAMW || k == PLAN_OP_SGD) && bytes > r->bytes_per_s &&
			kind->bytes / (double)kind->count >= STREAM_BYTES_MIN)
			r->bytes_per_s = bytes;
	}
}

static int measure_precision(
	const struct calibrate_command *c, const char *precision, struct rates *ret, struct err *err)
{
	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct job_spec spec;
		struct measure m;
		int rc = read_spec(specs[i], precision, &spec, err);
		if (rc == 0)
			rc = measure_run(&spec, c->device, (int)c->threads, WARM, c->steps, &m, err);
		if (rc < 0)
			return rc;
		add(ret, &m);
		note_peaks(ret, &m);
		fprintf(stderr, "%s %s: %.1f ms a step, %.1f GFLOP/s\n", precision,
			spec_family_word(spec.model.family), m.step_ms, m.flops_per_step / m.step_ms / 1e6);
	}
	return 0;
}

static void put_operations(struct json_writer *w, const struct rates *r)
{
	json_begin_object(w);
	for (int k = 0; k < PLAN_OP_COUNT; k++) {
		const struct measure_kind *kind = &r->kinds[k];
		if (kind->count == 0 || kind->ns == 0)
			continue;
		double flops = kind->flops * 1e9 / (double)kind->ns;
		double bytes = kind->bytes * 1e9 / (double)kind->ns;
		json_key(w, plan_op_word((enum plan_op_kind)k));
		json_begin_object(w);
		json_field_f64(w, "flops_per_s", flops);
		json_field_f64(w, "bytes_per_s", bytes);
		json_field_f64(
			w, "efficiency", kind->flops > 0 ? flops / r->peak_flops : bytes / r->bytes_per_s);
		json_end_object(w);
	}
	json_end_object(w);
}

static void write_rates(const struct calibrate_command *c, const struct rates *list,
	const char (*names)[8], int count, struct buf *out)
{
	struct json_writer w;
	double bytes_per_s = 0;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "object", "rates");
	json_field_i64(&w, "format", 1);
	json_field_i64(&w, "threads", c->threads);
	json_key(&w, "backends");
	json_begin_object(&w);
	for (int i = 0; i < count; i++)
		json_field_str(&w, names[i], list[i].backend);
	json_end_object(&w);
	json_key(&w, "peak_flops");
	json_begin_object(&w);
	for (int i = 0; i < count; i++) {
		json_field_f64(&w, names[i], list[i].peak_flops);
		if (list[i].bytes_per_s > bytes_per_s)
			bytes_per_s = list[i].bytes_per_s;
	}
	json_end_object(&w);
	json_field_f64(&w, "memory_bytes_per_s", bytes_per_s);
	json_field_str(&w, "flop_convention", PLAN_FLOP_CONVENTION);
	json_key(&w, "operations");
	json_begin_object(&w);
	for (int i = 0; i < count; i++) {
		json_key(&w, names[i]);
		put_operations(&w, &list[i]);
	}
	json_end_object(&w);
	json_end_object(&w);
	buf_char(out, '\n');
}

/* "fp32,bf16" into words. */
static int split(const char *text, char (*ret_names)[8], int *ret_count, struct err *err)
{
	static const char *const known[] = { "fp32", "bf16", "fp16" };
	bool seen[ARRAY_LEN(known)] = { false };
	*ret_count = 0;
	for (;;) {
		size_t bytes = strcspn(text, ","), i = 0;
		while (i < ARRAY_LEN(known) &&
			(strlen(known[i]) != bytes || strncmp(known[i], text, bytes) != 0))
			i++;
		if (i == ARRAY_LEN(known) || seen[i])
			return err_set(err, ERR_INVALID_VALUE, "--precision",
				"a list of fp32, bf16 and fp16, each once, like fp32,bf16");
		seen[i] = true;
		snprintf(ret_names[(*ret_count)++], 8, "%s", known[i]);
		if (text[bytes] == '\0')
			return 0;
		text += bytes + 1;
	}
}

static int write_out(const char *path, const struct buf *text, struct err *err)
{
	char parent[FILE_PATH_MAX];
	const char *name = NULL;
	if (text->failed != 0)
		return err_set(err, text->failed, "--out", "the figures do not fit");
	int rc = folder_split(path, parent, &name, err);
	return rc < 0 ? rc : file_write_atomic(parent, name, text->data, text->len, err);
}

static int run(void *ctx, struct err *err)
{
	struct calibrate_command *c = ctx;
	struct rates list[3];
	char names[3][8];
	int count = 0;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, RATES_TEXT_MAX);
	int rc = device_parse(c->device_word, "--device", &c->device, err);
	if (rc == 0)
		rc = split(c->precisions, names, &count, err);
	for (int i = 0; i < count && rc == 0; i++)
		rc = measure_precision(c, names[i], &list[i], err);
	if (rc < 0)
		return rc;
	write_rates(c, list, names, count, &text);
	if (c->out != NULL)
		rc = write_out(c->out, &text, err);
	else
		rc = options_print(&text, err);
	return rc < 0 ? rc : COMMAND_OK;
}

int cmd_calibrate(int argc, char **argv)
{
	struct calibrate_command c = {
		.precisions = "fp32,bf16", .threads = 1, .steps = STEPS_DEFAULT
	};
	const struct options_row rows[] = {
		{ "--device", OPTIONS_TEXT, &c.device_word, 0, 0 },
		{ "--threads", OPTIONS_COUNT, &c.threads, 1, OPTIONS_THREADS_MAX },
		{ "--steps", OPTIONS_COUNT, &c.steps, 1, MEASURE_STEPS_MAX },
		{ "--precision", OPTIONS_TEXT, &c.precisions, 0, 0 },
		{ "--out", OPTIONS_TEXT, &c.out, 0, 0 },
	};
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
