/* SPDX-License-Identifier: Apache-2.0
 * Opening a training: the cheap checks of the customer's input come before memory is taken. */
#include "workers/trainer/session.h"

#include <stdlib.h>

enum { GIB = 1 << 30 };

static int open_data(struct session *s, const struct session_inputs *in, struct err *err)
{
	int rc =
		data_open(&s->spec, in->training, in->training_count, "training_file", &s->training, err);
	if (rc == 0 && in->validation_count > 0)
		rc = data_open(
			&s->spec, in->validation, in->validation_count, "validation_file", &s->validation, err);
	return rc;
}

/* The server has done this already where it knew the data's shape. */
static int check_memory(const struct plan *p, int64_t memory_bytes, struct err *err)
{
	if (memory_bytes <= 0 || p->total_bytes <= memory_bytes)
		return 0;
	return err_set(err, ERR_PLAN_TOO_LARGE, "$.model",
		"the plan needs %lld bytes (%.2f GiB), the device has %lld bytes (%.2f GiB)",
		(long long)p->total_bytes, (double)p->total_bytes / GIB, (long long)memory_bytes,
		(double)memory_bytes / GIB);
}

static int open_engine(struct session *s, const struct session_inputs *in, struct err *err)
{
	struct plan_dataset dims;
	data_dims(s->training, s->validation, &dims);
	int rc = plan_compile(&s->spec, &dims, &s->plan, err);
	if (rc == 0)
		rc = plan_set_dataset(s->plan, &s->spec, &dims, err);
	if (rc == 0)
		rc = check_memory(s->plan, in->memory_bytes, err);
	if (rc == 0)
		rc = engine_create(&s->spec, s->plan, engine_backend_cpu(), in->threads, &s->engine, err);
	if (rc == 0)
		rc = engine_attach(s->engine, s->training, s->validation, err);
	return rc;
}

int session_open(const struct job_spec *spec, const struct session_inputs *in, struct session **ret,
	struct err *err)
{
	cleanup(session_closep) struct session *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the training");
	s->spec = *spec;
	if (spec->device_count != 1)
		return err_set(err, ERR_INVALID_VALUE, "$.resources.count",
			"this build trains on one device, not on %lld", (long long)spec->device_count);
	int rc = open_data(s, in, err);
	if (rc == 0)
		rc = open_engine(s, in, err);
	if (rc < 0)
		return rc;
	if (in->resume_dir == NULL) {
		engine_init_params(s->engine);
	} else {
		rc = checkpoint_restore(s->engine, in->resume_dir, &s->metrics, err);
		if (rc < 0 && rc != ERR_NO_MEMORY) /* ours, not the customer's: platform_error */
			rc = err != NULL ? (err->code = ERR_INTERNAL) : ERR_INTERNAL;
		if (rc < 0)
			return rc;
		struct engine_state state;
		engine_state_get(s->engine, &state);
		s->resumed_step = state.step;
	}
	*ret = take_ptr(s);
	return 0;
}

void session_close(struct session *s)
{
	if (s == NULL)
		return;
	engine_destroy(s->engine);
	plan_destroy(s->plan);
	data_close(s->validation);
	data_close(s->training);
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
