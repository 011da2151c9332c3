/* SPDX-License-Identifier: Apache-2.0
 * The engine's life: memory, data and state. Called by the trainer, from the one thread that owns
 * the engine. */
#include "workers/engine/engine.h"

#include "workers/engine/engine_private.h"

#include <stdlib.h>
#include <unistd.h>

enum { ENGINE_THREADS_MAX = 1024 };

void *engine_buffer(const struct engine *e, int buffer)
{
	if (buffer < 0)
		return NULL;
	const struct plan_buffer *b = &e->plan->buffers[buffer];
	if (b->offset >= e->plan->device_bytes)
		return e->ahead + b->offset - e->plan->device_bytes;
	return e->arena + b->offset + engine_slot_bytes(e, b);
}

struct data_batch engine_batch(const struct engine *e, const struct plan_inputs *in)
{
	return (struct data_batch){ .samples = e->plan->micro_batch,
		.input = engine_buffer(e, in->input),
		.labels = engine_buffer(e, in->labels),
		.positions = engine_buffer(e, in->positions),
		.starts = engine_buffer(e, in->starts),
		.bags = engine_buffer(e, in->bags) };
}

/* The plan's bytes, of the device and of what is read ahead. */
static int map_memory(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	void *arena = NULL, *ahead = NULL;
	int rc = e->backend->map(e->ctx, BACKEND_DEVICE, p->device_bytes, &arena, err);
	if (!rc && p->total_bytes > p->device_bytes)
		rc = e->backend->map(e->ctx, BACKEND_HOST, p->total_bytes - p->device_bytes, &ahead, err);
	e->arena = arena;
	e->ahead = ahead;
	return rc;
}

/* Host memory beside the plan's: a few rows. */
static int prepare_host(struct engine *e, struct err *err)
{
	const struct plan *p = e->plan;
	int64_t running = 0, scratch = 3 * p->micro_batch;
	for (int i = 0; i < p->param_count; i++)
		running += p->params[i].role == PLAN_STATE ? p->params[i].count : 0;
	if (p->head >= 0)
		scratch = 2 * p->params[p->head].shape[1];
	size_t each = (size_t)p->micro_steps + 1, ranks = (size_t)plan_mesh_size(&p->mesh);
	e->running = calloc(2 * (size_t)running + 1, sizeof(float));
	e->scratch = calloc((size_t)scratch, sizeof(float));
	e->calls = calloc((size_t)p->ticket_count + 1, sizeof(*e->calls));
	e->numbers = calloc(each * (1 + ranks), sizeof(*e->numbers));
	e->squares = calloc((size_t)p->op_count + 1, sizeof(*e->squares));
	if (!e->running || !e->scratch || !e->calls || !e->numbers || !e->squares)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the engine");
	return 0;
}

int engine_create(const struct job_spec *spec, const struct plan *plan,
	const struct backend *backend, int threads, struct engine **ret, struct err *err)
{
	if (threads < 1 || threads > ENGINE_THREADS_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "threads must be 1 to %d, not %d",
			ENGINE_THREADS_MAX, threads);
	if (backend->act_type != plan->type)
		return err_set(err, ERR_INTERNAL, NULL, "the plan is in %s, the backend %s in %s",
			plan_type_word(plan->type), backend->name, plan_type_word(backend->act_type));
	cleanup(engine_destroyp) struct engine *e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the engine");
	e->spec = spec;
	e->plan = plan;
	e->backend = backend;
	e->ahead_position = ENGINE_NOTHING;
	e->state = (struct engine_state){ .seed = spec->seed,
		.loss_scale = plan->type == PLAN_F16 ? ENGINE_SCALE_FIRST : 1.0 };
	int rc = backend->open(threads, &e->ctx, err);
	if (!rc && plan->tf32)
		rc = backend->allow_tf32(e->ctx, err);
	if (!rc)
		rc = map_memory(e, err);
	if (!rc)
		rc = prepare_host(e, err);
	if (!rc)
		rc = engine_tensor_prepare(e, err);
	if (!rc)
		rc = engine_host_prepare(e, err);
	if (!rc)
		rc = engine_exec_prepare(e, err);
	if (rc)
		return rc;
	backend->enter(e->ctx);
	if (plan->rope >= 0)
		backend->rope_table(
			plan->sequence_length, plan->head_size, plan->rope_theta, engine_buffer(e, plan->rope));
	*ret = take_ptr(e);
	return 0;
}

