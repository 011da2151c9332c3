/* SPDX-License-Identifier: Apache-2.0
 * A group in the memory of CUDA devices, as its callers see it: calls are kept, and waited for, on
 * the callers' threads; the group's own (comm_nccl_thread.c) is the only one that uses NCCL. A host
 * group of the same ranks stands beside it: NCCL sees no lost rank within a machine, and compares
 * no calls. Called through comm.h. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "workers/comm/comm_nccl_private.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
	WAIT_US_MIN = 20, /* between two looks at the device */
	WAIT_US_MAX = 500,
};

int64_t comm_nccl_now_us(void)
{
	return clock_mono_us(clock_system());
}

/* ------------------------------------------------------------------ under the lock */

void comm_nccl_where(struct comm_nccl *n, int64_t ticket, char ret[static COMM_NCCL_WHERE_MAX])
{
	snprintf(ret, COMM_NCCL_WHERE_MAX, "%s #%lld of group %s (rank %d of %d)",
		comm_op_name(comm_nccl_call_of(n, ticket)->op), (long long)ticket, n->base.name,
		n->base.rank, n->base.size);
}

void comm_nccl_fail(struct comm_nccl *n, const struct err *failure)
{
	if (n->failure.code < 0)
		return;
	n->failure = *failure;
	n->failed_us = comm_nccl_now_us();
	pthread_cond_broadcast(&n->changed);
}

void comm_nccl_advance(struct comm_nccl *n)
{
	bool moved = false;
	while (n->failure.code == 0 && n->finished < n->launched) {
		cudaError_t rc = cudaEventQuery(comm_nccl_call_of(n, n->finished + 1)->done);
		if (rc == cudaErrorNotReady)
			break;
		if (rc != cudaSuccess) {
			char where[COMM_NCCL_WHERE_MAX];
			struct err failure = { 0 };
			comm_nccl_where(n, n->finished + 1, where);
			(void)comm_nccl_cuda_failed(rc, where, &failure);
			comm_nccl_fail(n, &failure);
			return;
		}
		n->finished++;
		moved = true;
	}
	if (moved)
		pthread_cond_broadcast(&n->changed);
}

void comm_nccl_fail_late(struct comm_nccl *n)
{
	int64_t now = comm_nccl_now_us();
	for (int64_t t = n->finished + 1; t <= n->issued && n->failure.code == 0; t++) {
		const struct comm_nccl_call *call = comm_nccl_call_of(n, t);
		struct err late = { 0 };
		char where[COMM_NCCL_WHERE_MAX];
		if (now < call->deadline_us + COMM_NCCL_GRACE_US)
			continue;
		comm_nccl_where(n, t, where);
		if (t == n->finished + 1)
			(void)err_set(&late, ERR_TIMEOUT, NULL,
				"%s: the deadline of %lld ms passed waiting for the device or another rank", where,
				(long long)call->deadline_ms);
		else
			(void)err_set(&late, ERR_TIMEOUT, NULL,
				"%s: the deadline of %lld ms passed while call #%lld was not done", where,
				(long long)call->deadline_ms, (long long)n->finished + 1);
		comm_nccl_fail(n, &late);
	}
}

static void wait_until(struct comm_nccl *n, int64_t until_us)
{
	struct timespec until = { until_us / 1000000, until_us % 1000000 * 1000 };
	(void)pthread_cond_timedwait(&n->changed, &n->lock, &until);
}

static int first_failure(const struct comm_nccl *n, struct err *err)
{
	if (err != NULL)
		*err = n->failure;
	return n->failure.code;
}

/* ------------------------------------------------------------------ calls */

