/* SPDX-License-Identifier: Apache-2.0
 * The thread of a group in device memory, the only one that uses its NCCL, which takes one call at
 * a time: it hands over the calls one by one, looks after their deadlines and after lost ranks, and
 * says goodbye, or aborts. NCCL puts a call on the stream some time after it was given, and the
 * first ones of a kind only when all ranks have come: nobody else waits for that. */
#include "core/base/num.h"
#include "workers/comm/comm_nccl_private.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

enum {
	EAGER_US = 50,    /* looks without sleep: what NCCL needs for a call it knows */
	POLL_US_MIN = 10, /* between two looks at NCCL */
	POLL_US_MAX = 1000,
	PULSE_US = 5000, /* between two looks at calls under way */
};

/* ------------------------------------------------------------------ one call */

static ncclDataType_t type_of(enum comm_type type)
{
	switch (type) {
	case COMM_F32: return ncclFloat32;
	case COMM_BF16: return ncclBfloat16;
	case COMM_F16: return ncclFloat16;
	case COMM_BYTES:
	case COMM_TYPE_COUNT: break;
	}
	return ncclUint8;
}

static size_t count_of(const int64_t *counts, const struct comm_args *a, int r)
{
	return (size_t)(counts != NULL ? counts[r] : a->count);
}

/* The own part too is a message: NCCL copies it on the device. */
static ncclResult_t all_to_all(struct comm_nccl *n, const struct comm_args *a)
{
	const struct comm_nccl_library *l = n->library;
	size_t unit = (size_t)comm_type_bytes(a->type);
	const char *send = a->send;
	char *recv = a->recv;
	ncclResult_t rc = l->GroupStart();
	for (int r = 0; r < n->base.size && rc == ncclSuccess; r++) {
		size_t out = count_of(a->send_counts, a, r), in = count_of(a->recv_counts, a, r);
		if (out > 0)
			rc = l->Send(send, out, type_of(a->type), r, n->nccl, n->stream);
		if (in > 0 && (rc == ncclSuccess || rc == ncclInProgress))
			rc = l->Recv(recv, in, type_of(a->type), r, n->nccl, n->stream);
		if (rc == ncclInProgress)
			rc = ncclSuccess;
		send += out * unit;
		recv += in * unit;
	}
	ncclResult_t ended = l->GroupEnd();
	return rc == ncclSuccess ? ended : rc;
}

/* Hands the call to NCCL. What has no elements is nothing to it. */
static ncclResult_t hand(struct comm_nccl *n, enum comm_op op, const struct comm_args *a)
{
	const struct comm_nccl_library *l = n->library;
	ncclDataType_t type = type_of(a->type);
	ncclRedOp_t reduce = a->reduce == COMM_MAX ? ncclMax : ncclSum;
	size_t count = (size_t)a->count;
	bool counts = op == COMM_BARRIER || op == COMM_ALL_TO_ALL;
	if (count == 0 && !counts)
		return ncclSuccess;
	switch (op) {
	case COMM_ALL_REDUCE:
		return l->AllReduce(
			a->send != NULL ? a->send : a->recv, a->recv, count, type, reduce, n->nccl, n->stream);
	case COMM_REDUCE_SCATTER:
		return l->ReduceScatter(a->send, a->recv, count, type, reduce, n->nccl, n->stream);
	case COMM_ALL_GATHER: return l->AllGather(a->send, a->recv, count, type, n->nccl, n->stream);
	case COMM_BROADCAST:
		return l->Broadcast(a->recv, a->recv, count, type, a->root, n->nccl, n->stream);
	case COMM_ALL_TO_ALL: return all_to_all(n, a);
	case COMM_SEND: return l->Send(a->send, count, type, a->root, n->nccl, n->stream);
	case COMM_RECV: return l->Recv(a->recv, count, type, a->root, n->nccl, n->stream);
	case COMM_BARRIER:
	case COMM_OP_COUNT: break;
	}
	return l->AllReduce(n->token, n->token, 1, ncclFloat32, ncclMax, n->nccl, n->stream);
}

/* ------------------------------------------------------------------ failures, under the lock */

static void fail_nccl(struct comm_nccl *n, int64_t ticket, ncclResult_t rc)
{
	char where[COMM_NCCL_WHERE_MAX];
	struct err failure = { 0 };
	comm_nccl_where(n, ticket, where);
	(void)comm_nccl_failed(n->library, n->nccl, rc, where, &failure);
	comm_nccl_fail(n, &failure);
}

static void fail_cuda(struct comm_nccl *n, int64_t ticket, cudaError_t rc)
{
	char where[COMM_NCCL_WHERE_MAX];
	struct err failure = { 0 };
	comm_nccl_where(n, ticket, where);
	(void)comm_nccl_cuda_failed(rc, where, &failure);
	comm_nccl_fail(n, &failure);
}