void engine_destroy(struct engine *e)
{
	if (!e)
		return;
	if (e->loader)
		loader_close(e->loader);
	engine_exec_leave(e);
	if (e->mesh)
		mesh_leave_device(e->mesh);
	free(e->segments);
	free(e->bucket_segments);
	free(e->calls);
	free(e->numbers);
	free(e->squares);
	free(e->host);
	free(e->slots);
	free(e->running);
	free(e->scratch);
	free(e->keys);
	if (e->ctx)
		e->backend->close(e->ctx);
	free(e);
}

void engine_destroyp(struct engine **e)
{
	engine_destroy(*e);
	*e = NULL;
}

void engine_finish(struct engine *e)
{
	struct err err = { 0 };
	engine_exec_fail(e, e->backend->finish(e->ctx, &err), &err);
}

/* The device's groups move what is in the plan's memory, by the stream that operations are on. */
static int enter_groups(struct engine *e, struct mesh *mesh, struct err *err)
{
	struct comm_device device;
	e->backend->enter(e->ctx);
	e->backend->group_device(e->ctx, &device);
	int rc = mesh_enter_device(mesh, &device, err);
	if (rc == 0)
		rc = mesh_register(mesh, e->arena, e->plan->device_bytes, err);
	if (rc < 0)
		mesh_leave_device(mesh);
	return rc;
}

int engine_join(struct engine *e, struct mesh *mesh, struct err *err)
{
	const struct plan_mesh *plan = &e->plan->mesh, *place = &mesh->place;
	if (place->data != plan->data || place->tensor != plan->tensor ||
		place->pipeline != plan->pipeline || place->chunks != plan->chunks ||
		plan_mesh_rank(place) != plan_mesh_rank(plan))
		return err_set(err, ERR_CONFLICT, NULL,
			"rank %d of %d x %d x %d ranks has the plan of rank %d of %d x %d x %d",
			plan_mesh_rank(place), place->data, place->tensor, place->pipeline,
			plan_mesh_rank(plan), plan->data, plan->tensor, plan->pipeline);
	if (mesh->options.apart != e->backend->apart)
		return err_set(err, ERR_CONFLICT, NULL,
			"the mesh's groups are %s a device, and %s computes in %s memory",
			mesh->options.apart ? "on" : "not on", e->backend->name,
			e->backend->apart ? "its own" : "the host's");
	int rc = e->backend->apart ? enter_groups(e, mesh, err) : 0;
	if (rc == 0)
		e->mesh = mesh;
	return rc;
}

/* A plan of several ranks cannot run alone. */
int engine_check_joined(const struct engine *e, struct err *err)
{
	if (plan_mesh_size(&e->plan->mesh) > 1 && e->mesh == NULL)
		return err_set(err, ERR_CONFLICT, NULL, "the other ranks have not been joined");
	return engine_exec_failed(e, err);
}

static int check_images(
	const struct engine *e, const struct data_info *i, const char *param, struct err *err)
{
	const struct plan *p = e->plan;
	if (i->channels != p->in_channels || i->height != p->in_height || i->width != p->in_width)
		return err_set(err, ERR_INVALID_DATA, param,
			"the samples are %lldx%lldx%lld (height, width, channels), the model takes "
			"%lldx%lldx%lld",
			(long long)i->height, (long long)i->width, (long long)i->channels,
			(long long)p->in_height, (long long)p->in_width, (long long)p->in_channels);
	if (i->classes > p->n_classes || (p->task == SPEC_REGRESSION && i->classes != p->n_classes))
		return err_set(err, ERR_INVALID_DATA, param, "the data has %lld %s, the model %lld",
			(long long)i->classes, p->task == SPEC_REGRESSION ? "outputs" : "classes",
			(long long)p->n_classes);
	return 0;
}

/* A click-through table's columns are the spec's, which data_open checked. */
static int check_data(
	const struct engine *e, const struct data *d, const char *param, struct err *err)
{
	const struct data_info *i = data_info(d);
	if (engine_is_language(e)) {
		if (i->vocabulary > e->plan->n_classes)
			return err_set(err, ERR_INVALID_DATA, param,
				"the largest token of the data is %lld, the model's vocabulary has %lld",
				(long long)i->vocabulary - 1, (long long)e->plan->n_classes);
		return 0;
	}
	return e->plan->family == SPEC_DLRM ? 0 : check_images(e, i, param, err);
}

