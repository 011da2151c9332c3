/* SPDX-License-Identifier: Apache-2.0
 * Records parts of a step and gives them to the device as one (graph.h). */
#include "workers/engine/cuda/graph.h"

#include <stdlib.h>
#include <string.h>

/* Kernels get what changes between steps by value. A part whose key is the same as before has the
 * same values: its graph is launched again, and the host has nothing else to do. Any other is
 * captured anew, and the executable graph takes the new values over by cudaGraphExecUpdate: that
 * costs the host as much as plain launches do, saves the device the gaps between kernels, and no
 * kernel can be forgotten, which it could where single values were written to the device. */

/* So often may an executable graph be made anew since it could not be updated: it takes the host
 * long, and a part that changes its form each time gains nothing. */
enum { REFUSALS_MAX = 4 };

void cuda_graphs_open(struct cuda_graphs *g, cudaStream_t stream)
{
	const char *given = getenv("TRAINYARD_CUDA_GRAPHS");
	*g = (struct cuda_graphs){ .off = given && strcmp(given, "off") == 0, .stream = stream };
}

static void drop(struct cuda_graph_part *p)
{
	if (p->exec)
		(void)cudaGraphExecDestroy(p->exec); /* one under way ends first */
	p->exec = NULL;
	p->key = 0;
}

static bool give_up(struct cuda_graph_part *p)
{
	drop(p);
	p->off = true;
	(void)cudaGetLastError(); /* not of the operations, which will be given again */
	return false;
}

void cuda_graphs_close(struct cuda_graphs *g)
{
	for (int i = 0; i < BACKEND_PARTS; i++)
		drop(&g->parts[i]);
}

bool cuda_graphs_spoil(struct cuda_graphs *g)
{
	g->spoiled |= g->recording;
	return g->recording;
}

bool cuda_graphs_replay(struct cuda_graphs *g, int part, uint64_t key, cudaError_t *ret_rc)
{
	struct cuda_graph_part *p = &g->parts[part];
	if (g->off || key == 0 || p->key != key || !p->exec)
		return false;
	*ret_rc = cudaGraphLaunch(p->exec, g->stream);
	return true;
}

/* A part's first run is plain: kernels are loaded and cuBLASLt's algorithms are found then, which a
 * capture may forbid. */
bool cuda_graphs_record(struct cuda_graphs *g, int part)
{
	struct cuda_graph_part *p = &g->parts[part];
	if (g->off || p->off || !p->seen) {
		p->seen = true;
		return false;
	}
	if (cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
		return give_up(p);
	g->recording = true;
	g->spoiled = false;
	g->part = part;
	return true;
}

/* The executable graph takes over what was captured, or is made of it. */
static bool take_over(struct cuda_graph_part *p, cudaGraph_t graph)
{
	cudaGraphExecUpdateResultInfo info;
	if (p->exec && cudaGraphExecUpdate(p->exec, graph, &info) == cudaSuccess)
		return true;
	(void)cudaGetLastError();
	if (p->exec && ++p->refusals > REFUSALS_MAX)
		return false;
	drop(p);
	return cudaGraphInstantiate(&p->exec, graph, 0) == cudaSuccess;
}

bool cuda_graphs_recorded(struct cuda_graphs *g, uint64_t key, cudaError_t *ret_rc)
{
	struct cuda_graph_part *p = &g->parts[g->part];
	cudaGraph_t graph = NULL;
	cudaError_t rc = cudaStreamEndCapture(g->stream, &graph);
	g->recording = false;
	bool right = rc == cudaSuccess && graph && !g->spoiled && take_over(p, graph);
	if (graph)
		(void)cudaGraphDestroy(graph);
	if (!right)
		return give_up(p);
	p->key = key;
	*ret_rc = cudaGraphLaunch(p->exec, g->stream);
	return true;
}
