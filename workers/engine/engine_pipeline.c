/* SPDX-License-Identifier: Apache-2.0
 * Runs the sections of a pipeline's plan in the order of its schedule. What the next section needs
 * from another rank is asked for before the present one runs, so that it comes meanwhile. Called by
 * engine_step.c and engine_evaluate.c, on the engine's thread. */
#include "workers/engine/engine_private.h"

enum { ROUND_GROUPS = 4 }; /* of as many micro-batches as there are ranks */

static const struct plan_section *section_of(const struct engine *e, const struct plan_item *item)
{
	const struct plan_chunk *c = &e->plan->chunks[item->chunk];
	return item->phase == PLAN_FORWARD ? &c->forward : &c->backward;
}

/* Starts to receive what the item needs. */
static void ask(struct engine *e, const struct plan_item *item)
{
	const struct plan_section *s = section_of(e, item);
	e->micro = item->micro;
	engine_exec(e, s->begin, s->body);
}

static void run(struct engine *e, const struct plan_item *item)
{
	const struct plan_section *s = section_of(e, item);
	engine_exec(e, s->body, s->end);
}

static bool tells_losses(const struct engine *e, const struct plan_item *item)
{
	const struct plan_mesh *m = &e->plan->mesh;
	return item->phase == PLAN_FORWARD && item->chunk == m->chunks - 1 &&
		m->pipeline_rank == m->pipeline - 1;
}

static void train(struct engine *e, const struct plan_item *item)
{
	e->micro = item->micro;
	e->micro_position = engine_micro_position(e, item->micro);
	if (item->phase == PLAN_FORWARD && item->chunk == 0)
		engine_step_take(e, e->micro_position);
	run(e, item);
	if (tells_losses(e, item))
		engine_step_row_sum(e, e->plan->row_loss, &e->numbers[1 + item->micro]);
}

void engine_pipeline_step(struct engine *e, float row_scale)
{
	const struct plan_schedule *s = &e->plan->schedule;
	int64_t count = plan_schedule_count(s);
	struct plan_item item = plan_schedule_at(s, 0), next = item;
	e->train = true;
	e->row_scale = row_scale;
	for (int64_t i = 0; i < s->micros; i++)
		e->numbers[1 + i] = 0;
	ask(e, &item);
	for (int64_t i = 0; i < count && e->failure.code == 0; i++) {
		item = next;
		if (i + 1 < count) {
			next = plan_schedule_at(s, i + 1);
			ask(e, &next);
		}
		train(e, &item);
	}
	engine_exec_settle(e);
}

int64_t engine_pipeline_round(const struct engine *e)
{
	return (int64_t)ROUND_GROUPS * e->plan->mesh.pipeline;
}

/* Weights of a joint backward pass that will not come are asked for too, and waited for at the end.
 */
void engine_pipeline_pass(struct engine *e, int64_t count, const struct engine_pass *pass)
{
	struct plan_schedule s = e->plan->schedule;
	s.micros = count;
	int64_t items = count * s.chunks;
	struct plan_item item = plan_schedule_forward(&s, 0), next = item;
	ask(e, &item);
	for (int64_t k = 0; k < items && e->failure.code == 0; k++) {
		item = next;
		if (k + 1 < items) {
			next = plan_schedule_forward(&s, k + 1);
			ask(e, &next);
		}
		e->micro = item.micro;
		if (item.chunk == 0)
			pass->read(pass->ctx, item.micro);
		run(e, &item);
		if (tells_losses(e, &item))
			pass->done(pass->ctx, item.micro);
	}
	engine_exec_settle(e);
}

void engine_pipeline_tell(struct engine *e, double *numbers, int64_t count)
{
	struct err err = { 0 };
	int64_t ticket = 0;
	if (e->plan->mesh.pipeline == 1 || e->failure.code < 0)
		return;
	struct comm *c = e->mesh->pipeline;
	struct comm_args a = { .send = numbers,
		.recv = numbers,
		.count = count * (int64_t)sizeof(*numbers),
		.type = COMM_BYTES,
		.root = e->plan->mesh.pipeline - 1 };
	int rc = c->ops->broadcast(c, &a, &ticket, &err);
	if (rc == 0)
		rc = comm_wait(c, ticket, &err);
	engine_exec_fail(e, rc, &err);
}
