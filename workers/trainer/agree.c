/* SPDX-License-Identifier: Apache-2.0
 * Decisions as the maximum, over all ranks, of a few small numbers. */
#include "workers/trainer/agree.h"

#include "core/base/buf.h"
#include "workers/trainer/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of a round; each rank has its own, the largest counts. */
enum word { WORD_BUSY, WORD_ORDER, WORD_TIME_UP, WORD_CHECKPOINT, WORD_OVER, WORD_COUNT };

/* By weight. */
static const enum loop_order orders[] = { LOOP_GO_ON, LOOP_TERMINATE, LOOP_PAUSE, LOOP_CANCEL };

static int weight(enum loop_order order)
{
	int w = 0;
	while (orders[w] != order)
		w++;
	return w;
}

static int round_of(struct mesh *m, float *words, struct err *err)
{
	struct comm *c = m->world;
	int64_t ticket = 0;
	const struct comm_args a = {
		.recv = words, .count = WORD_COUNT, .type = COMM_F32, .reduce = COMM_MAX
	};
	int rc = c->ops->all_reduce(c, &a, &ticket, err);
	return rc < 0 ? rc : comm_wait(c, ticket, err);
}

int agree_step(
	struct mesh *m, struct agree_say *say, void (*waiting)(void *ctx), void *ctx, struct err *err)
{
	float words[WORD_COUNT] = { 0 };
	if (m == NULL)
		return 0;
	do {
		if (words[WORD_BUSY] > 0 && waiting != NULL)
			waiting(ctx);
		words[WORD_BUSY] = 0;
		words[WORD_ORDER] = (float)weight(say->order);
		words[WORD_TIME_UP] = ranks_is_first(m) && say->time_up;
		words[WORD_CHECKPOINT] = say->checkpoint;
		words[WORD_OVER] = say->over;
		int rc = round_of(m, words, err);
		if (rc < 0)
			return rc;
	} while (words[WORD_BUSY] > 0);
	*say = (struct agree_say){
		.order = orders[(int)words[WORD_ORDER]],
		.time_up = words[WORD_TIME_UP] > 0,
		.checkpoint = words[WORD_CHECKPOINT] > 0,
		.over = words[WORD_OVER] > 0,
	};
	return 0;
}

void agree_wait(struct mesh *m)
{
	float words[WORD_COUNT] = { [WORD_BUSY] = 1 };
	if (m != NULL && ranks_is_first(m))
		(void)round_of(m, words, NULL);
}

/* How work went on a rank, as it travels. */
struct outcome {
	int32_t code;
	char param[ERR_PARAM_MAX], message[ERR_MESSAGE_MAX];
};

/* What the first rank that failed said. */
static int first_failure(int size, const struct outcome *all, struct err *err)
{
	for (int r = 0; r < size; r++) {
		const struct outcome *o = &all[r];
		if (o->code == 0)
			continue;
		if (r == 0)
			return err_set(err, o->code, o->param, "%s", o->message);
		return err_set(err, o->code, o->param, "rank %d: %s", r, o->message);
	}
	return 0;
}

int agree_on(struct comm *c, int rc, struct err *err)
{
	if (c == NULL)
		return rc;
	struct outcome mine = { .code = rc };
	cleanup(freep) struct outcome *all = calloc((size_t)c->size, sizeof(*all));
	if (all == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for what the ranks say");
	if (rc < 0) {
		snprintf(mine.param, sizeof(mine.param), "%s", err->param);
		snprintf(mine.message, sizeof(mine.message), "%s", err->message);
	}
	int64_t ticket = 0;
	const struct comm_args a = { .send = &mine,
		.recv = all,
		.count = sizeof(mine),
		.type = COMM_BYTES,
		.deadline_ms = AGREE_WORK_MS };
	int met = c->ops->all_gather(c, &a, &ticket, err);
	if (met == 0)
		met = comm_wait(c, ticket, err);
	return met < 0 ? met : first_failure(c->size, all, err);
}

int agree_opened(struct mesh *m, int rc, struct err *err)
{
	return agree_on(m != NULL ? m->world : NULL, rc, err);
}

int agree_first(struct comm *c, bool *value, struct err *err)
{
	if (c == NULL)
		return 0;
	uint8_t word = *value;
	int64_t ticket = 0;
	const struct comm_args a = { .recv = &word, .count = 1, .type = COMM_BYTES };
	int rc = c->ops->broadcast(c, &a, &ticket, err);
	if (rc == 0)
		rc = comm_wait(c, ticket, err);
	if (rc == 0)
		*value = word != 0;
	return rc;
}
