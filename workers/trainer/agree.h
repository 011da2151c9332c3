/* SPDX-License-Identifier: Apache-2.0
 * What all ranks of a job do together, decided once a step: rank 0 says what is to be done, any
 * rank may hand on an order that reached it alone. Without other ranks nothing is asked. Called
 * between steps, by all ranks equally often, on their main threads. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/engine/mesh.h"
#include "workers/trainer/loop.h"

#include <stdbool.h>

/* For work that takes as long as a disk does (opening, writing, hashing): the deadline of calls is
 * for ranks that compute. A rank that ended is seen at once all the same. */
enum { AGREE_WORK_MS = 30 * 60 * 1000 };

/* What this rank knows; then, the same on every rank, what is done. */
struct agree_say {
	enum loop_order
		order;       /* any rank's: to cancel goes before to pause, that before to terminate */
	bool time_up;    /* rank 0's */
	bool checkpoint; /* any rank's: take one now */
	bool over;       /* any rank's: the training has come to its end */
};

/* One round. Behind rounds in which rank 0 only said that it is busy, after each of which waiting
 * (may be NULL) is called. Errors are the other ranks' loss (ranks_is_lost). */
int agree_step(struct mesh *m, struct agree_say *say, void (*waiting)(void *ctx), void *ctx,
	struct err *err) must_check;
/* Rank 0, busy with something that the others have no part in: they go on waiting. An error comes
 * again with the next agree_step. */
void agree_wait(struct mesh *m);
/* The same for any work that all ranks of a group have a part in: the first failure, in the order
 * of ranks, is everybody's. c NULL: alone. */
int agree_on(struct comm *c, int rc, struct err *err) must_check;
/* What rank 0 has decided. */
int agree_first(struct comm *c, bool *value, struct err *err) must_check;
/* All ranks are ready for the first step, or none is: rc and err are how it went on this rank, and
 * then, if it went wrong anywhere, what is wrong on the first such rank. */
int agree_opened(struct mesh *m, int rc, struct err *err) must_check;
