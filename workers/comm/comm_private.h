/* SPDX-License-Identifier: Apache-2.0
 * What the files of this room share: checked arguments, the reductions, and the wire, which is all
 * that a transport between several ranks has to bring (comm_shm.c within a machine, comm_gloo.cc
 * over TCP; the collectives above it are comm_collect.c). */
#pragma once

#include "workers/comm/comm.h"

/* Fills the public part; options were checked. */
void comm_init(struct comm *c, const struct comm_ops *ops, const struct comm_options *o);
/* INVALID_VALUE where a call's arguments make no sense in this group. */
int comm_args_check(
	const struct comm *c, enum comm_op op, const struct comm_args *a, struct err *err) must_check;
/* The reason of an abort, as the group's failure. */
int comm_aborted(const struct comm *c, const char *reason, struct err *err);

/* The functions of comm_ops that enqueue, each of which is run(c, op, a, ret_ticket, err) with its
 * operation; and their places in the struct. */
#define COMM_ENQUEUE_ONE(name, run, op)                                                  \
	static int name(                                                                     \
		struct comm *c, const struct comm_args *a, int64_t *ret_ticket, struct err *err) \
	{                                                                                    \
		return run(c, op, a, ret_ticket, err);                                           \
	}
#define COMM_ENQUEUE(prefix, run)                                       \
	COMM_ENQUEUE_ONE(prefix##_all_reduce, run, COMM_ALL_REDUCE)         \
	COMM_ENQUEUE_ONE(prefix##_reduce_scatter, run, COMM_REDUCE_SCATTER) \
	COMM_ENQUEUE_ONE(prefix##_all_gather, run, COMM_ALL_GATHER)         \
	COMM_ENQUEUE_ONE(prefix##_broadcast, run, COMM_BROADCAST)           \
	COMM_ENQUEUE_ONE(prefix##_all_to_all, run, COMM_ALL_TO_ALL)         \
	COMM_ENQUEUE_ONE(prefix##_send, run, COMM_SEND)                     \
	COMM_ENQUEUE_ONE(prefix##_recv, run, COMM_RECV)                     \
	COMM_ENQUEUE_ONE(prefix##_barrier, run, COMM_BARRIER)
#define COMM_ENQUEUE_OPS(prefix)                                                     \
	.all_reduce = prefix##_all_reduce, .reduce_scatter = prefix##_reduce_scatter,    \
	.all_gather = prefix##_all_gather, .broadcast = prefix##_broadcast,              \
	.all_to_all = prefix##_all_to_all, .send = prefix##_send, .recv = prefix##_recv, \
	.barrier = prefix##_barrier

/* For comm_ops, where memory is not registered. */
int comm_enroll_nothing(struct comm *c, void *data, int64_t bytes, struct err *err) must_check;

int comm_none_open(const struct comm_options *o, struct comm **ret, struct err *err) must_check;
/* Of several ranks: in host memory, and in that of o->device. */
int comm_host_open(const struct comm_options *o, struct comm **ret, struct err *err) must_check;
int comm_nccl_open(const struct comm_options *o, struct comm **ret, struct err *err) must_check;
/* What a group of one rank does in device memory: a copy in the order of the device's stream, and
 * the wait for what the stream was given. */
int comm_nccl_copy(const struct comm_device *d, void *to, const void *from, int64_t bytes,
	struct err *err) must_check;
int comm_nccl_drain(const struct comm_device *d, struct err *err) must_check;

/* into[count] = the reduction, in the order of the list, of parts[n][count] of a type that can be
 * reduced. into may be one of the parts. */
void comm_reduce_parts(enum comm_type type, enum comm_reduce reduce, void *into,
	const void *const *parts, int n, int64_t count);

/* ------------------------------------------------------------------ the wire */

enum {
	COMM_WIRE_FLIGHT = 12, /* messages in flight for each rank of the group */
};

enum comm_slot {
	COMM_SLOT_HEADER, /* what a rank is about to do */
	COMM_SLOT_SCATTER,
	COMM_SLOT_GATHER,
	COMM_SLOT_DATA,
	COMM_SLOT_GOODBYE,
	COMM_SLOT_COUNT,
};

/* One message between two ranks. Those of one slot and direction meet in order and have the same
 * bytes (above 0) on both sides. */
struct comm_message {
	int peer;
	enum comm_slot slot;
	bool out;  /* data goes to peer, else comes from it */
	bool lend; /* comes in: to be borrowed, not finished */
	void *data;
	int64_t bytes;
};

struct comm_wire;

/* One thread starts and finishes; interrupt may come from any. The deadline is on CLOCK_MONOTONIC.
 * An error is NETWORK (a rank is lost), TIMEOUT (the deadline) or CANCELLED (interrupted). After it
 * the wire still holds its connections, and can only be dropped. */
struct comm_wire_ops {
	/* Never waits for the peer. */
	int (*start)(struct comm_wire *w, const struct comm_message *m, int64_t deadline_us,
		int *ret_handle, struct err *err) must_check;
	/* Waits for the message, then forgets the handle. Out: the data may change. After an error
	 * *ret_peer is the rank that was waited for, or the one that is lost. */
	int (*finish)(struct comm_wire *w, int handle, int64_t deadline_us, int *ret_peer,
		struct err *err) must_check;
	/* As finish, of a message that is lent: *ret_data is where it lies, in its own data or in the
	 * wire's memory, until it is given back, which forgets the handle. What the same rank sends
	 * behind it waits for that. */
	int (*borrow)(struct comm_wire *w, int handle, int64_t deadline_us, const void **ret_data,
		int *ret_peer, struct err *err) must_check;
	void (*give_back)(struct comm_wire *w, int handle);
	/* For long work in between: TIMEOUT or CANCELLED when there is no use in going on. */
	int (*check)(struct comm_wire *w, int64_t deadline_us, struct err *err) must_check;
	/* While no message is in flight: NETWORK when a rank is gone. Never waits. */
	int (*look)(struct comm_wire *w, int *ret_peer, struct err *err) must_check;
	/* The finish that is waiting, and every later one, is CANCELLED. Never waits. */
	void (*interrupt)(struct comm_wire *w);
	/* Forgets all messages (no data is touched afterwards) and closes the connections. */
	void (*drop)(struct comm_wire *w);
	void (*destroy)(struct comm_wire *w);
};

struct comm_wire {
	const struct comm_wire_ops *ops;
	int64_t piece_bytes; /* what it likes a long transfer to be cut into */
};

/* Connect to all ranks of the group, by deadline_us (CLOCK_MONOTONIC). Shared memory is UNAVAILABLE
 * on all ranks where one cannot have it. */
int comm_shm_open(const struct comm_options *o, int64_t deadline_us, struct comm_wire **ret,
	struct err *err) must_check;
int comm_gloo_open(const struct comm_options *o, int64_t deadline_us, struct comm_wire **ret,
	struct err *err) must_check;
/* A group over a wire, which it takes over (also when it fails). */
int comm_queue_open(const struct comm_options *o, struct comm_wire *wire, struct comm **ret,
	struct err *err) must_check;

/* What a group in device memory does beside NCCL, over a group in host memory of the same name,
 * ranks and numbers of calls. Compares a call (o->check) and moves nothing. */
int comm_queue_compare(struct comm *c, enum comm_op op, const struct comm_args *a,
	int64_t *ret_ticket, struct err *err) must_check;
/* Whether a rank that is lost is a failure also while nothing is called. */
void comm_queue_watch(struct comm *c, bool on);
/* Makes this the group's first failure, of which the other ranks are told. */
void comm_queue_fail(struct comm *c, const struct err *failure);
/* The group's first failure, or 0. Where it is of no call its message begins with the rank. */
int comm_queue_failure(struct comm *c, bool *ret_of_a_call, struct err *ret);
