/* SPDX-License-Identifier: Apache-2.0
 * Reads `parallelism`: how the devices of `resources` share the work. Called by spec_json_run.c,
 * after resources, and by spec_json_hyper.c for the batch that the ranks share. */
#include "core/spec/spec_json_private.h"

#include <string.h>

enum { ZERO_STAGE_MAX = 3, INTERLEAVE_MAX = 64 };

/* Layers, and what a rank's stages need of the batch, are the plan's to check. */
static void check_layers(
	struct json_obj *part, const struct job_spec *spec, const struct spec_parallel *p)
{
	if (part->code)
		return;
	if (p->tensor > 1 && !spec_is_language(spec))
		json_obj_fail(part, ERR_INVALID_VALUE, "tensor",
			"%s.tensor: only layers of language models are cut, so it can only be 1", part->path);
	else if (p->pipeline > 1 && !spec_is_language(spec))
		json_obj_fail(part, ERR_INVALID_VALUE, "pipeline",
			"%s.pipeline: only models of the families gpt2 and llama have layers that a pipeline "
			"can share, so it can only be 1",
			part->path);
	else if (p->interleave > 1 && p->pipeline == 1)
		json_obj_fail(part, ERR_INVALID_VALUE, "interleave",
			"%s.interleave cuts the stages of a pipeline: without one it can only be 1",
			part->path);
}

/* What is not given of data is what the other axes leave over. */
static void settle_data(struct json_obj *part, struct spec_parallel *p, int64_t count)
{
	int64_t others = p->tensor * p->pipeline;
	if (part->code)
		return;
	if (p->data == 0 && count % others == 0)
		p->data = count / others;
	if (p->data * others == count)
		return;
	if (p->data == 0)
		json_obj_fail(part, ERR_INVALID_VALUE, "data",
			"%s.data: the %lld devices of resources.count cannot be shared by tensor x pipeline = "
			"%lld",
			part->path, (long long)count, (long long)others);
	else
		json_obj_fail(part, ERR_INVALID_VALUE, "data",
			"%s.data x tensor x pipeline is %lld: it must be resources.count, %lld", part->path,
			(long long)(p->data * others), (long long)count);
}

void spec_json_parallel_read(struct json_obj *o, struct job_spec *spec)
{
	struct spec_parallel p = { .tensor = 1, .pipeline = 1, .interleave = 1 };
	struct json_obj part;
	spec->parallel = (struct spec_parallel){
		.data = spec->device_count, .tensor = 1, .pipeline = 1, .interleave = 1
	};
	if (spec_json_is_auto(o, "parallelism") || !spec_json_open_part(o, "parallelism", &part))
		return;
	if (!spec_json_is_auto(&part, "data"))
		json_obj_i64(&part, "data", 1, SPEC_DEVICES_MAX, &p.data);
	json_obj_i64(&part, "tensor", 1, SPEC_DEVICES_MAX, &p.tensor);
	json_obj_i64(&part, "pipeline", 1, SPEC_DEVICES_MAX, &p.pipeline);
	json_obj_i64(&part, "zero_stage", 0, ZERO_STAGE_MAX, &p.zero_stage);
	json_obj_i64(&part, "interleave", 1, INTERLEAVE_MAX, &p.interleave);
	check_layers(&part, spec, &p);
	settle_data(&part, &p, spec->device_count);
	if (p.data == 1) /* there is nobody to share the state with: all stages are the same */
		p.zero_stage = 0;
	spec_json_close_part(o, &part);
	spec->parallel = p;
}

static bool is_open(const struct json_val *o, const char *key)
{
	const struct json_val *v = json_get(o, key);
	return v == NULL || strcmp(json_str_or(v, ""), "auto") == 0;
}

bool spec_json_parallel_open(const struct json_val *o, const struct job_spec *spec)
{
	return spec->device_count > 1 && is_open(o, "parallelism");
}

struct spec_open spec_json_open(const struct json_val *v, const struct job_spec *spec)
{
	struct spec_open open = { .mesh = spec_json_parallel_open(v, spec) };
	if (!open.mesh)
		return open;
	open.micro_batch = is_open(json_get(v, "hyperparameters"), "micro_batch_size");
	open.checkpointing = spec_is_language(spec) && is_open(v, "activation_checkpointing");
	open.micro_batch_most = spec_json_auto_micro_batch_most(spec);
	return open;
}

int64_t spec_json_parallel_data(const struct job_spec *spec)
{
	return spec->parallel.data > 1 ? spec->parallel.data : 1;
}
