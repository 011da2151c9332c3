/* SPDX-License-Identifier: Apache-2.0
 * Writing checkpoints. The tensors are written first, straight from the engine's memory: only that
 * must be over before the optimizer changes them. What is slow (hashes, the disk) comes after. */
#include "workers/trainer/checkpoint.h"

#include "core/json/writer.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/gather.h"
#include "workers/trainer/safetensors.h"
#include "workers/trainer/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_TEXT_MAX = 64 * 1024 };

struct checkpoint {
	struct hf_model model;
	struct hf_weights weights; /* running statistics point into `kept` */
	char *kept;                /* copies of the running statistics */
	void **live;               /* by tensor: where a copied one lies in the engine */
	struct comm *others;       /* ranks that keep a part each; NULL: none do */
	struct gather *gather;     /* they are apart: all goes to rank 0; otherwise NULL */
	/* What optimizer.safetensors has, moments and averages; or all that this rank's shard has. */
	struct safetensors_tensor *list;
	int list_count;
	struct engine_state state;
	struct summary_metrics metrics;
	struct folder folder;
	int code; /* with others: what has gone wrong here, until they are told */
	struct err err;
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

/* What this rank writes, or sends for another to write. */
static const struct hf_weights *written(const struct checkpoint *c)
{
	return c->gather != NULL ? gather_tensors(c->gather) : &c->weights;
}

static int list_optimizer(struct checkpoint *c, struct err *err)
{
	const struct hf_weights *w = written(c);
	c->list = calloc((size_t)w->count + 1, sizeof(*c->list));
	if (c->list == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list the optimizer's tensors");
	for (int i = 0; i < w->count; i++) {
		const struct engine_tensor *t = &w->list[i];
		if (t->kind == ENGINE_PARAMETER)
			continue;
		struct safetensors_tensor *s = &c->list[c->list_count++];
		snprintf(s->name, sizeof(s->name), "%s", t->name);
		snprintf(s->dtype, sizeof(s->dtype), "%s", t->dtype);
		s->rank = t->rank;
		memcpy(s->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank);
		s->bytes = hf_weights_elements(t) * plan_type_bytes(t->type);
		s->data = t->data;
	}
	return 0;
}

int checkpoint_create(const struct hf_model *m, struct checkpoint **ret, struct err *err)
{
	cleanup(checkpoint_destroyp) struct checkpoint *c = calloc(1, sizeof(*c));
	const struct plan_mesh *place = &m->plan->mesh;
	if (c == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a checkpoint");
	c->model = *m;
	if (shards_are_used(place))
		c->others = m->mesh->save;
	int rc = hf_weights_of(m->engine, &c->weights, err);
	if (rc == 0)
		rc = keep_statistics(c, err);
	if (rc == 0 && c->others != NULL && m->apart)
		rc = gather_create(m->mesh, &c->weights, &c->gather, err);
	if (rc == 0 && c->others != NULL && !m->apart)
		rc = shards_list(&c->weights, m->spec->lora.rank > 0, &c->list, &c->list_count, err);
	else if (rc == 0)
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
	free(c->list);
	gather_destroy(c->gather);
	free(c);
}

void checkpoint_destroyp(struct checkpoint **c)
{
	checkpoint_destroy(*c);
	*c = NULL;
}

void checkpoint_abort(struct checkpoint *c, const char *reason)
{
	if (c->others != NULL)
		comm_abort(c->others, reason);
}

static bool is_first(const struct checkpoint *c)
{
	return c->others == NULL || c->others->rank == 0;
}

/* ------------------------------------------------------------------------------ the three steps */

int checkpoint_begin(struct checkpoint *c, const struct summary_metrics *metrics,
	const char *parent, struct err *err)
{
	char name[CHECKPOINT_NAME_MAX];
	engine_state_get(c->model.engine, &c->state);
	c->metrics = *metrics;
	checkpoint_name(c->state.step, name);
	int rc = engine_tensors_refresh(c->model.engine, err);
	if (rc < 0)
		return rc;
	for (int i = 0; i < c->weights.count; i++)
		if (c->live[i] != NULL)
			memcpy(c->weights.list[i].data, c->live[i], (size_t)c->weights.list[i].bytes);
	int (*const place)(struct folder *, const char *, const char *, const char *, int64_t,
		struct err *) = is_first(c) ? folder_begin : folder_place;
	c->err = (struct err){ 0 };
	c->code = place(&c->folder, parent, ".writing", name, c->state.step, &c->err);
	if (c->code < 0 && c->others == NULL) {
		*err = c->err;
		return c->code;
	}
	return 0; /* the others are told first */
}

/* The own shard, once rank 0 has made the folder. */
static int copy_shard(struct checkpoint *c, struct err *err)
{
	char name[MANIFEST_NAME_MAX], path[FILE_PATH_MAX];
	*err = c->err;
	int rc = agree_on(c->others, c->code, err);
	if (rc < 0)
		return rc;
	shards_name(c->others->rank, c->others->size, name);
	c->code = file_join(path, c->folder.hidden, name, &c->err);
	if (c->code == 0)
		c->code = safetensors_write(path, c->list, c->list_count, &c->err);
	return 0; /* the others are told in checkpoint_publish */
}

static int next_bytes(
	void *ctx, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err)
{
	const struct checkpoint *c = ctx;
	int first = written(c)->count - c->list_count; /* parameters come before all else */
	if (c->gather != NULL)
		return gather_next(c->gather, first + i, at, ret, ret_bytes, err);
	*ret = (const char *)c->list[i].data + at;
	*ret_bytes = c->list[i].bytes - at;
	return 0;
}

/* Whole files, of what lies here or comes from the others. */
static int write_files(struct checkpoint *c, struct err *err)
{
	char path[FILE_PATH_MAX];
	int64_t batches = hf_model_batches(&c->model, c->state.step);
	int rc = hf_model_weights(&c->model, &c->weights, batches, c->gather, &c->folder, err);
	if (rc == 0)
		rc = folder_add(&c->folder, "optimizer.safetensors", path, err);
	return rc < 0 ? rc : safetensors_write_from(path, c->list, c->list_count, next_bytes, c, err);
}

static int send_files(struct checkpoint *c, struct err *err)
{
	int64_t batches = hf_model_batches(&c->model, c->state.step);
	int rc = hf_model_weights(&c->model, &c->weights, batches, c->gather, NULL, err);
	const int count = written(c)->count;
	for (int i = count - c->list_count; i < count && rc == 0; i++)
		rc = gather_send(c->gather, i, err);
	return rc;
}

/* The others wait for each byte: what fails on one ends it for all. */
static int copy_together(struct checkpoint *c, struct err *err)
{
	*err = c->err;
	int rc = agree_on(c->others, c->code, err);
	if (rc < 0)
		return rc;
	rc = is_first(c) ? write_files(c, err) : send_files(c, err);
	if (rc < 0)
		comm_abort(c->others, "the checkpoint could not be written");
	return rc;
}

int checkpoint_copy(struct checkpoint *c, struct err *err)
{
	if (c->others == NULL)
		return write_files(c, err);
	return c->gather != NULL ? copy_together(c, err) : copy_shard(c, err);
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

/* What is small, and the manifest; rank 0. */
static int publish(struct checkpoint *c, struct err *err)
{
	int rc = hf_model_describe(&c->model, &c->folder, err);
	if (rc == 0)
		rc = add_state(c, err);
	return rc < 0 ? rc : folder_publish(&c->folder, err);
}

/* Each rank has synced and hashed what it wrote before rank 0 hears of it: the manifest only lists
 * what is on the disk. */
static int gather_shards(struct checkpoint *c, struct err *err)
{
	const int size = c->others->size;
	struct manifest_file own = { 0 };
	int64_t ticket = 0;
	cleanup(freep) struct manifest_file *all = calloc((size_t)size, sizeof(*all));
	if (all == NULL && c->code == 0)
		c->code = err_set(&c->err, ERR_NO_MEMORY, NULL, "no memory for the list of shards");
	shards_name(c->others->rank, size, own.name);
	if (c->code == 0)
		c->code = manifest_seal_file(&own, c->folder.hidden, &c->err);
	*err = c->err;
	int rc = agree_on(c->others, c->code, err);
	if (rc < 0)
		return rc;
	const struct comm_args a = {
		.send = &own, .recv = all, .count = sizeof(own), .type = COMM_BYTES
	};
	rc = c->others->ops->all_gather(c->others, &a, &ticket, err);
	if (rc == 0)
		rc = comm_wait(c->others, ticket, err);
	for (int r = 0; r < size && rc == 0 && is_first(c); r++)
		c->code =
			c->code < 0 ? c->code : manifest_add_sealed(&c->folder.manifest, &all[r], &c->err);
	return rc;
}

int checkpoint_publish(struct checkpoint *c, struct err *err)
{
	if (c->others == NULL)
		return publish(c, err);
	int rc = c->gather != NULL ? 0 : gather_shards(c, err);
	if (rc < 0)
		return rc;
	if (is_first(c) && c->code == 0)
		c->code = publish(c, &c->err);
	*err = c->err;
	return agree_on(c->others, c->code, err);
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
