/* SPDX-License-Identifier: Apache-2.0
 * Executes the operations of embedding tables that ranks share (plan_tables.h). What travels lies
 * by rank and slot, and the plan's pieces say which rows of which table each is. Called by
 * engine_exec.c. */
#include "workers/comm/comm.h"
#include "workers/engine/engine_private.h"

#define OPERAND(i) engine_exec_operand(e, op, i)

/* Element `at` of an operand. */
static void *element(const struct engine *e, const struct plan_op *op, int i, int64_t at)
{
	return (char *)OPERAND(i) + at * plan_type_bytes(engine_exec_type(e, op, i));
}

static int piece_count(const struct plan *p)
{
	return p->mesh.data * p->piece_slots;
}

static void piece_ids(struct engine *e, const struct plan_op *op)
{
	const struct plan *p = e->plan;
	int64_t each = op->dim[0] * op->dim[1];
	for (int i = 0; i < piece_count(p); i++) {
		const struct plan_piece *piece = &p->pieces[i];
		e->backend->piece_ids(each, piece->first, piece->rows,
			element(e, op, 0, piece->table * each), element(e, op, 1, i * each));
	}
}

static void piece_sum(struct engine *e, const struct plan_op *op)
{
	int64_t slot = op->dim[4], ranks = op->dim[5], slots = op->dim[6];
	for (int64_t at = slot; at < ranks * slots; at += slots)
		e->backend->embedding_bag(&(struct backend_bag){ .samples = op->dim[0],
			.lookups = op->dim[1],
			.d = op->dim[2],
			.table = -1,
			.features = 1,
			.bags = element(e, op, 0, at * op->dim[0] * op->dim[1]),
			.weight = OPERAND(1),
			.z = element(e, op, 2, at * op->dim[0] * op->dim[2]) });
}

/* The places of a table's pieces, in the order of their rows; returns how many there are. */
static int places_of(const struct plan *p, int table, int *ret)
{
	int count = 0;
	for (int i = 0; i < piece_count(p) && count < COMM_RANKS_MAX; i++) {
		const struct plan_piece *piece = &p->pieces[i];
		if (piece->table != table || piece->rows == 0)
			continue;
		int at = count++;
		for (; at > 0 && p->pieces[ret[at - 1]].first > piece->first; at--)
			ret[at] = ret[at - 1];
		ret[at] = i;
	}
	return count;
}

static void piece_gather(struct engine *e, const struct plan_op *op)
{
	int places[COMM_RANKS_MAX]; /* a rank has one piece of a table at most */
	const void *piece[COMM_RANKS_MAX];
	for (int t = 0; t < op->dim[2] - 1; t++) {
		int count = places_of(e->plan, t, places);
		for (int i = 0; i < count; i++)
			piece[i] = element(e, op, 0, places[i] * op->dim[0] * op->dim[1]);
		e->backend->piece_gather(&(struct backend_pieces){ .samples = op->dim[0],
			.d = op->dim[1],
			.table = t,
			.features = op->dim[2],
			.piece = piece,
			.count = count,
			.z = OPERAND(1) });
	}
}

static void piece_spread(struct engine *e, const struct plan_op *op)
{
	for (int i = 0; i < piece_count(e->plan); i++)
		e->backend->piece_spread(op->dim[0], op->dim[1], e->plan->pieces[i].table, op->dim[2],
			OPERAND(0), element(e, op, 1, i * op->dim[0] * op->dim[1]));
}

/* In the order of the batch: a micro-batch of each rank, then the next of each. */
static void piece_store(struct engine *e, const struct plan_op *op)
{
	int64_t slot = op->dim[3], ranks = op->dim[4], slots = op->dim[5];
	for (int64_t r = 0; r < ranks; r++) {
		int64_t at = r * slots + slot, first = (e->micro * ranks + r) * op->dim[0];
		e->backend->sparse_store(&(struct backend_bag){ .samples = op->dim[0],
			.lookups = op->dim[1],
			.d = op->dim[2],
			.table = -1,
			.features = 1,
			.bags = element(e, op, 0, at * op->dim[0] * op->dim[1]),
			.dz = element(e, op, 1, at * op->dim[0] * op->dim[2]),
			.ids = element(e, op, 2, first * op->dim[1]),
			.grads = element(e, op, 3, first * op->dim[2]) });
	}
}

engine_exec_fn engine_exec_piece(enum plan_op_kind kind)
{
	static const engine_exec_fn table[PLAN_OP_COUNT] = {
		[PLAN_OP_PIECE_IDS] = piece_ids,
		[PLAN_OP_PIECE_SUM] = piece_sum,
		[PLAN_OP_PIECE_GATHER] = piece_gather,
		[PLAN_OP_PIECE_SPREAD] = piece_spread,
		[PLAN_OP_PIECE_STORE] = piece_store,
	};
	return table[kind];
}
