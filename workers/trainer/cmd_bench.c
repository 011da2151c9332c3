/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer bench: how long a job spec's step takes here, on made-up data. */
#include "workers/trainer/command.h"

#include "core/base/buf.h"
#include "core/json/writer.h"
#include "workers/trainer/measure.h"
#include "workers/trainer/options.h"
#include "workers/trainer/rates.h"
#include "workers/trainer/spec_file.h"

#include <stdio.h>

enum { BENCH_TEXT_MAX = 64 * 1024, STEPS_DEFAULT = 10, WARM_DEFAULT = 3 };

static const char usage[] =
	"usage: trainyard-trainer bench SPEC.json [options]\n"
	"\n"
	"Trains a job spec for some steps on data made up to fit it and prints one JSON object: the\n"
	"median time of a step, rates, memory, and the time of each kind of operation.\n"
	"\n"
	"  --device KIND    " DEVICE_WORDS " (auto: a GPU where there is one)\n"
	"  --threads N      compute threads (1)\n"
	"  --steps N        that count (10)\n"
	"  --warm N         before them (3)\n"
	"  --peak-flops X   of this machine, for \"mfu\"; or\n"
	"  --rates FILE     what `trainyard-trainer calibrate` measured\n";

struct bench_command {
	const char *spec_path, *device, *rates;
	int64_t threads, steps, warm;
	double peak_flops;
};

static void put_kinds(struct json_writer *w, const struct measure *m)
{
	json_key(w, "operations");
	json_begin_object(w);
	for (int k = 0; k < PLAN_OP_COUNT; k++) {
		const struct measure_kind *kind = &m->kinds[k];
		if (kind->count == 0)
			continue;
		json_key(w, plan_op_word((enum plan_op_kind)k));
		json_begin_object(w);
		json_field_f64(w, "ms_per_step", (double)kind->ns / 1e6 / (double)m->steps);
		if (kind->flops > 0 && kind->ns > 0)
			json_field_f64(w, "gflop_per_s", kind->flops / (double)kind->ns);
		if (kind->ns > 0)
			json_field_f64(w, "gbyte_per_s", kind->bytes / (double)kind->ns);
		json_end_object(w);
	}
	json_end_object(w);
}

static void write_result(const struct bench_command *c, const struct measure *m, struct buf *out)
{
	struct json_writer w;
	double flops_per_s = m->flops_per_step * 1e3 / m->step_ms;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "backend", m->backend);
	json_field_i64(&w, "threads", c->threads);
	json_field_i64(&w, "steps", m->steps);
	json_field_f64(&w, "step_ms", m->step_ms);
	json_field_f64(&w, "step_ms_min", m->step_ms_min);
	json_field_f64(&w, "step_ms_max", m->step_ms_max);
	json_field_f64(&w, "samples_per_second", m->samples * 1e3 / m->step_ms);
	if (m->tokens > 0)
		json_field_f64(&w, "tokens_per_second", m->tokens * 1e3 / m->step_ms);
	json_field_f64(&w, "gflop_per_s", flops_per_s / 1e9);
	if (c->peak_flops > 0)
		json_field_f64(&w, "mfu", flops_per_s / c->peak_flops);
	else
		json_field_null(&w, "mfu");
	json_field_str(&w, "flop_convention", PLAN_FLOP_CONVENTION);
	json_field_i64(&w, "plan_bytes", m->plan_bytes);
	json_field_i64(&w, "memory_bytes", m->memory_bytes);
	json_field_i64(&w, "resident_bytes", m->resident_bytes);
	json_field_f64(&w, "open_ms", m->open_ms);
	json_field_f64(&w, "loss", m->loss);
	put_kinds(&w, m);
	json_end_object(&w);
	buf_char(out, '\n');
}

static int run(void *ctx, struct err *err)
{
	struct bench_command *c = ctx;
	struct job_spec spec;
	struct measure m;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, BENCH_TEXT_MAX);
	if (c->spec_path == NULL)
		return err_set(err, ERR_MISSING_FIELD, "SPEC.json", "a spec is needed: bench SPEC.json");
	enum device_kind device;
	int rc = device_parse(c->device, "--device", &device, err);
	if (rc == 0)
		rc = spec_file_read(c->spec_path, NULL, &spec, err);
	if (rc == 0 && c->rates != NULL)
		rc = rates_read_peak(c->rates, spec.precision, &c->peak_flops, err);
	if (rc == 0)
		rc = measure_run(&spec, device, (int)c->threads, c->warm, c->steps, &m, err);
	if (rc < 0)
		return rc;
	write_result(c, &m, &text);
	rc = options_print(&text, err);
	return rc < 0 ? rc : COMMAND_OK;
}

int cmd_bench(int argc, char **argv)
{
	struct bench_command c = { .threads = 1, .steps = STEPS_DEFAULT, .warm = WARM_DEFAULT };
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &c.spec_path, 0, 0 },
		{ "--device", OPTIONS_TEXT, &c.device, 0, 0 },
		{ "--threads", OPTIONS_COUNT, &c.threads, 1, OPTIONS_THREADS_MAX },
		{ "--steps", OPTIONS_COUNT, &c.steps, 1, MEASURE_STEPS_MAX },
		{ "--warm", OPTIONS_COUNT, &c.warm, 0, MEASURE_STEPS_MAX },
		{ "--peak-flops", OPTIONS_NUMBER, &c.peak_flops, 1, 1e18 },
		{ "--rates", OPTIONS_TEXT, &c.rates, 0, 0 },
	};
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
