/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for NCCL, as a shared library: ranks are processes, and our own groups in host memory
 * move the data, on the threads of emulated streams. As with NCCL a call comes onto its stream some
 * time after it was given (the first of a kind when all ranks have come), no other is taken before,
 * and where a rank is lost it goes on for ever, or with TRAINYARD_EMULATION_NCCL=remote says so, as
 * between machines. Loaded by comm_nccl_library.c where TRAINYARD_NCCL_LIBRARY names it. */
#include "core/base/file.h"
#include "core/base/num.h"
#include "workers/comm/comm.h"
#include "workers/comm/comm_store.h"

#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPS_MAX = 2 * COMM_RANKS_MAX, /* of one group call */
	YIELDS = 3,                   /* of a launch, so that callers come before it */
};

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV, KIND_COUNT };

struct op {
	enum kind kind;
	ncclComm_t comm;
	cudaStream_t stream;
	struct comm_args args;
};

struct work {
	ncclComm_t comm;
	cudaStream_t stream;
	int count;
	struct op ops[];
};

struct ncclComm {
	int rank, size;
	char dir[NCCL_UNIQUE_ID_BYTES];
	struct comm_store *store;
	struct comm *data, *connect;
	pthread_t thread; /* that opens, launches or finalizes */
	bool thread_runs;
	bool known[KIND_COUNT]; /* kinds that were called */
	_Atomic ncclResult_t state;
	_Atomic bool aborted;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int on_streams; /* work that is not done */
};

static _Thread_local int group_depth;
static _Thread_local struct op group_ops[OPS_MAX];
static _Thread_local int group_count;
static _Thread_local ncclResult_t group_error;

/* ------------------------------------------------------------------ threads */