static int enqueue(struct comm *c, enum comm_op op, const struct comm_args *a, int64_t *ret_ticket,
	struct err *err)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	int rc = comm_args_check(c, op, a, err);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&n->lock);
	if (n->issued - n->finished == COMM_PENDING_MAX)
		comm_nccl_advance(n);
	if (n->failure.code < 0) {
		rc = first_failure(n, err);
	} else if (n->issued - n->finished == COMM_PENDING_MAX) {
		rc = err_set(err, ERR_OVERLOADED, NULL, "%s of group %s: %d calls are not done",
			comm_op_name(op), c->name, COMM_PENDING_MAX);
	} else {
		struct comm_nccl_call *call = comm_nccl_call_of(n, n->issued + 1);
		cudaError_t recorded = cudaEventRecord(call->ready, n->compute);
		if (recorded != cudaSuccess) {
			rc = comm_nccl_cuda_failed(recorded, comm_op_name(op), err);
		} else {
			call->op = op;
			call->args = *a;
			call->compared = 0;
			call->begin_us = comm_nccl_now_us();
			call->deadline_ms = a->deadline_ms > 0 ? a->deadline_ms : c->deadline_ms;
			call->deadline_us = call->begin_us + call->deadline_ms * 1000;
			*ret_ticket = ++n->issued;
			pthread_cond_broadcast(&n->changed);
		}
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

COMM_ENQUEUE(nccl, enqueue)

static int check_ticket(const struct comm_nccl *n, int64_t ticket, struct err *err)
{
	if (ticket < 1 || ticket > n->issued)
		return err_set(err, ERR_INVALID_VALUE, NULL, "group %s gave no ticket %lld", n->base.name,
			(long long)ticket);
	return 0;
}

/* A failed group lets go of the buffers first; one whose abort hangs does not say when. */
static bool lets_go(const struct comm_nccl *n)
{
	return n->stopped || comm_nccl_now_us() >= n->failed_us + COMM_NCCL_ABORT_MS * INT64_C(1000);
}

static int nccl_test(struct comm *c, int64_t ticket, bool *ret_done, struct err *err)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	pthread_mutex_lock(&n->lock);
	int rc = check_ticket(n, ticket, err);
	if (rc == 0) {
		comm_nccl_advance(n);
		comm_nccl_fail_late(n);
		*ret_done = n->finished >= ticket || (n->failure.code < 0 && lets_go(n));
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

static int nccl_wait(struct comm *c, int64_t ticket, struct err *err)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	pthread_mutex_lock(&n->lock);
	int rc = check_ticket(n, ticket, err);
	for (int64_t us = WAIT_US_MIN; rc == 0; us = num_min(us * 2, WAIT_US_MAX)) {
		comm_nccl_advance(n);
		if (n->finished >= ticket)
			break;
		if (n->failure.code < 0 && lets_go(n)) {
			rc = first_failure(n, err);
			break;
		}
		comm_nccl_fail_late(n);
		wait_until(n, comm_nccl_now_us() + us);
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

static int nccl_order(struct comm *c, int64_t ticket, struct err *err)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	pthread_mutex_lock(&n->lock);
	int rc = check_ticket(n, ticket, err);
	while (rc == 0 && n->launched < ticket && n->failure.code == 0) {
		comm_nccl_fail_late(n);
		wait_until(n, comm_nccl_now_us() + COMM_NCCL_GRACE_US);
	}
	if (rc == 0 && n->finished < ticket) {
		/* The event of a call that is done may be another call's by now. */
		cudaError_t ordered = n->failure.code < 0
			? cudaSuccess
			: cudaStreamWaitEvent(n->compute, comm_nccl_call_of(n, ticket)->done, 0);
		if (n->failure.code < 0)
			rc = first_failure(n, err);
		else if (ordered != cudaSuccess)
			rc = comm_nccl_cuda_failed(ordered, "the wait for a call", err);
	}
	pthread_mutex_unlock(&n->lock);
	return rc;
}

static int nccl_enroll(struct comm *c, void *data, int64_t bytes, struct err *err)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	struct comm_nccl_request *r = &n->request;
	pthread_mutex_lock(&n->lock);
	while (r->asked && n->failure.code == 0 && !n->stopped)
		pthread_cond_wait(&n->changed, &n->lock); /* another caller's */
	*r = (struct comm_nccl_request){ .data = data, .bytes = bytes, .asked = true };
	pthread_cond_broadcast(&n->changed);
	while (!r->answered && n->failure.code == 0 && !n->stopped)
		pthread_cond_wait(&n->changed, &n->lock);
	int rc = r->answered ? r->rc : first_failure(n, err);
	if (r->answered && rc < 0 && err != NULL)
		*err = r->err;
	r->asked = false;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
	return rc;
}

/* ------------------------------------------------------------------ the end */

static void nccl_abort(struct comm *c, const char *reason)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	struct err failure = { 0 };
	(void)comm_aborted(c, reason, &failure);
	pthread_mutex_lock(&n->lock);
	comm_nccl_fail(n, &failure);
	pthread_mutex_unlock(&n->lock);
}