static int open_loader(
	const struct engine *e, const struct data *training, struct loader **ret, struct err *err)
{
	struct loader_options o = { .micro_batch = e->plan->micro_batch,
		.stride = e->plan->micro_batch * e->plan->mesh.data,
		.seed = (uint64_t)e->spec->seed,
		.shuffle = e->spec->data.shuffle,
		.threads = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : 0,
		.prepare_thread = e->backend->prepare_thread };
	_Static_assert((int)LOADER_DEPTH == (int)PLAN_STAGING, "one staging buffer for each");
	for (int i = 0; i < LOADER_DEPTH; i++)
		o.slot[i] = engine_batch(e, &e->plan->staging[i]);
	return loader_open(training, &o, ret, err);
}

int engine_attach(
	struct engine *e, const struct data *training, const struct data *validation, struct err *err)
{
	int rc = check_data(e, training, "training_file", err);
	if (!rc && validation)
		rc = check_data(e, validation, "validation_file", err);
	if (rc)
		return rc;
	cleanup(freep) uint64_t *keys = NULL;
	if (validation && e->plan->task == SPEC_CLICK_THROUGH) {
		keys = calloc((size_t)data_evaluation_samples(validation), sizeof(*keys));
		if (!keys)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the validation set's scores");
	}
	/* The staging buffers are the engine's: the former loader ends first, and what has set off. */
	e->backend->put_wait(e->ctx);
	e->ahead_position = ENGINE_NOTHING;
	if (e->loader)
		loader_close(e->loader);
	e->loader = NULL;
	e->training = e->validation = NULL;
	rc = open_loader(e, training, &e->loader, err);
	if (rc)
		return rc;
	e->training = training;
	e->validation = validation;
	free(e->keys);
	e->keys = take_ptr(keys);
	return 0;
}

void engine_state_get(const struct engine *e, struct engine_state *ret)
{
	*ret = e->state;
}

static bool scale_is_valid(const struct engine *e, const struct engine_state *s)
{
	if (e->plan->type != PLAN_F16)
		return s->loss_scale == 1.0 && s->scale_steps == 0;
	bool power = false;
	for (double x = ENGINE_SCALE_MIN; x <= ENGINE_SCALE_MAX; x *= 2)
		power |= s->loss_scale == x;
	return power && s->scale_steps >= 0 && s->scale_steps < ENGINE_SCALE_STEPS;
}

/* Windows of running text count all their tokens; packed documents at most so many. */
static bool tokens_are_valid(const struct engine *e, const struct engine_state *s)
{
	int64_t most = 0;
	if (engine_is_language(e) &&
		__builtin_mul_overflow(s->position, e->plan->sequence_length, &most))
		return false;
	bool exact = e->spec->data.format == SPEC_FORMAT_TEXT ||
		e->spec->data.format == SPEC_FORMAT_TOKENS || !engine_is_language(e);
	return exact ? s->tokens == most : s->tokens >= 0 && s->tokens <= most;
}

int engine_state_set(struct engine *e, const struct engine_state *s, struct err *err)
{
	int64_t position = 0;
	bool over = __builtin_mul_overflow(s->step, e->plan->batch, &position);
	if (over || s->step < 0 || s->position != position || !tokens_are_valid(e, s))
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the saved state (step %lld, position %lld, tokens %lld) is not of a run with batch "
			"%lld",
			(long long)s->step, (long long)s->position, (long long)s->tokens,
			(long long)e->plan->batch);
	if (!scale_is_valid(e, s))
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the saved state (loss scale %g since %lld steps) is not of a run in %s", s->loss_scale,
			(long long)s->scale_steps, plan_type_word(e->plan->type));
	if (s->seed != e->spec->seed)
		return err_set(err, ERR_INVALID_DATA, NULL,
			"the saved state has seed %lld, the job has %lld", (long long)s->seed,
			(long long)e->spec->seed);
	e->state = *s;
	return 0;
}

void engine_trace(struct engine *e, engine_trace_fn fn, void *ctx)
{
	e->trace = fn;
	e->trace_ctx = ctx;
}

bool engine_is_apart(const struct backend *backend)
{
	return backend->apart;
}

const char *engine_backend_name(const struct backend *backend)
{
	return backend->name;
}

int64_t engine_memory_bytes(const struct engine *e)
{
	return e->backend->memory_bytes(e->ctx);
}
