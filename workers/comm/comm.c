/* SPDX-License-Identifier: Apache-2.0
 * What every group has in common: options, arguments and names. */
#include "core/base/clock.h"
#include "workers/comm/comm_private.h"
#include "workers/comm/comm_store.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	int64_t bytes;
} types[COMM_TYPE_COUNT] = {
	[COMM_F32] = { "fp32", 4 },
	[COMM_BF16] = { "bf16", 2 },
	[COMM_F16] = { "fp16", 2 },
	[COMM_BYTES] = { "bytes", 1 },
};

/* What a call reads of its arguments. */
static const struct {
	const char *name;
	bool reduces, root, sends, receives;
	bool parts_sent, parts_received; /* the buffer has a part for each rank */
} ops[COMM_OP_COUNT] = {
	[COMM_ALL_REDUCE] = { "all_reduce", .reduces = true, .receives = true },
	[COMM_REDUCE_SCATTER] = { "reduce_scatter", .reduces = true, .sends = true, .receives = true,
		.parts_sent = true },
	[COMM_ALL_GATHER] = { "all_gather", .sends = true, .receives = true, .parts_received = true },
	[COMM_BROADCAST] = { "broadcast", .root = true, .receives = true },
	[COMM_ALL_TO_ALL] = { "all_to_all", .sends = true, .receives = true, .parts_sent = true,
		.parts_received = true },
	[COMM_SEND] = { "send", .root = true, .sends = true },
	[COMM_RECV] = { "recv", .root = true, .receives = true },
	[COMM_BARRIER] = { "barrier" },
};

int64_t comm_type_bytes(enum comm_type type)
{
	return types[type].bytes;
}

const char *comm_type_name(enum comm_type type)
{
	return types[type].name;
}

const char *comm_op_name(enum comm_op op)
{
	return ops[op].name;
}

/* ------------------------------------------------------------------ arguments */

/* The elements of one side of a call, or INVALID_VALUE. */
static int check_side(const struct comm *c, enum comm_op op, const void *data, int64_t count,
	const int64_t *counts, bool parts, struct err *err)
{
	int64_t most = COMM_BYTES_MAX / comm_type_bytes(COMM_F32) / COMM_RANKS_MAX;
	int64_t total = 0;
	for (int r = 0; r < (parts ? c->size : 1); r++) {
		int64_t n = counts != NULL ? counts[r] : count;
		if (n < 0 || n > (parts ? most : most * COMM_RANKS_MAX))
			return err_set(err, ERR_INVALID_VALUE, NULL, "%s of group %s: %lld is not a count",
				ops[op].name, c->name, (long long)n);
		total += n;
	}
	if (data == NULL && total > 0)
		return err_set(err, ERR_INVALID_VALUE, NULL, "%s of group %s: a buffer is missing",
			ops[op].name, c->name);
	return 0;
}

int comm_args_check(
	const struct comm *c, enum comm_op op, const struct comm_args *a, struct err *err)
{
	const char *wrong = NULL;
	if ((unsigned)a->type >= COMM_TYPE_COUNT)
		wrong = "the type is none";
	else if (ops[op].reduces && (unsigned)a->reduce >= COMM_REDUCE_COUNT)
		wrong = "the reduction is none";
	else if (ops[op].reduces && a->type == COMM_BYTES)
		wrong = "bytes cannot be reduced";
	else if (ops[op].root && (a->root < 0 || a->root >= c->size))
		wrong = "there is no such rank";
	else if ((op == COMM_SEND || op == COMM_RECV) && a->root == c->rank)
		wrong = "a rank does not send to itself";
	else if (a->deadline_ms < 0 || a->deadline_ms > COMM_DEADLINE_MS_MAX)
		wrong = "the deadline is out of range";
	if (wrong != NULL)
		return err_set(
			err, ERR_INVALID_VALUE, NULL, "%s of group %s: %s", ops[op].name, c->name, wrong);
	bool counts = op == COMM_ALL_TO_ALL;
	int rc = 0;
	if (ops[op].sends)
		rc = check_side(
			c, op, a->send, a->count, counts ? a->send_counts : NULL, ops[op].parts_sent, err);
	if (rc == 0 && ops[op].receives)
		rc = check_side(
			c, op, a->recv, a->count, counts ? a->recv_counts : NULL, ops[op].parts_received, err);
	if (rc == 0 && counts &&
		(a->send_counts != NULL ? a->send_counts[c->rank] : a->count) !=
			(a->recv_counts != NULL ? a->recv_counts[c->rank] : a->count))
		rc = err_set(err, ERR_INVALID_VALUE, NULL,
			"%s of group %s: the counts from and to the own rank differ", ops[op].name, c->name);
	return rc;
}