/* What the host group found: at once where calls differ, after a while where a rank is gone. */
static void check_host(struct comm_nccl *n)
{
	bool of_a_call = false;
	struct err seen = { 0 }, failure = { 0 };
	char where[COMM_NCCL_WHERE_MAX];
	if (comm_queue_failure(n->host, &of_a_call, &seen) == 0 || n->failure.code < 0)
		return;
	int64_t now = comm_nccl_now_us();
	if (n->lost_us == 0)
		n->lost_us = now;
	if (of_a_call) {
		comm_nccl_fail(n, &seen);
		return;
	}
	bool waits = n->remote_us == 0 && now < n->lost_us + COMM_NCCL_LOST_US;
	if (waits || n->finished == n->issued)
		return;
	comm_nccl_where(n, n->finished + 1, where);
	(void)err_set(&failure, seen.code, NULL, "%s: %s", where, seen.message);
	comm_nccl_fail(n, &failure);
}

/* That a rank is lost the host group finds too, and can say which and why: it gets the time for it.
 */
static void check_nccl(struct comm_nccl *n)
{
	int64_t now = comm_nccl_now_us();
	ncclResult_t state = ncclSuccess;
	ncclResult_t rc = n->library->CommGetAsyncError(n->nccl, &state);
	if (rc == ncclSuccess)
		rc = state;
	if (rc == ncclSuccess || rc == ncclInProgress)
		return;
	if (rc == ncclRemoteError && n->remote_us == 0)
		n->remote_us = now;
	if (rc != ncclRemoteError || now >= n->remote_us + COMM_NCCL_LOST_US)
		fail_nccl(n, n->finished + 1, rc);
}

/* ------------------------------------------------------------------ steps, under the lock */

/* True when the call may go to NCCL: the ranks were seen to make the same. */
static bool is_compared(struct comm_nccl *n, int64_t ticket)
{
	struct comm_nccl_call *call = comm_nccl_call_of(n, ticket);
	struct err failure = { 0 };
	bool done = false;
	int rc = 0;
	if (!n->check)
		return true;
	if (call->compared == 0) {
		struct comm_args a = call->args;
		a.deadline_ms = num_max(1, (call->deadline_us - comm_nccl_now_us()) / 1000);
		rc = comm_queue_compare(n->host, call->op, &a, &call->compared, &failure);
	}
	if (rc == 0)
		rc = comm_test(n->host, call->compared, &done, &failure);
	if (rc == 0 && done)
		rc = comm_wait(n->host, call->compared, &failure);
	if (rc < 0)
		check_host(n); /* it says whether the failure is of this call */
	return rc == 0 && done;
}

/* The next call, if NCCL has none in hand. True when something was done. */
static bool hand_next(struct comm_nccl *n)
{
	int64_t ticket = n->handed + 1;
	if (n->handed > n->launched || n->handed == n->issued || !is_compared(n, ticket))
		return false;
	struct comm_nccl_call *call = comm_nccl_call_of(n, ticket);
	pthread_mutex_unlock(&n->lock); /* nobody touches a call that is not done */
	cudaError_t cuda = cudaStreamWaitEvent(n->stream, call->ready, 0);
	ncclResult_t rc = cuda == cudaSuccess ? hand(n, call->op, &call->args) : ncclSuccess;
	pthread_mutex_lock(&n->lock);
	n->handed = ticket;
	if (cuda != cudaSuccess)
		fail_cuda(n, ticket, cuda);
	else if (rc != ncclSuccess && rc != ncclInProgress)
		fail_nccl(n, ticket, rc);
	return true;
}

/* Puts the event behind a call that NCCL has put on the stream. */
static bool launch_handed(struct comm_nccl *n)
{
	ncclResult_t state = ncclSuccess;
	if (n->handed == n->launched || n->failure.code < 0)
		return false;
	ncclResult_t rc = n->library->CommGetAsyncError(n->nccl, &state);
	if (rc != ncclSuccess || state != ncclSuccess)
		return false; /* check_nccl knows */
	cudaError_t cuda = cudaEventRecord(comm_nccl_call_of(n, n->handed)->done, n->stream);
	if (cuda != cudaSuccess) {
		fail_cuda(n, n->handed, cuda);
		return false;
	}
	n->launched = n->handed;
	pthread_cond_broadcast(&n->changed);
	return true;
}

