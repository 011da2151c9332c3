/* SPDX-License-Identifier: Apache-2.0
 * Passes of a step as CUDA graphs (backend.h: replay, record, recorded). Called by device.c, whose
 * failures and streams are not known here. */
#pragma once

#include "workers/engine/backend.h"

#include <cuda_runtime_api.h>

struct cuda_graph_part {
	bool seen; /* its operations have run once, one by one */
	bool off;  /* something in it cannot be recorded: it runs so for ever */
	int refusals;
	cudaGraphExec_t exec;
	uint64_t key;
};

struct cuda_graphs {
	bool off;
	bool recording, spoiled;
	int part; /* that is recorded */
	cudaStream_t stream;
	struct cuda_graph_part parts[BACKEND_PARTS];
};

/* TRAINYARD_CUDA_GRAPHS=off: nothing is ever recorded. */
void cuda_graphs_open(struct cuda_graphs *g, cudaStream_t stream);
void cuda_graphs_close(struct cuda_graphs *g);
/* Where something fails or asks for what a graph cannot have: true while a part is recorded, which
 * then comes to nothing, and whose operations are given again. */
bool cuda_graphs_spoil(struct cuda_graphs *g);

/* Those of backend.h. *ret_rc: what became of the launch, when they are true. */
bool cuda_graphs_replay(struct cuda_graphs *g, int part, uint64_t key, cudaError_t *ret_rc);
bool cuda_graphs_record(struct cuda_graphs *g, int part);
bool cuda_graphs_recorded(struct cuda_graphs *g, uint64_t key, cudaError_t *ret_rc);
