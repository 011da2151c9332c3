/* SPDX-License-Identifier: Apache-2.0
 * Which rows of which embedding table each rank of the data axis keeps, where the ranks share them.
 * Pure: every rank computes the same. Called by plan_family_dlrm.c; the engine reads what came out.
 */
#pragma once

#include "workers/plan/plan_mesh.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows [first, first + rows) of a table. A rank's pieces are of different tables, in their order; a
 * slot that is left over names a table of which the rank keeps nothing: rows 0. */
struct plan_piece {
	int table;
	int64_t first, rows;
};

/* With ZeRO the tables are cut; without, each rank has all of them. */
static inline bool plan_tables_are_cut(const struct plan_mesh *m)
{
	return m->zero > 0 && m->data > 1;
}

/* Pieces of each rank: the fewest with which any tables can be cut as plan_tables_cut promises. */
int plan_tables_slots(int tables, int ranks);

/* Cuts the tables (1 to SPEC_TABLES_MAX, a row or more each) so that no rank has more than a row
 * more than another. A table's pieces are neighbours without a gap. Writes plan_tables_slots for
 * each rank, rank 0's first; rank 0 has the most bytes, a table's piece of row_bytes a row being
 * padded to PLAN_ALIGN_BYTES. */
void plan_tables_cut(
	const int64_t *rows, int tables, int ranks, int64_t row_bytes, struct plan_piece *ret_pieces);