int comm_aborted(const struct comm *c, const char *reason, struct err *err)
{
	return err_set(err, ERR_CANCELLED, NULL, "group %s (rank %d of %d): aborted: %.*s", c->name,
		c->rank, c->size, COMM_REASON_MAX - 1, reason);
}

/* ------------------------------------------------------------------ groups */

static int check_options(const struct comm_options *o, struct err *err)
{
	const char *wrong = NULL;
	if (o->name == NULL || !comm_store_key_is_valid(o->name) || strlen(o->name) >= COMM_NAME_MAX)
		wrong = "its name is not one";
	else if (o->size < 1 || o->size > COMM_RANKS_MAX)
		wrong = "its size is out of range";
	else if (o->rank < 0 || o->rank >= o->size)
		wrong = "its rank is out of range";
	else if (o->size > 1 && o->store == NULL)
		wrong = "it has no store to meet in";
	else if (o->host != NULL && strlen(o->host) >= COMM_HOST_MAX)
		wrong = "its bind address is too long";
	else if ((unsigned)o->transport >= COMM_TRANSPORT_COUNT)
		wrong = "its transport is none";
	else if (o->device != NULL && o->device->index < 0)
		wrong = "its device is none";
	else if (o->open_ms < 0 || o->open_ms > COMM_DEADLINE_MS_MAX || o->deadline_ms < 0 ||
		o->deadline_ms > COMM_DEADLINE_MS_MAX)
		wrong = "a deadline is out of range";
	if (wrong != NULL)
		return err_set(err, ERR_INVALID_VALUE, NULL, "the group %.*s cannot be opened: %s",
			COMM_NAME_MAX, o->name != NULL ? o->name : "", wrong);
	return 0;
}

void comm_init(struct comm *c, const struct comm_ops *group_ops, const struct comm_options *o)
{
	c->ops = group_ops;
	snprintf(c->name, sizeof(c->name), "%s", o->name);
	c->rank = o->rank;
	c->size = o->size;
	c->deadline_ms = o->deadline_ms > 0 ? o->deadline_ms : COMM_DEADLINE_MS;
}

static int open_wire(const struct comm_options *o, struct comm_wire **ret, struct err *err)
{
	int64_t open_ms = o->open_ms > 0 ? o->open_ms : COMM_OPEN_MS;
	int64_t deadline_us = clock_mono_us(clock_system()) + open_ms * 1000;
	int rc = ERR_UNAVAILABLE;
	if (o->transport != COMM_TCP)
		rc = comm_shm_open(o, deadline_us, ret, err);
	if (rc != ERR_UNAVAILABLE || o->transport == COMM_SHM)
		return rc;
	return comm_gloo_open(o, deadline_us, ret, err);
}

int comm_host_open(const struct comm_options *o, struct comm **ret, struct err *err)
{
	struct comm_wire *wire = NULL;
	int rc = open_wire(o, &wire, err);
	return rc < 0 ? rc : comm_queue_open(o, wire, ret, err);
}

int comm_open(const struct comm_options *o, struct comm **ret, struct err *err)
{
	int rc = check_options(o, err);
	if (rc < 0)
		return rc;
	if (o->size == 1)
		return comm_none_open(o, ret, err);
	return o->device != NULL ? comm_nccl_open(o, ret, err) : comm_host_open(o, ret, err);
}

void comm_close(struct comm *c)
{
	if (c != NULL)
		c->ops->close(c);
}

void comm_closep(struct comm **c)
{
	comm_close(*c);
}

int comm_wait(struct comm *c, int64_t ticket, struct err *err)
{
	return c->ops->wait(c, ticket, err);
}

int comm_test(struct comm *c, int64_t ticket, bool *ret_done, struct err *err)
{
	return c->ops->test(c, ticket, ret_done, err);
}

int comm_order(struct comm *c, int64_t ticket, struct err *err)
{
	return c->ops->order(c, ticket, err);
}

int comm_register(struct comm *c, void *data, int64_t bytes, struct err *err)
{
	return c->ops->enroll(c, data, bytes, err);
}

int comm_enroll_nothing(struct comm *c, void *data, int64_t bytes, struct err *err)
{
	(void)c;
	(void)data;
	(void)bytes;
	(void)err;
	return 0;
}

void comm_abort(struct comm *c, const char *reason)
{
	c->ops->abort(c, reason);
}