static bool answer(struct comm_nccl *n)
{
	struct comm_nccl_request *r = &n->request;
	void *handle = NULL;
	if (!r->asked || r->answered || n->handed > n->launched)
		return false;
	if (n->registered_count == COMM_NCCL_REGISTERED_MAX) {
		r->rc = err_set(&r->err, ERR_TOO_LARGE, NULL, "group %s has %d registered buffers",
			n->base.name, COMM_NCCL_REGISTERED_MAX);
	} else {
		ncclResult_t rc = n->library->CommRegister(n->nccl, r->data, (size_t)r->bytes, &handle);
		if (rc != ncclSuccess && rc != ncclInProgress)
			r->rc =
				comm_nccl_failed(n->library, n->nccl, rc, "a buffer is not registered", &r->err);
		else if (handle != NULL)
			n->registered[n->registered_count++] = handle;
	}
	r->answered = true;
	pthread_cond_broadcast(&n->changed);
	return true;
}

/* ------------------------------------------------------------------ the thread */

static void wait_us(struct comm_nccl *n, int64_t us)
{
	int64_t until_us = comm_nccl_now_us() + us;
	struct timespec until = { until_us / 1000000, until_us % 1000000 * 1000 };
	(void)pthread_cond_timedwait(&n->changed, &n->lock, &until);
}

/* Nothing could be done: waits for NCCL or the host group a little, for the device longer, and for
 * callers as long as it takes. */
static void rest(struct comm_nccl *n, int64_t idle_us)
{
	bool slow = n->finished < n->issued &&
		comm_nccl_now_us() >=
			comm_nccl_call_of(n, n->finished + 1)->begin_us + COMM_NCCL_WATCH_AFTER_US;
	comm_queue_watch(n->host, slow || n->remote_us > 0);
	if (n->finished == n->issued) {
		pthread_cond_wait(&n->changed, &n->lock);
	} else if (n->launched == n->issued) {
		wait_us(n, PULSE_US);
	} else if (idle_us < EAGER_US) {
		pthread_mutex_unlock(&n->lock);
		sched_yield();
		pthread_mutex_lock(&n->lock);
	} else {
		wait_us(n, num_min(num_max(idle_us / 4, POLL_US_MIN), POLL_US_MAX));
	}
}

static void run(struct comm_nccl *n)
{
	int64_t worked_us = comm_nccl_now_us();
	while (n->failure.code == 0 && !(n->closing && n->finished == n->issued)) {
		comm_nccl_advance(n);
		bool worked = launch_handed(n);
		worked = answer(n) || worked;
		worked = hand_next(n) || worked;
		if (n->failure.code == 0 && n->finished < n->issued) {
			comm_nccl_advance(n);
			check_nccl(n);
			check_host(n);
			comm_nccl_fail_late(n);
		}
		int64_t now = comm_nccl_now_us();
		if (worked)
			worked_us = now;
		else if (n->failure.code == 0 && !(n->closing && n->finished == n->issued))
			rest(n, now - worked_us);
	}
}

/* All calls are done: NCCL's own end, in which ranks may wait for each other, for a while. */
static bool part(struct comm_nccl *n)
{
	const struct comm_nccl_library *l = n->library;
	int64_t until_us = comm_nccl_now_us() + COMM_GOODBYE_MS * INT64_C(1000);
	ncclResult_t state = ncclInProgress;
	for (int i = 0; i < n->registered_count; i++)
		(void)l->CommDeregister(n->nccl, n->registered[i]);
	ncclResult_t rc = l->CommFinalize(n->nccl);
	if (rc != ncclSuccess && rc != ncclInProgress)
		return false;
	while (state == ncclInProgress && comm_nccl_now_us() < until_us) {
		struct timespec pause = { 0, POLL_US_MAX * 1000 };
		if (l->CommGetAsyncError(n->nccl, &state) != ncclSuccess)
			return false;
		if (state == ncclInProgress)
			(void)nanosleep(&pause, NULL);
	}
	if (state != ncclSuccess)
		return false;
	rc = l->CommDestroy(n->nccl);
	return rc == ncclSuccess || rc == ncclInProgress;
}

void *comm_nccl_thread(void *group)
{
	struct comm_nccl *n = group;
	(void)cudaSetDevice(n->device);
	pthread_mutex_lock(&n->lock);
	run(n);
	struct err failure = n->failure;
	pthread_mutex_unlock(&n->lock);
	if (failure.code < 0)
		comm_queue_fail(n->host, &failure);
	/* No other thread uses NCCL's group: it may be aborted whatever state it is in. */
	if (failure.code < 0 || !part(n))
		(void)n->library->CommAbort(n->nccl);
	pthread_mutex_lock(&n->lock);
	n->stopped = true;
	bool orphaned = n->orphaned;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
	if (orphaned)
		comm_nccl_free(n);
	return NULL;
}
