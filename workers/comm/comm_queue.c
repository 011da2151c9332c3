/* SPDX-License-Identifier: Apache-2.0
 * A group of several ranks: the queue of its calls, the thread that runs them one after the other,
 * and its first failure, which all that is not done shares. The callers' threads enqueue, wait and
 * abort; only the group's own thread uses the wire, but for interrupting it. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "workers/comm/comm_collect.h"
#include "workers/comm/comm_private.h"
#include "workers/comm/comm_store.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	/* How long past its deadline a call may be before its waiter ends it: the group's thread knows
	 * better why it is late, and comes first unless the call stands behind a slower one. */
	GRACE_US = 100000,
	WATCH_US = 20000, /* between two looks at the other ranks, where nothing is called */
	NOTICE_MAX = ERR_MESSAGE_MAX + 16,
};

struct call {
	enum comm_op op;
	bool compares; /* and moves nothing */
	struct comm_args args;
	int64_t deadline_ms, deadline_us;
};

struct comm_queue {
	struct comm base;
	struct comm_wire *wire;
	struct comm_collect *collect;
	struct comm_store *store;
	pthread_t thread;
	bool thread_runs;

	pthread_mutex_t lock; /* over all that follows */
	pthread_cond_t changed;
	struct call calls[COMM_PENDING_MAX];
	int64_t issued, finished; /* tickets */
	bool closing;
	bool watching;
	bool failed_idle;   /* the failure is of no call */
	bool stopped;       /* the thread uses no buffer any more */
	struct err failure; /* code 0: none */
	struct err cause;   /* the same as seen by the rank where it began */
};

static int64_t now_us(void)
{
	return clock_mono_us(clock_system());
}

static struct call *call_of(struct comm_queue *q, int64_t ticket)
{
	return &q->calls[(ticket - 1) % COMM_PENDING_MAX];
}

/* ------------------------------------------------------------------ failure */

static void notice_key(
	const struct comm_queue *q, int rank, char ret_key[static COMM_STORE_KEY_MAX])
{
	snprintf(ret_key, COMM_STORE_KEY_MAX, "%s.failed.%d", q->base.name, rank);
}

/* Leaves word for the ranks that will see us go: their error then says why. */
static void leave_notice(struct comm_queue *q)
{
	char key[COMM_STORE_KEY_MAX], text[NOTICE_MAX];
	notice_key(q, q->base.rank, key);
	int n = snprintf(text, sizeof(text), "%d %s", q->cause.code, q->cause.message);
	if (comm_store_put(q->store, key, text, num_min(n, NOTICE_MAX - 1), NULL) < 0)
		return; /* they know less, and fail all the same */
}

/* The notice of a rank that has gone. */
static bool read_notice(struct comm_queue *q, int rank, struct err *ret_cause)
{
	char key[COMM_STORE_KEY_MAX];
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	int64_t code = 0;
	notice_key(q, rank, key);
	if (comm_store_get(q->store, key, 0, &text, &bytes, NULL) < 0)
		return false;
	char *space = strchr(text, ' ');
	if (space == NULL)
		return false;
	*space = '\0';
	if (num_parse_i64(text, INT16_MIN, -1, &code) < 0)
		return false;
	(void)err_set(ret_cause, (int)code, NULL, "%s", space + 1);
	return true;
}

/* The failure of what the wire, or the comparison, gave up. */
static void describe(struct comm_queue *q, const char *where, int64_t deadline_ms, int rc, int peer,
	const struct err *detail, struct err *ret_failure, struct err *ret_cause)
{
	char who[32] = "another rank";
	if (peer >= 0)
		snprintf(who, sizeof(who), "rank %d", peer);
	if (rc == ERR_NETWORK && peer >= 0 && read_notice(q, peer, ret_cause)) {
		(void)err_set(
			ret_failure, ret_cause->code, NULL, "%s%s gave up: %s", where, who, ret_cause->message);
		return;
	}
	if (rc == ERR_TIMEOUT)
		(void)err_set(ret_failure, rc, NULL, "%sthe deadline of %lld ms passed waiting for %s",
			where, (long long)deadline_ms, who);
	else if (rc == ERR_NETWORK)
		(void)err_set(ret_failure, rc, NULL, "%s%s was lost (%s)", where, who, detail->message);
	else
		(void)err_set(ret_failure, rc, NULL, "%s%s %s", where, who, detail->message);
	*ret_cause = *ret_failure;
}

static void describe_call(struct comm_queue *q, int64_t ticket, int rc, int peer,
	const struct err *detail, struct err *ret_failure, struct err *ret_cause)
{
	const struct comm *c = &q->base;
	const struct call *call = call_of(q, ticket);
	char where[160];
	snprintf(where, sizeof(where), "%s #%lld of group %s (rank %d of %d): ", comm_op_name(call->op),
		(long long)ticket, c->name, c->rank, c->size);
	describe(q, where, call->deadline_ms, rc, peer, detail, ret_failure, ret_cause);
}

/* Under the lock. True when it is the first. */
static bool fail(struct comm_queue *q, const struct err *failure, const struct err *cause)
{
	if (q->failure.code < 0)
		return false;
	q->failure = *failure;
	q->cause = *cause;
	pthread_cond_broadcast(&q->changed);
	return true;
}

