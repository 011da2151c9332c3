/* SPDX-License-Identifier: Apache-2.0
 * The group of one rank: a call is done when it returns, or in the order of its device's stream. It
 * has no transport; the lock is for callers on several threads. */
#include "workers/comm/comm_private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct comm_none {
	struct comm base;
	bool on_device;
	struct comm_device device;
	pthread_mutex_t lock;
	int64_t done; /* tickets given */
	struct err failure;
};

static int copy(struct comm_none *n, void *to, const void *from, int64_t bytes, struct err *err)
{
	if (n->on_device)
		return comm_nccl_copy(&n->device, to, from, bytes, err);
	memcpy(to, from, (size_t)bytes);
	return 0;
}

static int run(struct comm *c, enum comm_op op, const struct comm_args *a, int64_t *ret_ticket,
	struct err *err)
{
	struct comm_none *n = (struct comm_none *)c;
	int rc = comm_args_check(c, op, a, err);
	if (rc < 0)
		return rc;
	int64_t count = op == COMM_ALL_TO_ALL && a->send_counts != NULL ? a->send_counts[0] : a->count;
	bool moves = op != COMM_BARRIER && op != COMM_BROADCAST && a->send != NULL &&
		a->send != a->recv && count > 0;
	pthread_mutex_lock(&n->lock);
	if (n->failure.code < 0) {
		rc = n->failure.code;
		if (err != NULL)
			*err = n->failure;
	} else if (moves) {
		rc = copy(n, a->recv, a->send, count * comm_type_bytes(a->type), err);
	}
	if (rc == 0)
		*ret_ticket = ++n->done;
	pthread_mutex_unlock(&n->lock);
	return rc;
}

COMM_ENQUEUE(none, run)

/* A copy on the device that is under way counts as done: no rank is waited for. */
static int none_test(struct comm *c, int64_t ticket, bool *ret_done, struct err *err)
{
	struct comm_none *n = (struct comm_none *)c;
	pthread_mutex_lock(&n->lock);
	bool given = ticket > 0 && ticket <= n->done;
	pthread_mutex_unlock(&n->lock);
	if (!given)
		return err_set(err, ERR_INVALID_VALUE, NULL, "group %s gave no ticket %lld", c->name,
			(long long)ticket);
	*ret_done = true;
	return 0;
}

static int none_wait(struct comm *c, int64_t ticket, struct err *err)
{
	const struct comm_none *n = (const struct comm_none *)c;
	bool done = false;
	int rc = none_test(c, ticket, &done, err);
	return rc < 0 || !n->on_device ? rc : comm_nccl_drain(&n->device, err);
}

/* The stream has the copy in its order already. */
static int none_order(struct comm *c, int64_t ticket, struct err *err)
{
	bool done = false;
	return none_test(c, ticket, &done, err);
}

static void none_abort(struct comm *c, const char *reason)
{
	struct comm_none *n = (struct comm_none *)c;
	pthread_mutex_lock(&n->lock);
	if (n->failure.code == 0)
		(void)comm_aborted(c, reason, &n->failure);
	pthread_mutex_unlock(&n->lock);
}

static void none_close(struct comm *c)
{
	struct comm_none *n = (struct comm_none *)c;
	pthread_mutex_destroy(&n->lock);
	free(n);
}

int comm_none_open(const struct comm_options *o, struct comm **ret, struct err *err)
{
	static const struct comm_ops ops = {
		COMM_ENQUEUE_OPS(none),
		.test = none_test,
		.wait = none_wait,
		.abort = none_abort,
		.close = none_close,
		.order = none_order,
		.enroll = comm_enroll_nothing,
	};
	struct comm_none *n = calloc(1, sizeof(*n));
	if (n == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	comm_init(&n->base, &ops, o);
	n->on_device = o->device != NULL;
	if (n->on_device)
		n->device = *o->device;
	pthread_mutex_init(&n->lock, NULL);
	*ret = &n->base;
	return 0;
}
