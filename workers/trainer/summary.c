/* SPDX-License-Identifier: Apache-2.0
 * trainyard.json and the metrics object. */
#include "workers/trainer/summary.h"

#include "core/spec/spec_json.h"

#include <float.h>
#include <math.h>

void summary_write_metrics(
	struct json_writer *w, const struct job_spec *spec, const struct summary_metrics *m)
{
	if (m->has_loss)
		json_field_f64(w, "loss", m->loss);
	if (m->evaluated_step == 0)
		return;
	json_field_f64(w, "validation_loss", m->validation_loss);
	double perplexity = exp(m->validation_loss);
	if (spec_is_language(spec) && isfinite(perplexity))
		json_field_f64(w, "perplexity", perplexity);
	if (m->bits_per_byte > 0) {
		json_field_f64(w, "bits_per_byte", m->bits_per_byte);
		json_field_f64(w, "order0_bits_per_byte", m->order0_bits_per_byte);
	}
	if (spec->task == SPEC_CLICK_THROUGH)
		json_field_f64(w, "auc", m->auc);
	if (spec->task != SPEC_REGRESSION)
		json_field_f64(w, "accuracy", m->accuracy);
}

int summary_read_metrics(const struct json_val *v, struct summary_metrics *m, struct err *err)
{
	struct json_obj o;
	double perplexity = 0; /* follows from the loss */
	json_obj_open(&o, v, "$.metrics", err);
	m->has_loss = json_obj_has(&o, "loss");
	json_obj_f64(&o, "loss", -DBL_MAX, DBL_MAX, &m->loss);
	json_obj_f64(&o, "validation_loss", -DBL_MAX, DBL_MAX, &m->validation_loss);
	json_obj_f64(&o, "perplexity", 0, DBL_MAX, &perplexity);
	json_obj_f64(&o, "bits_per_byte", -DBL_MAX, DBL_MAX, &m->bits_per_byte);
	json_obj_f64(&o, "order0_bits_per_byte", -DBL_MAX, DBL_MAX, &m->order0_bits_per_byte);
	json_obj_f64(&o, "accuracy", -DBL_MAX, DBL_MAX, &m->accuracy);
	json_obj_f64(&o, "auc", -DBL_MAX, DBL_MAX, &m->auc);
	return json_obj_close(&o);
}

void summary_write(const struct job_spec *spec, const struct plan *plan, int64_t step,
	const struct summary_metrics *m, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_i64(&w, "format", 1);
	json_field_str(&w, "task", spec_task_word(spec->task));
	json_field_str(&w, "family", spec_family_word(spec->model.family));
	json_field_str(&w, "precision", spec_precision_word(spec->precision));
	json_field_i64(&w, "step", step);
	json_field_i64(&w, "steps", plan->total_steps);
	json_field_i64(&w, "parameters", plan->parameter_count);
	json_field_i64(&w, "trained_parameters", plan->trained_count);
	json_field_i64(&w, "seed", spec->seed);
	json_key(&w, "metrics");
	json_begin_object(&w);
	summary_write_metrics(&w, spec, m);
	json_end_object(&w);
	json_end_object(&w);
	buf_char(out, '\n');
}