/* Under the lock: a call whose deadline has passed while others were before it. */
static bool fail_late(struct comm_queue *q, int64_t ticket)
{
	const struct comm *c = &q->base;
	const struct call *call = call_of(q, ticket);
	struct err late = { 0 };
	if (q->failure.code < 0 || now_us() < call->deadline_us + GRACE_US)
		return false;
	(void)err_set(&late, ERR_TIMEOUT, NULL,
		"%s #%lld of group %s (rank %d of %d): the deadline of %lld ms passed while call #%lld was "
		"not done",
		comm_op_name(call->op), (long long)ticket, c->name, c->rank, c->size,
		(long long)call->deadline_ms, (long long)q->finished + 1);
	return fail(q, &late, &late);
}

/* ------------------------------------------------------------------ the group's thread */

/* Under the lock, which it lets go meanwhile. False after a failure. */
static bool run_next(struct comm_queue *q)
{
	int64_t ticket = q->finished + 1;
	struct call call = *call_of(q, ticket);
	struct err detail = { 0 }, failure = { 0 }, cause = { 0 };
	int peer = -1;
	pthread_mutex_unlock(&q->lock);
	int rc = (call.compares ? comm_collect_compare : comm_collect_run)(
		q->collect, call.op, &call.args, call.deadline_us, &peer, &detail);
	if (rc < 0 && rc != ERR_CANCELLED)
		describe_call(q, ticket, rc, peer, &detail, &failure, &cause);
	pthread_mutex_lock(&q->lock);
	if (rc < 0) {
		if (failure.code < 0)
			(void)fail(q, &failure, &cause);
		return false;
	}
	q->finished = ticket;
	pthread_cond_broadcast(&q->changed);
	return true;
}

/* Under the lock, which it lets go meanwhile: looks for the other ranks, then waits a little. */
static void look(struct comm_queue *q)
{
	struct err detail = { 0 }, failure = { 0 }, cause = { 0 };
	int peer = -1;
	pthread_mutex_unlock(&q->lock);
	int rc = q->wire->ops->look(q->wire, &peer, &detail);
	if (rc < 0)
		describe(q, "", 0, rc, peer, &detail, &failure, &cause);
	pthread_mutex_lock(&q->lock);
	if (rc < 0) {
		q->failed_idle = fail(q, &failure, &cause) || q->failed_idle;
	} else if (q->issued == q->finished && !q->closing && q->failure.code == 0) {
		int64_t until_us = now_us() + WATCH_US;
		struct timespec until = { until_us / 1000000, until_us % 1000000 * 1000 };
		(void)pthread_cond_timedwait(&q->changed, &q->lock, &until);
	}
}

static void *run(void *data)
{
	struct comm_queue *q = data;
	pthread_mutex_lock(&q->lock);
	for (;;) {
		while (q->issued == q->finished && !q->closing && q->failure.code == 0) {
			if (q->watching)
				look(q);
			else
				pthread_cond_wait(&q->changed, &q->lock);
		}
		if (q->failure.code < 0 || q->issued == q->finished || !run_next(q))
			break;
	}
	bool failed = q->failure.code < 0;
	pthread_mutex_unlock(&q->lock);
	if (failed)
		leave_notice(q);
	else
		comm_collect_goodbye(q->collect, now_us() + COMM_GOODBYE_MS * INT64_C(1000));
	q->wire->ops->drop(q->wire);
	pthread_mutex_lock(&q->lock);
	q->stopped = true;
	pthread_cond_broadcast(&q->changed);
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

/* ------------------------------------------------------------------ callers */

static int enqueue(struct comm *c, enum comm_op op, bool compares, const struct comm_args *a,
	int64_t *ret_ticket, struct err *err)
{
	struct comm_queue *q = (struct comm_queue *)c;
	int rc = comm_args_check(c, op, a, err);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&q->lock);
	if (q->failure.code < 0) {
		rc = q->failure.code;
		if (err != NULL)
			*err = q->failure;
	} else if (q->issued - q->finished == COMM_PENDING_MAX) {
		rc = err_set(err, ERR_OVERLOADED, NULL, "%s of group %s: %d calls are not done",
			comm_op_name(op), c->name, COMM_PENDING_MAX);
	} else {
		struct call *call = call_of(q, ++q->issued);
		call->op = op;
		call->compares = compares;
		call->args = *a;
		call->deadline_ms = a->deadline_ms > 0 ? a->deadline_ms : c->deadline_ms;
		call->deadline_us = now_us() + call->deadline_ms * 1000;
		*ret_ticket = q->issued;
		pthread_cond_broadcast(&q->changed);
	}
	pthread_mutex_unlock(&q->lock);
	return rc;
}

static int enqueue_call(struct comm *c, enum comm_op op, const struct comm_args *a,
	int64_t *ret_ticket, struct err *err)
{
	return enqueue(c, op, false, a, ret_ticket, err);
}

COMM_ENQUEUE(queue, enqueue_call)

