/* SPDX-License-Identifier: Apache-2.0
 * One block at a time on the calling thread: its threads are fibres that run until a barrier or an
 * exchange of their warp, in an order drawn from the seed. Used by kernels (device_sync.h) and by
 * the launch (launch.cc). Every misuse ends the process with a report (report.h). */
#pragma once

#include <cuda_runtime_api.h>

#include <stdint.h>

/* What a kernel sees of where it is; the running fibre's. */
struct emulation_place {
	uint3 thread_idx;
	uint3 block_idx;
	dim3 block_dim;
	dim3 grid_dim;
};
extern __thread struct emulation_place *emulation_here;

enum {
	EMULATION_WARP = 32,
	EMULATION_THREADS_MAX = 1024,
	EMULATION_SHARED_STATIC_MAX = 48 << 10,
	EMULATION_SHARED_MAX = 227 << 10,
};

/* What lanes of a warp exchange. */
enum emulation_exchange {
	EMULATION_SYNC,
	EMULATION_SHUFFLE,
	EMULATION_BALLOT,
	EMULATION_MATCH,
	EMULATION_ADD,
	EMULATION_AND,
	EMULATION_OR,
	EMULATION_XOR,
	EMULATION_MIN,
	EMULATION_MAX,
	EMULATION_MIN_SIGNED,
	EMULATION_MAX_SIGNED,
};

/* A barrier of the block. Gives how many threads brought a predicate that is not 0. */
int emulation_barrier(int predicate, const char *file, int line);
/* An exchange between the lanes of mask; each brings a value. EMULATION_SHUFFLE gives the value of
 * lane source (a poisoned one when the mask has it not). */
uint64_t emulation_warp_exchange(enum emulation_exchange kind, unsigned mask, uint64_t value,
	int source, const char *file, int line);
/* 0 to 31. */
int emulation_lane(void);

struct emulation_launch;
/* Runs all blocks, in an order drawn from the seed. stream_number is drawn from as well. */
void emulation_block_run_all(const struct emulation_launch *launch, unsigned stream_number);
