/* SPDX-License-Identifier: Apache-2.0
 * Writing checkpoints. The tensors are written first, straight from the engine's memory: only that
 * must be over before the optimizer changes them. What is slow (hashes, the disk) comes after. */
#include "workers/trainer/checkpoint.h"

#include "core/json/writer.h"
#include "workers/trainer/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_TEXT_MAX = 64 * 1024 };

struct checkpoint {
	struct hf_model model;
	struct hf_weights weights;            /* running statistics point into `kept` */
	char *kept;                           /* copies of the running statistics */
	void **live;                          /* by tensor: where a copied one lies in the engine */
	struct safetensors_tensor *optimizer; /* moments and averages */
	int optimizer_count;
	struct engine_state state;
	struct summary_metrics metrics;
	struct folder folder;
};

void checkpoint_name(int64_t step, char ret_name[static CHECKPOINT_NAME_MAX])
{
	snprintf(ret_name, CHECKPOINT_NAME_MAX, "step-%lld", (long long)step);
}

/* The forward pass writes them, so they are copied; everything else holds still until the update.
 */
static int keep_statistics(struct checkpoint *c, struct err *err)
{
	size_t bytes = 1, at = 0;
	for (int i = 0; i < c->weights.count; i++)
		if (c->weights.list[i].role == PLAN_STATE)
			bytes += (size_t)c->weights.list[i].bytes;
	c->kept = malloc(bytes);
	c->live = calloc((size_t)c->weights.count + 1, sizeof(*c->live));
	if (c->kept == NULL || c->live == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for copies of %zu bytes", bytes);
	for (int i = 0; i < c->weights.count; i++) {
		struct engine_tensor *t = &c->weights.list[i];
		if (t->role != PLAN_STATE)
			continue;
		c->live[i] = t->data;
		t->data = c->kept + at;
		at += (size_t)t->bytes;
	}
	return 0;
}

static int list_optimizer(struct checkpoint *c, struct err *err)
{
	c->optimizer = calloc((size_t)c->weights.count + 1, sizeof(*c->optimizer));
	if (c->optimizer == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list the optimizer's tensors");
	for (int i = 0; i < c->weights.count; i++) {
		const struct engine_tensor *t = &c->weights.list[i];
		if (t->kind == ENGINE_PARAMETER)
			continue;
		struct safetensors_tensor *s = &c->optimizer[c->optimizer_count++];
		snprintf(s->name, sizeof(s->name), "%s", t->name);
		snprintf(s->dtype, sizeof(s->dtype), "%s", t->dtype);
		s->rank = t->rank;
		memcpy(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank);
		s->bytes = t->bytes;
		s->data = t->data;
	}
	return 0;
}

int checkpoint_create(const struct hf_model *m, struct checkpoint **ret, struct err *err)
{
	cleanup(checkpoint_destroyp) struct checkpoint *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a checkpoint");
	c->model = *m;
	int rc = hf_weights_of(m->engine, &c->weights, err);
	if (rc == 0)
		rc = keep_statistics(c, err);
	if (rc == 0)
		rc = list_optimizer(c, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(c);
	return 0;
}

void checkpoint_destroy(struct checkpoint *c)
{
	if (c == NULL)
		return;
	hf_weights_finish(&c->weights);
	free(c->kept);
	free(c->live);
	free(c->optimizer);
	free(c);
}

void checkpoint_destroyp(struct checkpoint **c)
{
	checkpoint_destroy(*c);
	*c = NULL;
}

/* ------------------------------------------------------------------------------ the three steps */

int checkpoint_begin(struct checkpoint *c, const struct summary_metrics *metrics,
	const char *parent, struct err *err)
{
	char name[CHECKPOINT_NAME_MAX];
	engine_state_get(c->model.engine, &c->state);
	c->metrics = *metrics;
	checkpoint_name(c->state.step, name);
	for (int i = 0; i < c->weights.count; i++)
		if (c->live[i] != NULL)
			memcpy(c->weights.list[i].data, c->live[i], (size_t)c->weights.list[i].bytes);
	return folder_begin(&c->folder, parent, ".writing", name, c->state.step, err);
}

int checkpoint_copy(struct checkpoint *c, struct err *err)
{
	char path[FILE_PATH_MAX];
	int64_t batches = c->state.step * c->model.plan->micro_steps;
	int rc = hf_model_weights(&c->model, &c->weights, batches, &c->folder, err);
	if (rc == 0)
		rc = folder_add(&c->folder, "optimizer.safetensors", path, err);
	return rc < 0 ? rc : safetensors_write(path, c->optimizer, c->optimizer_count, err);
}

static int add_state(struct checkpoint *c, struct err *err)
{
	struct json_writer w;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, STATE_TEXT_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "format", 2);
	json_field_i64(&w, "step", c->state.step);
	json_field_i64(&w, "position", c->state.position);
	json_field_i64(&w, "tokens", c->state.tokens);
	json_field_i64(&w, "seed", c->state.seed);
	json_field_f64(&w, "loss_scale", c->state.loss_scale);
	json_field_i64(&w, "scale_steps", c->state.scale_steps);
	json_field_i64(&w, "evaluated_step", c->metrics.evaluated_step);
	json_key(&w, "metrics");
	json_begin_object(&w);
	summary_write_metrics(&w, c->model.spec, &c->metrics);
	json_end_object(&w);
	json_end_object(&w);
	buf_char(&text, '\n');
	return folder_add_text(&c->folder, "state.json", &text, err);
}

int checkpoint_publish(struct checkpoint *c, struct err *err)
{
	int rc = hf_model_describe(&c->model, &c->folder, err);
	if (rc == 0)
		rc = add_state(c, err);
	return rc < 0 ? rc : folder_publish(&c->folder, err);
}

int checkpoint_write(const struct hf_model *m, const struct summary_metrics *metrics,
	const char *parent, int64_t *ret_step, struct err *err)
{
	cleanup(checkpoint_destroyp) struct checkpoint *c = NULL;
	int rc = checkpoint_create(m, &c, err);
	if (rc == 0)
		rc = checkpoint_begin(c, metrics, parent, err);
	if (rc == 0)
		rc = checkpoint_copy(c, err);
	if (rc == 0)
		rc = checkpoint_publish(c, err);
	if (rc == 0)
		*ret_step = c->state.step;
	return rc;
}