static int check_ticket(struct comm_queue *q, int64_t ticket, struct err *err)
{
	if (ticket < 1 || ticket > q->issued)
		return err_set(err, ERR_INVALID_VALUE, NULL, "group %s gave no ticket %lld", q->base.name,
			(long long)ticket);
	return 0;
}

static int queue_test(struct comm *c, int64_t ticket, bool *ret_done, struct err *err)
{
	struct comm_queue *q = (struct comm_queue *)c;
	bool late = false;
	pthread_mutex_lock(&q->lock);
	int rc = check_ticket(q, ticket, err);
	if (rc == 0) {
		*ret_done = q->finished >= ticket || q->stopped;
		late = !*ret_done && fail_late(q, ticket);
	}
	pthread_mutex_unlock(&q->lock);
	if (late)
		q->wire->ops->interrupt(q->wire);
	return rc;
}

static int queue_wait(struct comm *c, int64_t ticket, struct err *err)
{
	struct comm_queue *q = (struct comm_queue *)c;
	pthread_mutex_lock(&q->lock);
	int rc = check_ticket(q, ticket, err);
	while (rc == 0 && q->finished < ticket && !q->stopped) {
		int64_t until_us = call_of(q, ticket)->deadline_us + GRACE_US;
		if (q->failure.code < 0) {
			/* The thread is letting go of the buffers. */
			pthread_cond_wait(&q->changed, &q->lock);
		} else if (fail_late(q, ticket)) {
			q->wire->ops->interrupt(q->wire);
		} else {
			struct timespec until = { until_us / 1000000, until_us % 1000000 * 1000 };
			(void)pthread_cond_timedwait(&q->changed, &q->lock, &until);
		}
	}
	if (rc == 0 && q->finished < ticket) {
		rc = q->failure.code;
		if (err != NULL)
			*err = q->failure;
	}
	pthread_mutex_unlock(&q->lock);
	return rc;
}

void comm_queue_fail(struct comm *c, const struct err *failure)
{
	struct comm_queue *q = (struct comm_queue *)c;
	pthread_mutex_lock(&q->lock);
	bool first = fail(q, failure, failure);
	pthread_mutex_unlock(&q->lock);
	if (first)
		q->wire->ops->interrupt(q->wire);
}

static void queue_abort(struct comm *c, const char *reason)
{
	struct err failure = { 0 };
	(void)comm_aborted(c, reason, &failure);
	comm_queue_fail(c, &failure);
}

int comm_queue_compare(struct comm *c, enum comm_op op, const struct comm_args *a,
	int64_t *ret_ticket, struct err *err)
{
	return enqueue(c, op, true, a, ret_ticket, err);
}

void comm_queue_watch(struct comm *c, bool on)
{
	struct comm_queue *q = (struct comm_queue *)c;
	pthread_mutex_lock(&q->lock);
	if (q->watching != on)
		pthread_cond_broadcast(&q->changed);
	q->watching = on;
	pthread_mutex_unlock(&q->lock);
}

int comm_queue_failure(struct comm *c, bool *ret_of_a_call, struct err *ret)
{
	struct comm_queue *q = (struct comm_queue *)c;
	pthread_mutex_lock(&q->lock);
	int rc = q->failure.code;
	*ret_of_a_call = !q->failed_idle;
	*ret = q->failure;
	pthread_mutex_unlock(&q->lock);
	return rc;
}

static void queue_close(struct comm *c)
{
	struct comm_queue *q = (struct comm_queue *)c;
	pthread_mutex_lock(&q->lock);
	bool pending = q->issued > q->finished;
	q->closing = true;
	pthread_cond_broadcast(&q->changed);
	pthread_mutex_unlock(&q->lock);
	if (pending)
		queue_abort(c, "the group was closed before its calls were done");
	if (q->thread_runs)
		pthread_join(q->thread, NULL);
	q->wire->ops->destroy(q->wire);
	comm_collect_destroy(q->collect);
	pthread_cond_destroy(&q->changed);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

/* Signals are for the program's own threads. */
static int start_thread(struct comm_queue *q, struct err *err)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&q->thread, NULL, run, q);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return err_errno(err, ERR_NO_MEMORY, rc, "no thread for the group %s", q->base.name);
	q->thread_runs = true;
	return 0;
}

int comm_queue_open(
	const struct comm_options *o, struct comm_wire *wire, struct comm **ret, struct err *err)
{
	static const struct comm_ops ops = {
		COMM_ENQUEUE_OPS(queue),
		.test = queue_test,
		.wait = queue_wait,
		.abort = queue_abort,
		.close = queue_close,
		.order = queue_wait,
		.enroll = comm_enroll_nothing,
	};
	struct comm_queue *q = calloc(1, sizeof(*q));
	if (q == NULL) {
		wire->ops->destroy(wire);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	}
	comm_init(&q->base, &ops, o);
	q->wire = wire;
	q->store = o->store;
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	int rc = comm_collect_create(o, wire, &q->collect, err);
	if (rc == 0)
		rc = start_thread(q, err);
	if (rc < 0) {
		queue_close(&q->base);
		return rc;
	}
	*ret = &q->base;
	return 0;
}
