/* SPDX-License-Identifier: Apache-2.0
 * Collectives between the ranks of a job. A struct comm is one group of ranks (an axis of a mesh is
 * a group); a rank is in as many groups as it likes. comm_none.c is the group of one rank; several
 * are joined by shared memory where all are on one machine, or over TCP; a group whose buffers are
 * in a CUDA device's memory by NCCL. A group may be used by any thread; its calls run in the order
 * they came in. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	COMM_RANKS_MAX = 256,      /* of one group */
	COMM_NAME_MAX = 48,        /* bytes of a group's name with its NUL */
	COMM_HOST_MAX = 256,       /* bytes of a bind address with its NUL */
	COMM_REASON_MAX = 256,     /* bytes of an abort's reason with its NUL; longer ones are cut */
	COMM_PENDING_MAX = 256,    /* calls of one group that are not done */
	COMM_DEADLINE_MS = 600000, /* of a call, where the options name none */
	COMM_OPEN_MS = 120000,     /* to find the other ranks, where the options name none */
	COMM_DEADLINE_MS_MAX = 24 * 3600 * 1000,
	COMM_GOODBYE_MS = 2000, /* how long a close waits for ranks that are still in their last call */
};
#define COMM_BYTES_MAX (INT64_C(1) << 40) /* of one buffer */

enum comm_type { COMM_F32, COMM_BF16, COMM_F16, COMM_BYTES, COMM_TYPE_COUNT };
/* Of COMM_BYTES there is neither. A MAX over a NaN is a NaN. */
enum comm_reduce { COMM_SUM, COMM_MAX, COMM_REDUCE_COUNT };
enum comm_op {
	COMM_ALL_REDUCE,
	COMM_REDUCE_SCATTER,
	COMM_ALL_GATHER,
	COMM_BROADCAST,
	COMM_ALL_TO_ALL,
	COMM_SEND,
	COMM_RECV,
	COMM_BARRIER,
	COMM_OP_COUNT,
};

/* One call. Counts are in elements of type. The buffers (and the arrays of counts) are the caller's
 * and stay untouched and alive until the ticket is done; a call that failed, was aborted or closed
 * no longer uses them once comm_wait has said so, and leaves anything in recv. send and recv do not
 * overlap except where said. */
struct comm_args {
	const void *send;
	void *recv;
	int64_t count;
	const int64_t *send_counts, *recv_counts; /* all-to-all: by rank; NULL = count for each */
	enum comm_type type;
	enum comm_reduce reduce;
	int root;            /* broadcast: from whom; send and recv: the other rank */
	int64_t deadline_ms; /* from the call on; 0 = the group's */
};

struct comm;

/* Each enqueues one call and returns at once; *ret_ticket is its ticket, 1 for a group's first call
 * and one more for each further. Errors are of the call itself: INVALID_VALUE (arguments; nothing
 * was enqueued, the group stays whole), OVERLOADED (COMM_PENDING_MAX), or the group's first
 * failure.
 *
 * N is the size of the group, r a rank. Results are a function of the inputs and N alone: sums are
 * taken in fp32 in the order of ranks and rounded once, so every rank has the same bits, in every
 * run. (Of groups in device memory less holds: see struct comm_device.) */
struct comm_ops {
	/* recv[count] = the reduction over ranks of their send[count]. send may be recv, or NULL: in
	 * place. */
	int (*all_reduce)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* recv[count] = the reduction over ranks of part r of their send[N * count], r the own rank.
	 * recv may be that part of send. */
	int (*reduce_scatter)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* Part r of recv[N * count] = send[count] of rank r. send may be the own part of recv. */
	int (*all_gather)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* recv[count] = that of rank root. */
	int (*broadcast)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* Part r of recv = the own part of rank r's send. Parts have count elements, or those of
	 * send_counts and recv_counts, and lie one after the other. */
	int (*all_to_all)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* send[count] goes to rank root's recv[count]. A send is done when the other rank has come to
	 * its recv: two ranks that both send first wait for each other. Calls between one pair of ranks
	 * meet in order. */
	int (*send)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	int (*recv)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;
	/* Done when every rank has come to it. */
	int (*barrier)(
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) must_check;

	/* Behind comm_test, comm_wait, comm_abort and comm_close. */
	int (*test)(struct comm *c, int64_t ticket, bool *ret_done, struct err *err) must_check;
	int (*wait)(struct comm *c, int64_t ticket, struct err *err) must_check;
	void (*abort)(struct comm *c, const char *reason);
	void (*close)(struct comm *c);
	/* Behind comm_order and comm_register. */
	int (*order)(struct comm *c, int64_t ticket, struct err *err) must_check;
	int (*enroll)(struct comm *c, void *data, int64_t bytes, struct err *err) must_check;
};