static void *run_thread(struct ncclComm *c, void *(*function)(void *), void *data)
{
	sigset_t all, before;
	if (c->thread_runs)
		pthread_join(c->thread, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	c->thread_runs = pthread_create(&c->thread, NULL, function, data) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return c->thread_runs ? c : NULL;
}

static void lost(struct ncclComm *c)
{
	const char *mode = getenv("TRAINYARD_EMULATION_NCCL");
	if (mode != NULL && strcmp(mode, "remote") == 0 && !c->aborted)
		c->state = ncclRemoteError;
}

/* ------------------------------------------------------------------ opening and closing */

static int open_group(struct ncclComm *c, const char *name, struct comm **ret)
{
	struct comm_options o = { .name = name,
		.rank = c->rank,
		.size = c->size,
		.store = c->store,
		.open_ms = COMM_DEADLINE_MS_MAX,
		.deadline_ms = COMM_DEADLINE_MS_MAX };
	return comm_open(&o, ret, NULL);
}

static int barrier(struct comm *c)
{
	int64_t ticket = 0;
	int rc = c->ops->barrier(c, &(struct comm_args){ 0 }, &ticket, NULL);
	return rc < 0 ? rc : comm_wait(c, ticket, NULL);
}

static void *open_thread(void *data)
{
	struct ncclComm *c = data;
	int rc = comm_store_folder_open(c->dir, &c->store, NULL);
	if (rc == 0)
		rc = open_group(c, "data", &c->data);
	if (rc == 0)
		rc = open_group(c, "connect", &c->connect);
	if (rc == 0)
		rc = barrier(c->connect);
	if (c->rank == 0 && file_remove_tree(c->dir, NULL) < 0)
		rc = ERR_IO;
	c->state = rc == 0 ? ncclSuccess : ncclSystemError;
	return NULL;
}

static void destroy(struct ncclComm *c)
{
	comm_close(c->data);
	comm_close(c->connect);
	comm_store_destroy(c->store);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

ncclResult_t ncclGetVersion(int *version)
{
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	memset(id, 0, sizeof(*id));
	snprintf(id->internal, sizeof(id->internal), "/tmp/trainyard-nccl-XXXXXX");
	return mkdtemp(id->internal) != NULL ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct ncclComm *c = calloc(1, sizeof(*c));
	if (c == NULL || config->blocking != 0)
		return ncclInvalidArgument;
	c->rank = rank;
	c->size = nranks;
	snprintf(c->dir, sizeof(c->dir), "%s", id.internal);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	c->state = ncclInProgress;
	*comm = c;
	return run_thread(c, open_thread, c) != NULL ? ncclInProgress : ncclSystemError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	*state = comm->state;
	return ncclSuccess;
}

static void *finalize_thread(void *data)
{
	struct ncclComm *c = data;
	c->state = barrier(c->connect) == 0 ? ncclSuccess : ncclRemoteError;
	return NULL;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	if (comm->state != ncclSuccess)
		return ncclInvalidUsage;
	comm->state = ncclInProgress;
	return run_thread(comm, finalize_thread, comm) != NULL ? ncclInProgress : ncclSystemError;
}

static void join(struct ncclComm *c)
{
	if (c->thread_runs)
		pthread_join(c->thread, NULL);
	c->thread_runs = false;
	pthread_mutex_lock(&c->lock);
	while (c->on_streams > 0)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (comm->state == ncclInProgress)
		return ncclInvalidUsage;
	join(comm);
	destroy(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	comm->aborted = true;
	if (comm->data == NULL || comm->connect == NULL) {
		pthread_detach(comm->thread); /* it may wait for ranks for ever */
		return ncclSuccess;
	}
	comm_abort(comm->data, "NCCL was aborted");
	comm_abort(comm->connect, "NCCL was aborted");
	pthread_mutex_lock(&comm->lock);
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->lock);
	join(comm);
	destroy(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	if (comm->state != ncclSuccess || buff == NULL || size == 0)
		return ncclInvalidUsage;
	*handle = malloc(1);
	return *handle != NULL ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	(void)comm;
	free(handle);
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t rc)
{
	return rc == ncclRemoteError ? "remote process exited or there was a network error"
		: rc == ncclInvalidUsage ? "invalid usage"
								 : "unhandled system error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return "this is the emulation of NCCL";
}

/* ------------------------------------------------------------------ on a stream */

static int run_op(struct ncclComm *c, const struct op *op)
{
	typedef int (*call)(struct comm *, const struct comm_args *, int64_t *, struct err *);
	const struct comm_ops *ops = c->data->ops;
	const call calls[KIND_COUNT] = { ops->all_reduce, ops->reduce_scatter, ops->all_gather,
		ops->broadcast, ops->send, ops->recv };
	int64_t ticket = 0;
	int rc = calls[op->kind](c->data, &op->args, &ticket, NULL);
	return rc < 0 ? rc : comm_wait(c->data, ticket, NULL);
}

static const struct op *find(const struct work *w, enum kind kind, int peer)
{
	for (int i = 0; i < w->count; i++)
		if (w->ops[i].kind == kind && w->ops[i].args.root == peer)
			return &w->ops[i];
	return NULL;
}

/* Messages of one group: pair by pair, in an order that all ranks have. */
static int run_pair(struct work *w, int peer)
{
	struct ncclComm *c = w->comm;
	const struct op *out = find(w, SEND, peer), *in = find(w, RECV, peer);
	if (peer == c->rank) {
		if (out != NULL && in != NULL)
			memcpy(in->args.recv, out->args.send,
				(size_t)(out->args.count * comm_type_bytes(out->args.type)));
		return 0;
	}
	const struct op *first = c->rank < peer ? out : in, *second = c->rank < peer ? in : out;
	int rc = first != NULL ? run_op(c, first) : 0;
	return rc < 0 || second == NULL ? rc : run_op(c, second);
}

static void run_work(void *data)
{
	struct work *w = data;
	struct ncclComm *c = w->comm;
	int rc = 0;
	if (w->ops[0].kind < SEND)
		rc = run_op(c, &w->ops[0]);
	else
		for (int peer = 0; peer < c->size && rc == 0; peer++)
			rc = run_pair(w, peer);
	if (rc < 0)
		lost(c);
	pthread_mutex_lock(&c->lock);
	while (rc < 0 && !c->aborted) /* as a kernel that waits for what never comes */
		pthread_cond_wait(&c->changed, &c->lock);
	c->on_streams--;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	free(w);
}

/* ------------------------------------------------------------------ calls */

/* The first of a kind connects the ranks: it waits until all have come to it. */
static void *launch_thread(void *data)
{
	struct work *w = data;
	struct ncclComm *c = w->comm;
	enum kind kind = w->ops[0].kind;
	int rc = 0;
	for (int i = 0; i < YIELDS; i++)
		sched_yield();
	if (kind < SEND && !c->known[kind])
		rc = barrier(c->connect);
	c->known[kind] = true;
	if (rc < 0) {
		free(w);
		lost(c); /* otherwise it is in progress for ever */
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	c->on_streams++;
	pthread_mutex_unlock(&c->lock);
	bool launched = cudaLaunchHostFunc(w->stream, run_work, w) == cudaSuccess;
	if (c->state == ncclInProgress)
		c->state = launched ? ncclSuccess : ncclUnhandledCudaError;
	return NULL;
}

static ncclResult_t submit(const struct op *ops, int count)
{
	struct ncclComm *c = ops[0].comm;
	struct work *w = calloc(1, sizeof(*w) + (size_t)count * sizeof(*ops));
	if (c->state != ncclSuccess || w == NULL || (count > 1 && ops[0].kind < SEND)) {
		free(w);
		return ncclInvalidUsage;
	}
	w->comm = c;
	w->stream = ops[0].stream;
	w->count = count;
	memcpy(w->ops, ops, (size_t)count * sizeof(*ops));
	c->state = ncclInProgress;
	return run_thread(c, launch_thread, w) != NULL ? ncclInProgress : ncclSystemError;
}

/* nccl.h leaves their arguments open. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
	if (group_depth++ == 0) {
		group_count = 0;
		group_error = ncclSuccess;
	}
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	if (--group_depth > 0 || group_error != ncclSuccess || group_count == 0)
		return group_error;
	return submit(group_ops, group_count);
}

static ncclResult_t add(struct op op)
{
	if (group_depth == 0)
		return submit(&op, 1);
	if (group_count == OPS_MAX)
		return group_error = ncclInvalidUsage;
	group_ops[group_count++] = op;
	return ncclSuccess;
}

static enum comm_type type_of(ncclDataType_t type)
{
	return type == ncclFloat32 ? COMM_F32
		: type == ncclBfloat16 ? COMM_BF16
		: type == ncclFloat16  ? COMM_F16
							   : COMM_BYTES;
}

static struct op op_of(enum kind kind, const void *send, void *recv, size_t count,
	ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
	return (struct op){ .kind = kind,
		.comm = comm,
		.stream = stream,
		.args = { .send = send, .recv = recv, .count = (int64_t)count, .type = type_of(type) } };
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
	ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
	struct op op = op_of(ALL_REDUCE, send, recv, count, type, comm, stream);
	op.args.reduce = reduce == ncclMax ? COMM_MAX : COMM_SUM;
	return add(op);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
	ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
	struct op op = op_of(REDUCE_SCATTER, send, recv, count, type, comm, stream);
	op.args.reduce = reduce == ncclMax ? COMM_MAX : COMM_SUM;
	return add(op);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
	ncclComm_t comm, cudaStream_t stream)
{
	return add(op_of(ALL_GATHER, send, recv, count, type, comm, stream));
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
	int root, ncclComm_t comm, cudaStream_t stream)
{
	struct op op = op_of(BROADCAST, send, recv, count, type, comm, stream);
	op.args.root = root;
	return add(op);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	struct op op = op_of(SEND, send, NULL, count, type, comm, stream);
	op.args.root = peer;
	return add(op);
}

ncclResult_t ncclRecv(
	void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	struct op op = op_of(RECV, NULL, recv, count, type, comm, stream);
	op.args.root = peer;
	return add(op);
}
