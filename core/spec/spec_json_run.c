/* SPDX-License-Identifier: Apache-2.0
 * Reads how and where a job runs: resources, precision, priority, residency, limits, checkpoints,
 * evaluation, seed. Called by spec_json.c. */
#include "core/base/num.h"
#include "core/spec/region.h"
#include "core/spec/spec_json_private.h"

#include <string.h>

enum {
	CHECKPOINT_EVERY_DEFAULT = 500,
	CHECKPOINT_KEEP_DEFAULT = 3,
	CHECKPOINT_KEEP_MAX = 100,
	EVALUATION_EVERY_DEFAULT = 200,
	RUNTIME_MAX_S = 365 * 24 * 3600,
	SEED_DEFAULT = 42,
	MONEY_TEXT_MAX = 24,
};

static const int64_t SEED_MAX = (1LL << 53) - 1; /* what every JSON reader keeps exact */
static const int64_t COST_MAX_MICROS = 1000LL * 1000 * 1000 * 1000 * 1000;

static void read_resources(struct json_obj *o, struct job_spec *spec)
{
	struct json_obj part;
	bool preemptible = false;
	const char *type = NULL;
	spec->device_count = 1;
	json_obj_need(o, "resources");
	if (!spec_json_open_part(o, "resources", &part))
		return;
	json_obj_need(&part, "instance_type");
	json_obj_str(&part, "instance_type", 1, SPEC_ID_MAX - 1, &type);
	if (type && strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789-._") != strlen(type))
		json_obj_fail(&part, ERR_INVALID_VALUE, "instance_type",
			"%s.instance_type: a name has lower-case letters, digits, '-', '.' and '_'", part.path);
	else if (type)
		memcpy(spec->instance_type, type, strlen(type) + 1);
	json_obj_i64(&part, "count", 1, SPEC_DEVICES_MAX, &spec->device_count);
	json_obj_bool(&part, "preemptible", &preemptible);
	if (preemptible)
		json_obj_fail(&part, ERR_INVALID_VALUE, "preemptible",
			"%s.preemptible: this version runs jobs that are not preempted; give false", part.path);
	spec_json_close_part(o, &part);
}

static void read_residency(struct json_obj *o, struct job_spec *spec)
{
	const struct json_val *list = NULL;
	json_obj_array(o, "residency", SPEC_REGIONS_MAX, &list);
	for (size_t i = 0; i < json_array_len(list); i++) {
		const char *name = json_str_or(json_array_at(list, i), NULL);
		if (!name || !region_known(name) || strlen(name) >= SPEC_REGION_MAX) {
			json_obj_fail(o, name ? ERR_INVALID_VALUE : ERR_INVALID_TYPE, "residency",
				"%s.residency[%zu] must be a known region, like \"us\" or \"eu-west\"%s%.64s",
				o->path, i, name ? ", not " : "", name ? name : "");
			return;
		}
		memcpy(spec->residency[i], name, strlen(name) + 1);
	}
	spec->residency_count = (int)json_array_len(list);
}

static void read_limits(struct json_obj *o, struct spec_limits *limits)
{
	struct json_obj part;
	const char *cost = NULL;
	if (!spec_json_open_part(o, "limits", &part))
		return;
	json_obj_i64(&part, "max_runtime_s", 1, RUNTIME_MAX_S, &limits->max_runtime_s);
	json_obj_str(&part, "max_cost", 1, MONEY_TEXT_MAX, &cost);
	int64_t micros = 0;
	if (cost && (num_parse_micros(cost, &micros) < 0 || micros <= 0 || micros > COST_MAX_MICROS))
		json_obj_fail(&part, ERR_INVALID_VALUE, "max_cost",
			"%s.max_cost must be a decimal above 0 and at most 1000000000, with at most 6 digits "
			"behind the point, like \"250.00\"",
			part.path);
	limits->max_cost_micros = micros;
	spec_json_close_part(o, &part);
}

static void read_every(struct json_obj *o, const char *key, int64_t *every, int64_t *keep)
{
	struct json_obj part;
	if (!spec_json_open_part(o, key, &part))
		return;
	json_obj_i64(&part, "every_steps", 0, SPEC_STEPS_MAX, every);
	if (keep)
		json_obj_i64(&part, "keep", 1, CHECKPOINT_KEEP_MAX, keep);
	spec_json_close_part(o, &part);
}

/* Whoever says nothing gets the precision that results were compared in. */
static void read_modes(struct json_obj *o, struct job_spec *spec)
{
	int precision = SPEC_FP32;
	int priority = 1; /* "normal" */
	int checkpointing = SPEC_KEEP_ALL;
	if (spec_json_is_auto(o, "precision"))
		precision = (int)spec_json_auto_precision(spec);
	else
		json_obj_word(o, "precision", spec_json_precision_words, &precision);
	spec_json_word_or_auto(
		o, "activation_checkpointing", spec_json_checkpointing_words, &checkpointing);
	json_obj_word(o, "priority", spec_json_priority_words, &priority);
	spec->precision = (enum spec_precision)precision;
	spec->checkpointing = (enum spec_checkpointing)checkpointing;
	spec->priority = priority - 1;
	spec->seed = SEED_DEFAULT;
	json_obj_i64(o, "seed", 0, SEED_MAX, &spec->seed);
}

void spec_json_run_read(struct json_obj *o, struct job_spec *spec)
{
	spec->checkpoint_every_steps = CHECKPOINT_EVERY_DEFAULT;
	spec->checkpoint_keep = CHECKPOINT_KEEP_DEFAULT;
	spec->evaluation_every_steps = EVALUATION_EVERY_DEFAULT;
	read_modes(o, spec);
	read_resources(o, spec);
	spec_json_parallel_read(o, spec);
	read_residency(o, spec);
	read_limits(o, &spec->limits);
	read_every(o, "checkpoint", &spec->checkpoint_every_steps, &spec->checkpoint_keep);
	read_every(o, "evaluation", &spec->evaluation_every_steps, NULL);
	spec_json_refuse(o, "quote", "this version gives no quotes: leave it out");
}