void comm_nccl_free(struct comm_nccl *n)
{
	for (int i = 0; i < COMM_PENDING_MAX; i++) {
		if (n->calls[i].ready != NULL)
			(void)cudaEventDestroy(n->calls[i].ready);
		if (n->calls[i].done != NULL)
			(void)cudaEventDestroy(n->calls[i].done);
	}
	if (n->stream != NULL)
		(void)cudaStreamDestroy(n->stream);
	if (n->token != NULL)
		(void)cudaFree(n->token);
	pthread_cond_destroy(&n->changed);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

/* True when the thread has ended; a hanging library or device keeps it, and the group with it. */
static bool end_thread(struct comm_nccl *n)
{
	pthread_mutex_lock(&n->lock);
	n->closing = true;
	comm_nccl_advance(n);
	if (n->issued > n->finished) {
		struct err failure = { 0 };
		(void)comm_aborted(&n->base, "the group was closed before its calls were done", &failure);
		comm_nccl_fail(n, &failure);
	}
	pthread_cond_broadcast(&n->changed);
	int64_t until_us = comm_nccl_now_us() + (COMM_GOODBYE_MS + COMM_NCCL_ABORT_MS) * INT64_C(1000);
	while (!n->stopped && comm_nccl_now_us() < until_us)
		wait_until(n, until_us);
	bool stopped = n->stopped;
	n->orphaned = !stopped;
	pthread_mutex_unlock(&n->lock);
	if (stopped)
		pthread_join(n->thread, NULL);
	else
		pthread_detach(n->thread);
	return stopped;
}

static void nccl_close(struct comm *c)
{
	struct comm_nccl *n = (struct comm_nccl *)c;
	struct comm *host = n->host;
	bool ended = !n->thread_runs || end_thread(n);
	comm_close(host);
	if (ended)
		comm_nccl_free(n);
}

/* ------------------------------------------------------------------ opening */

static int make_events(struct comm_nccl *n)
{
	cudaError_t rc = cudaSuccess;
	for (int i = 0; i < COMM_PENDING_MAX && rc == cudaSuccess; i++) {
		rc = cudaEventCreateWithFlags(&n->calls[i].ready, cudaEventDisableTiming);
		if (rc == cudaSuccess)
			rc = cudaEventCreateWithFlags(&n->calls[i].done, cudaEventDisableTiming);
	}
	return rc;
}

/* The group's stream comes before others: what waits for other ranks is begun first. */
static int open_device(struct comm_nccl *n, struct err *err)
{
	char doing[COMM_NCCL_WHERE_MAX];
	int least = 0, greatest = 0;
	cudaError_t rc = cudaSetDevice(n->device);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (rc == cudaSuccess)
		rc = cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest);
	if (rc == cudaSuccess)
		rc = cudaMalloc((void **)&n->token, sizeof(*n->token));
	if (rc == cudaSuccess)
		rc = cudaMemsetAsync(n->token, 0, sizeof(*n->token), n->stream);
	if (rc == cudaSuccess)
		rc = make_events(n);
	if (rc == cudaSuccess)
		return 0;
	snprintf(doing, sizeof(doing), "group %s (rank %d of %d) on device %d", n->base.name,
		n->base.rank, n->base.size, n->device);
	return comm_nccl_cuda_failed(rc, doing, err);
}

/* Signals are for the program's own threads. */
static int start_thread(struct comm_nccl *n, struct err *err)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&n->thread, NULL, comm_nccl_thread, n);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return err_errno(err, ERR_NO_MEMORY, rc, "no thread for the group %s", n->base.name);
	n->thread_runs = true;
	return 0;
}

static struct comm_nccl *create(const struct comm_options *o)
{
	static const struct comm_ops ops = {
		COMM_ENQUEUE_OPS(nccl),
		.test = nccl_test,
		.wait = nccl_wait,
		.abort = nccl_abort,
		.close = nccl_close,
		.order = nccl_order,
		.enroll = nccl_enroll,
	};
	struct comm_nccl *n = calloc(1, sizeof(*n));
	if (n == NULL)
		return NULL;
	comm_init(&n->base, &ops, o);
	n->check = o->check;
	n->device = o->device->index;
	n->compute = o->device->stream;
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return n;
}

int comm_nccl_open(const struct comm_options *o, struct comm **ret, struct err *err)
{
	struct comm_options own = *o;
	struct err failure = { 0 };
	int before = 0;
	int64_t open_ms = o->open_ms > 0 ? o->open_ms : COMM_OPEN_MS;
	int64_t deadline_us = comm_nccl_now_us() + open_ms * 1000;
	const struct comm_nccl_library *library = NULL;
	int rc = comm_nccl_library(&library, err);
	if (rc < 0)
		return rc;
	struct comm_nccl *n = create(o);
	if (n == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the group %s", o->name);
	n->library = library;
	own.name = n->base.name;
	own.device = NULL;
	(void)cudaGetDevice(&before);
	rc = comm_host_open(&own, &n->host, &failure);
	if (rc == 0)
		rc = open_device(n, &failure);
	if (rc == 0)
		rc = comm_nccl_meet(&own, library, n->host, deadline_us, &n->nccl, &failure);
	if (rc == 0)
		rc = start_thread(n, &failure);
	(void)cudaSetDevice(before);
	if (rc < 0) {
		if (n->nccl != NULL)
			(void)library->CommAbort(n->nccl);
		if (n->host != NULL)
			comm_queue_fail(n->host, &failure); /* the others need not wait for their deadline */
		nccl_close(&n->base);
		if (err != NULL)
			*err = failure;
		return rc;
	}
	*ret = &n->base;
	return 0;
}

int comm_nccl_copy(
	const struct comm_device *d, void *to, const void *from, int64_t bytes, struct err *err)
{
	cudaError_t rc = cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, d->stream);
	return rc == cudaSuccess ? 0 : comm_nccl_cuda_failed(rc, "a copy on the device", err);
}

int comm_nccl_drain(const struct comm_device *d, struct err *err)
{
	cudaError_t rc = cudaStreamSynchronize(d->stream);
	return rc == cudaSuccess ? 0 : comm_nccl_cuda_failed(rc, "work on the device", err);
}
