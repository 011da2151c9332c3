/* SPDX-License-Identifier: Apache-2.0
 * What the files of a group in device memory share: comm_nccl_meet.c joins the ranks, comm_nccl.c
 * keeps the calls and comm_nccl_thread.c hands them to NCCL and watches them. */
#pragma once

#include "workers/comm/comm_nccl_library.h"
#include "workers/comm/comm_private.h"

#include <pthread.h>

enum {
	/* Blocks of a call's kernel, each on a multiprocessor of its own. A kernel that waits for other
	 * ranks keeps them: all groups of a mesh (eight) find room on a device together, or two ranks
	 * could each wait for a kernel that the other has no room for. */
	COMM_NCCL_BLOCKS_MAX = 16,
	/* How long past its deadline a call may be: what the ranks tell each other names the late one,
	 * and comes first. */
	COMM_NCCL_GRACE_US = 100000,
	COMM_NCCL_WATCH_AFTER_US = 100000, /* a call that takes longer: look whether all are there */
	/* A rank that was seen to go may have done its part of a call that is not done here. */
	COMM_NCCL_LOST_US = 1000000,
	COMM_NCCL_ABORT_MS = 10000, /* longer is a library or a device that hangs */
	COMM_NCCL_REGISTERED_MAX = 64,
};

struct comm_nccl_call {
	enum comm_op op;
	struct comm_args args;
	int64_t begin_us, deadline_us, deadline_ms;
	int64_t compared;  /* the host group's ticket; 0: not begun */
	cudaEvent_t ready; /* of the compute stream, when the call came */
	cudaEvent_t done;  /* of the group's, behind the call */
};

/* Memory that a caller registers: it waits while the group's thread does so. */
struct comm_nccl_request {
	void *data;
	int64_t bytes;
	bool asked, answered;
	int rc;
	struct err err;
};

struct comm_nccl {
	struct comm base;
	const struct comm_nccl_library *library;
	struct comm *host; /* the same ranks: comparing, and seeing who is lost */
	bool check;
	int device;
	cudaStream_t compute, stream;
	ncclComm_t nccl; /* of the thread alone */
	float *token;    /* in device memory: what a barrier reduces */
	pthread_t thread;
	bool thread_runs;

	pthread_mutex_t lock; /* over all that follows */
	pthread_cond_t changed;
	struct comm_nccl_call calls[COMM_PENDING_MAX];
	/* Tickets: given, handed to NCCL, on the stream with their event, and done. */
	int64_t issued, handed, launched, finished;
	struct comm_nccl_request request;
	void *registered[COMM_NCCL_REGISTERED_MAX];
	int registered_count;
	int64_t lost_us;   /* when the host group's failure was seen; 0: none */
	int64_t remote_us; /* when NCCL lost a rank; 0: it did not */
	bool closing;
	bool stopped;  /* the thread uses nothing of the callers' any more */
	bool orphaned; /* the thread frees the group, if it ever ends */
	int64_t failed_us;
	struct err failure; /* code 0: none */
};

static inline struct comm_nccl_call *comm_nccl_call_of(struct comm_nccl *n, int64_t ticket)
{
	return &n->calls[(ticket - 1) % COMM_PENDING_MAX];
}

int64_t comm_nccl_now_us(void);

/* ------------------------------------------------------------------ comm_nccl_meet.c */

/* What rank 0 makes and all others read from the store. TIMEOUT, CONFLICT (another NCCL), IO. */
int comm_nccl_exchange(const struct comm_options *o, const struct comm_nccl_library *l,
	int64_t deadline_us, ncclUniqueId *ret_id, struct err *err) must_check;
/* Joins the ranks of the host group, on the device that the calling thread has set. The name stays
 * where it is. */
int comm_nccl_meet(const struct comm_options *o, const struct comm_nccl_library *l,
	struct comm *host, int64_t deadline_us, ncclComm_t *ret, struct err *err) must_check;

/* ------------------------------------------------------------------ under the lock */

/* Counts what has been done on the device. */
void comm_nccl_advance(struct comm_nccl *n);
/* The first failure stays; the thread ends by it. */
void comm_nccl_fail(struct comm_nccl *n, const struct err *failure);
/* The failure of a call that is past its deadline. */
void comm_nccl_fail_late(struct comm_nccl *n);
/* "all_reduce #3 of group data (rank 0 of 2)" */
enum { COMM_NCCL_WHERE_MAX = 160 };
void comm_nccl_where(struct comm_nccl *n, int64_t ticket, char ret[static COMM_NCCL_WHERE_MAX]);

/* ------------------------------------------------------------------ comm_nccl_thread.c,
 * comm_nccl.c */

/* The group's thread, to its end: the calls, then goodbye or abort. */
void *comm_nccl_thread(void *group);
/* Frees what the group has beside the host group. */
void comm_nccl_free(struct comm_nccl *n);