/* What everybody may read of a group; implementations put their own behind it. */
struct comm {
	const struct comm_ops *ops;
	char name[COMM_NAME_MAX];
	int rank, size;
	int64_t deadline_ms;
};

struct comm_store; /* comm_store.h */

enum comm_transport {
	COMM_AUTO, /* shared memory where all ranks can, otherwise TCP */
	COMM_SHM,
	COMM_TCP, /* the only one that uses `host` */
	COMM_TRANSPORT_COUNT,
};

/* Where the buffers of a group are, and when its calls may touch them. A call begins when all that
 * the stream had been given before it is done, runs beside what the stream is given after it, and
 * never blocks the host: comm_order is how the stream waits for it.
 *
 * What holds of results is NCCL's: a reduction adds in an order of its own, which depends on the
 * count, the number of ranks and how the devices are connected, and sums of bf16 and fp16 may be
 * rounded more than once. Every rank has the same bits, and so has every run with the same calls on
 * the same machines with the same NCCL and settings; other machines may have others. A MAX over a
 * NaN is not defined. What is only moved is the same everywhere. */
struct comm_device {
	int index;    /* of the CUDA device in this process */
	void *stream; /* cudaStream_t of what the buffers are made by and for */
};

struct comm_options {
	const char *name; /* comm_store_key_is_valid; the same on every rank, once per store */
	int rank, size;
	struct comm_store *store; /* where the ranks meet; borrowed until close; may be NULL alone */
	const char *host;         /* bind address; NULL = "127.0.0.1" */
	int64_t open_ms;          /* to find all the others; 0 = COMM_OPEN_MS */
	int64_t deadline_ms;      /* of each call; 0 = COMM_DEADLINE_MS */
	enum comm_transport transport; /* the same on every rank */
	/* NULL: buffers are in host memory. All ranks have one or none has; read while it opens. Then
	 * `transport` and `host` are those of what the ranks tell each other beside NCCL. */
	const struct comm_device *device;
	/* Before each collective all ranks compare call number, operation, type, count and root; what
	 * differs is an error on every rank. Must be the same on every rank. Without it, ranks that
	 * differ get wrong results, wait for their deadline, or end. */
	bool check;
};

#ifdef NDEBUG
enum { COMM_CHECK_DEFAULT = false };
#else
enum { COMM_CHECK_DEFAULT = true };
#endif

/* Joins the group: returns when every rank has come. A group of one needs no other, and no store.
 * INVALID_VALUE (options), TIMEOUT (a rank did not come in time), NETWORK, IO (the store),
 * UNAVAILABLE (the ranks are not all on one machine, and the transport is SHM or the build has no
 * TCP; or the device, the driver or NCCL is missing), CONFLICT (the ranks opened it differently).
 */
int comm_open(const struct comm_options *o, struct comm **ret, struct err *err) must_check;
/* Leaves it and frees it. What is not done is aborted. Never hangs: after a failure it returns at
 * once, otherwise it waits at most COMM_GOODBYE_MS for the others (in device memory twice that). No
 * other thread may still use the group. NULL is fine. */
void comm_close(struct comm *c);
void comm_closep(struct comm **c);

/* Waits until the call is done, at most to its deadline. 0, or the group's first failure; a call
 * that was done before that keeps its success. May be asked again, and by several threads.
 *
 * The first failure stays: all calls that are not done and all later ones fail with it. It says
 * operation, call number, group and, where known, the rank:
 *   TIMEOUT    a deadline passed
 *   NETWORK    a rank was lost
 *   CONFLICT   ranks made different calls
 *   CANCELLED  aborted
 * and is the same on ranks that only saw another one leave, as far as that one could tell. */
int comm_wait(struct comm *c, int64_t ticket, struct err *err) must_check;
/* True when comm_wait would not wait. Never blocks. INVALID_VALUE for a ticket that was not given.
 */
int comm_test(struct comm *c, int64_t ticket, bool *ret_done, struct err *err) must_check;
/* The stream of the group's device does what it is given from now on after the call. Returns when
 * the call is under way on the device, which takes no other rank but for the group's first calls;
 * the group's first failure, but not one that comes later: comm_wait says that. In host memory it
 * is comm_wait. */
int comm_order(struct comm *c, int64_t ticket, struct err *err) must_check;
/* Tells the group of memory that its calls will use again and again, which may make them faster. It
 * stays allocated until the group is closed. In host memory nothing happens. */
int comm_register(struct comm *c, void *data, int64_t bytes, struct err *err) must_check;
/* Makes everything that is not done, and everything later, fail with this reason (a sentence's end:
 * "the job was cancelled"). Returns at once; other ranks fail as they notice. Any thread. */
void comm_abort(struct comm *c, const char *reason);

/* Bytes of an element; the names in errors ("all_reduce", "bf16"). */
int64_t comm_type_bytes(enum comm_type type);
const char *comm_type_name(enum comm_type type);
const char *comm_op_name(enum comm_op op);
