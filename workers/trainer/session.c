/* SPDX-License-Identifier: Apache-2.0
 * Opening a training: the cheap checks of the customer's input come before memory is taken. */
#include "workers/trainer/session.h"

#include "workers/trainer/agree.h"
#include "workers/trainer/hf_config.h"
#include "workers/trainer/ranks.h"

#include <stdlib.h>

enum { GIB = 1 << 30, SUMMARY_TEXT_MAX = 64 * 1024 };

struct data_options session_data_options(const struct session_inputs *in)
{
	return (struct data_options){
		.scratch_dir = in->scratch_dir, .tokenizer_path = in->tokenizer_path, .threads = in->threads
	};
}

static int open_data(struct session *s, const struct session_inputs *in, struct err *err)
{
	struct data_options o = session_data_options(in);
	int rc = data_open(
		&s->spec, in->training, in->training_count, "training_file", &o, &s->training, err);
	if (rc == 0 && in->validation_count > 0)
		rc = data_open(&s->spec, in->validation, in->validation_count, "validation_file", &o,
			&s->validation, err);
	if (rc == 0 && s->validation)
		rc = data_agree(s->training, s->validation, err);
	return rc;
}

/* The server has done this already where it knew the data's shape. */
static int check_memory(
	const struct plan *p, enum device_kind device, int64_t memory_bytes, struct err *err)
{
	int64_t bytes = device_is_apart(device) ? p->device_bytes : p->total_bytes;
	if (memory_bytes <= 0 || bytes <= memory_bytes)
		return 0;
	return err_set(err, ERR_PLAN_TOO_LARGE, "$.model",
		"the plan needs %lld bytes (%.2f GiB), the device has %lld bytes (%.2f GiB)",
		(long long)bytes, (double)bytes / GIB, (long long)memory_bytes, (double)memory_bytes / GIB);
}

static int open_engine(struct session *s, const struct session_inputs *in, struct err *err)
{
	struct plan_dataset dims;
	enum device_kind device = in->device;
	data_dims(s->training, s->validation, &dims);
	int rank = s->mesh != NULL ? s->mesh->world->rank : 0;
	int rc = plan_compile_rank(&s->spec, &dims, rank, &s->plan, err);
	if (rc == 0)
		rc = plan_set_dataset(s->plan, &s->spec, &dims, err);
	if (rc == 0)
		rc = device_choose(in->device, &device, err);
	if (rc == 0)
		rc = check_memory(s->plan, device, in->memory_bytes, err);
	if (rc == 0)
		rc = plan_job_of(s->plan, &s->spec, &s->job, err);
	if (rc == 0)
		rc = engine_create(
			&s->spec, s->plan, device_backend(device, s->plan->type), in->threads, &s->engine, err);
	s->device = device;
	if (rc == 0 && s->mesh != NULL)
		rc = engine_join(s->engine, s->mesh, err);
	if (rc == 0)
		rc = engine_attach(s->engine, s->training, s->validation, err);
	return rc;
}

/* The files know their own shape: they must be what the spec says, and say what it leaves open. */
static int adopt_config(struct session *s, const char *init_dir, struct err *err)
{
	struct spec_model files;
	int rc = hf_config_read(init_dir, &files, err);
	return rc < 0 ? rc : hf_config_agree(&s->spec.model, &files, err);
}

/* Fresh weights first: whatever the files or the checkpoint do not have (new adapters, a frozen
 * base of fresh weights) is a function of the seed. */
static int load_weights(struct session *s, const struct session_inputs *in, struct err *err)
{
	struct engine_state state;
	bool whole = s->spec.lora.rank == 0 && (in->init_dir != NULL || in->resume_dir != NULL);
	int rc = 0;
	if (!whole)
		rc = engine_init_params(s->engine, err);
	if (rc == 0 && in->init_dir != NULL && (in->resume_dir == NULL || s->spec.lora.rank > 0))
		rc = hf_model_read(s->engine, s->mesh, &s->spec, in->init_dir, err);
	if (rc < 0 || in->resume_dir == NULL)
		return rc;
	rc = checkpoint_restore(s->engine, s->mesh, &s->spec, in->resume_dir, &s->metrics, err);
	if (rc < 0 && rc != ERR_NO_MEMORY &&
		!ranks_is_lost(rc)) /* ours, not the customer's: platform_error */
		rc = err != NULL ? (err->code = ERR_INTERNAL) : ERR_INTERNAL;
	if (rc < 0)
		return rc;
	engine_state_get(s->engine, &state);
	s->resumed_step = state.step;
	return 0;
}

int session_open(const struct job_spec *spec, const struct session_inputs *in, struct session **ret,
	struct err *err)
{
	cleanup(session_closep) struct session *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the training");
	s->spec = *spec;
	s->peak_flops = in->peak_flops;
	s->base_elsewhere = in->init_dir != NULL;
	s->mesh = in->mesh;
	if (in->mesh == NULL && ranks_count(spec) != 1)
		return err_set(err, ERR_INVALID_VALUE, "$.resources.count",
			"this job needs %d ranks, and this is one alone", ranks_count(spec));
	int rc = in->init_dir != NULL ? adopt_config(s, in->init_dir, err) : 0;
	if (rc == 0)
		rc = hf_tokenizer_open(&s->spec, in->tokenizer_path, &s->tokenizer, err);
	if (rc == 0)
		rc = open_data(s, in, err);
	if (rc == 0)
		rc = open_engine(s, in, err);
	rc = agree_opened(s->mesh, rc, err); /* from here on they wait for each other */
	if (rc == 0)
		rc = load_weights(s, in, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(s);
	return 0;
}

struct hf_model session_model(const struct session *s)
{
	return (struct hf_model){
		.engine = s->engine,
		.spec = &s->spec,
		.plan = s->plan,
		.tokenizer = &s->tokenizer,
		.mesh = s->mesh,
		.base_elsewhere = s->base_elsewhere,
	};
}

int session_write_model(const struct session *s, const char *dir, struct err *err)
{
	struct engine_state state;
	struct hf_model model = session_model(s);
	cleanup(buf_finish) struct buf text;
	buf_init(&text, SUMMARY_TEXT_MAX);
	engine_state_get(s->engine, &state);
	summary_write(&s->spec, s->plan, state.step, &s->metrics, &text);
	return hf_model_write(&model, dir, state.step, &text, err);
}

void session_close(struct session *s)
{
	if (s == NULL)
		return;
	engine_destroy(s->engine);
	plan_destroy(s->plan);
	data_close(s->validation);
	data_close(s->training);
	hf_tokenizer_close(&s->tokenizer);
	free(s);
}

void session_closep(struct session **s)
{
	session_close(*s);
	*s = NULL;
}

const char *session_reason(int code)
{
	switch (code) {
	case ERR_INVALID_REQUEST:
	case ERR_INVALID_JSON:
	case ERR_UNKNOWN_FIELD:
	case ERR_INVALID_TYPE:
	case ERR_INVALID_VALUE:
	case ERR_MISSING_FIELD:
	case ERR_INVALID_DATA: return "user_error";
	case ERR_PLAN_TOO_LARGE:
	case ERR_NO_MEMORY: return "out_of_memory";
	default: return "platform_error";
	}
}
