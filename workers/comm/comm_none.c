/* SPDX-License-Identifier: Apache-2.0
 * The group of one rank: a call is done when it returns. It has no transport; the lock is for
 * callers on several threads. */
#include "workers/comm/comm_private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct comm_none {
	struct comm base;
	pthread_mutex_t lock;
	int64_t done; /* tickets given */
	struct err failure;
};

static int run(struct comm *c, enum comm_op op, const struct comm_args *a, int64_t *ret_ticket,
	struct err *err)
{
	struct comm_none *n = (struct comm_none *)c;
	int rc = comm_args_check(c, op, a, err);
	if (rc < 0)
		return rc;
	int64_t count = op == COMM_ALL_TO_ALL && a->send_counts != NULL ? a->send_counts[0] : a->count;
	pthread_mutex_lock(&n->lock);
	if (n->failure.code < 0) {
		rc = n->failure.code;
		if (err != NULL)
			*err = n->failure;
	} else {
		if (op != COMM_BARRIER && op != COMM_BROADCAST && a->send != NULL && a->send != a->recv &&
			count > 0)
			memcpy(a->recv, a->send, (size_t)(count * comm_type_bytes(a->type)));
		*ret_ticket = ++n->done;
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

#define OP(function, op)                                                                 \
	static int function(                                                                 \
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) \
	{                                                                                    \
		return run(c, op, a, ret_ticket, err);                                           \
	}
OP(none_all_reduce, COMM_ALL_REDUCE)
OP(none_reduce_scatter, COMM_REDUCE_SCATTER)
OP(none_all_gather, COMM_ALL_GATHER)
OP(none_broadcast, COMM_BROADCAST)
OP(none_all_to_all, COMM_ALL_TO_ALL)
OP(none_send, COMM_SEND)
OP(none_recv, COMM_RECV)
OP(none_barrier, COMM_BARRIER)
#undef OP

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
		.all_reduce = none_all_reduce,
		.reduce_scatter = none_reduce_scatter,
		.all_gather = none_all_gather,
		.broadcast = none_broadcast,
		.all_to_all = none_all_to_all,
		.send = none_send,
		.recv = none_recv,
		.barrier = none_barrier,
		.test = none_test,
		.wait = none_wait,
		.abort = none_abort,
		.close = none_close,
	};
	struct comm_none *n = calloc(1, sizeof(*n));
	if (n == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	comm_init(&n->base, &ops, o);
	pthread_mutex_init(&n->lock, NULL);
	*ret = &n->base;
	return 0;
}
