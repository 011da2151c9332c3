/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer validate: every check of the customer's data, and the plan, before a device is
 * taken. The figures go to standard output as one JSON object; what is wrong, with file, position
 * and reason, to standard error. */
#include "workers/trainer/command.h"

#include "core/json/writer.h"
#include "core/spec/spec_json.h"
#include "workers/trainer/options.h"
#include "workers/trainer/spec_file.h"

#include <stdio.h>

enum { VALIDATE_TEXT_MAX = 64 * 1024 };

static const char usage[] =
	"usage: trainyard-trainer validate SPEC.json --data training_file=PATH [options]\n"
	"\n"
	"Checks the files of a job completely, as a training would before its first step: format,\n"
	"encoding, shapes, labels, token ids. Prints what was found as one JSON object. The first "
	"thing\n"
	"that is wrong is told with its file, line or offset and the reason; the status is then 1.\n"
	"\n"
	"  --data training_file=PATH    what to train on; again for more files\n"
	"  --data validation_file=PATH  what to evaluate on\n"
	"  --tokenizer PATH             tokenizer.json (otherwise that of --init)\n"
	"  --init DIR                   the files that training is to start from: config is compared\n"
	"  --threads N                  for tokenizing and decoding (1)\n"
	"  --scratch DIR                where tokens and decoded images may be put ($TMPDIR)\n";

struct validate_command {
	const char *spec_path;
	struct session_inputs inputs;
	int64_t threads;
	char tokenizer[FILE_PATH_MAX];
};

static void put_dataset(struct json_writer *w, const struct job_spec *spec, const struct plan *p)
{
	const struct plan_dataset *d = &p->dataset;
	json_field_i64(w, "training_samples", d->training_samples);
	json_field_i64(w, "validation_samples", d->validation_samples);
	if (spec_is_language(spec)) {
		json_field_i64(w, "training_tokens", d->training_tokens);
		json_field_i64(w, "validation_tokens", d->validation_tokens);
		json_field_i64(w, "vocabulary", d->vocabulary);
		json_field_i64(w, "sequence_length", p->sequence_length);
	} else {
		json_field_i64(w, "in_channels", p->in_channels);
		json_field_i64(w, "in_height", p->in_height);
		json_field_i64(w, "in_width", p->in_width);
		json_field_i64(w, "n_classes", p->n_classes);
	}
	json_field_i64(w, "steps", p->total_steps);
	json_field_f64(w, "steps_per_epoch", p->steps_per_epoch);
	json_field_i64(w, "plan_bytes", p->total_bytes);
}

static int check_init(const struct validate_command *c, struct job_spec *spec, struct err *err)
{
	struct spec_model files;
	if (c->inputs.init_dir == NULL)
		return 0;
	int rc = hf_config_read(c->inputs.init_dir, &files, err);
	return rc < 0 ? rc : hf_config_agree(&spec->model, &files, err);
}

static int run(void *ctx, struct err *err)
{
	struct validate_command *c = ctx;
	struct job_spec spec;
	struct plan_dataset dims;
	struct json_writer w;
	cleanup(plan_destroyp) struct plan *plan = NULL;
	cleanup(buf_finish) struct buf text;
	struct session_inputs *in = &c->inputs;
	buf_init(&text, VALIDATE_TEXT_MAX);
	if (c->spec_path == NULL || in->training_count == 0)
		return err_set(err, ERR_MISSING_FIELD, "--data",
			"a spec and a training file are needed: validate SPEC.json --data training_file=PATH");
	in->threads = (int)c->threads;
	struct data_options o = { 0 };
	int rc = spec_file_read(c->spec_path, in->init_dir, &spec, err);
	if (rc == 0)
		rc = spec_file_tokenizer(&spec, in, c->tokenizer, err);
	if (rc == 0)
		rc = check_init(c, &spec, err);
	o = session_data_options(in);
	if (rc == 0)
		rc = data_validate(&spec, in->training, in->training_count, in->validation,
			in->validation_count, &o, &dims, err);
	if (rc == 0)
		rc = plan_compile(&spec, &dims, &plan, err);
	if (rc == 0)
		rc = plan_set_dataset(plan, &spec, &dims, err);
	if (rc < 0)
		return rc;
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_bool(&w, "valid", true);
	json_field_str(&w, "format", spec_format_word(spec.data.format));
	put_dataset(&w, &spec, plan);
	json_end_object(&w);
	buf_char(&text, '\n');
	rc = options_print(&text, err);
	return rc < 0 ? rc : COMMAND_OK;
}

int cmd_validate(int argc, char **argv)
{
	struct validate_command c = { .threads = 1 };
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &c.spec_path, 0, 0 },
		{ "--data", OPTIONS_DATA, &c.inputs, 0, 0 },
		{ "--tokenizer", OPTIONS_TEXT, &c.inputs.tokenizer_path, 0, 0 },
		{ "--init", OPTIONS_TEXT, &c.inputs.init_dir, 0, 0 },
		{ "--threads", OPTIONS_COUNT, &c.threads, 1, OPTIONS_THREADS_MAX },
		{ "--scratch", OPTIONS_TEXT, &c.inputs.scratch_dir, 0, 0 },
	};
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
