/* SPDX-License-Identifier: Apache-2.0
 * The memory that ranks of one machine share: comm_shm_meet.c makes it and connects the ranks,
 * comm_shm.c moves messages through it. A rank owns one segment, with a bell and a ring from each
 * other rank; nothing that another rank writes there is used without a check. */
#pragma once

#include "workers/comm/comm_private.h"

#include <assert.h>
#include <stdatomic.h>

enum {
	COMM_SHM_SLOTS = 4, /* of a ring; a power of two */
	COMM_SHM_CHUNK_MIN = 4096,
	COMM_SHM_CHUNK_MAX = 256 * 1024,  /* bytes of a slot: some stay in the nearer caches */
	COMM_SHM_INBOUND_BYTES = 8 << 20, /* of all rings to one rank; more ranks have smaller slots */
	COMM_SHM_LINE = 64,               /* what two processors do not write both */
	COMM_SHM_PAGE = 4096,
};

/* Wakes a rank. It counts up whenever something changed for the rank; the futex is on it. */
struct comm_shm_bell {
	_Alignas(COMM_SHM_LINE) atomic_uint rings;
	_Alignas(COMM_SHM_LINE) atomic_uint sleeps;
};

/* What a slot has a part of. */
struct comm_shm_frame {
	int64_t bytes; /* of the whole message */
	int64_t slot;
};

/* From one rank to another: the one counts the slots it has filled, the other those it has done
 * with. Both count on for ever. */
struct comm_shm_ring {
	_Alignas(COMM_SHM_LINE) atomic_uint filled;
	_Alignas(COMM_SHM_LINE) atomic_uint emptied;
	_Alignas(COMM_SHM_LINE) struct comm_shm_frame frames[COMM_SHM_SLOTS];
};
static_assert(sizeof(struct comm_shm_bell) <= COMM_SHM_PAGE, "a page");
static_assert(sizeof(struct comm_shm_ring) <= COMM_SHM_PAGE, "a page");

struct comm_shm_link {
	int socket;    /* says when the other process is gone; -1: none */
	void *segment; /* the other's */
	struct comm_shm_bell *bell;
	struct comm_shm_ring *in, *out;
	char *in_data, *out_data; /* [COMM_SHM_SLOTS][chunk_bytes] */
};

struct comm_shm_links {
	int rank, size;
	int64_t chunk_bytes, segment_bytes;
	void *segment; /* mine */
	struct comm_shm_bell *bell;
	struct comm_shm_link *links; /* by rank */
};

/* Connects all ranks of the group, by deadline_us. UNAVAILABLE on every rank: they are not on one
 * machine, or may not share memory there. TIMEOUT, CONFLICT, IO as comm_open. */
int comm_shm_meet(const struct comm_options *o, int64_t deadline_us, struct comm_shm_links *ret,
	struct err *err) must_check;
/* Lets the others see us leave; the memory stays. */
void comm_shm_part(struct comm_shm_links *l);
void comm_shm_links_finish(struct comm_shm_links *l);
