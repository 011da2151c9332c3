/* SPDX-License-Identifier: Apache-2.0
 * Launches (emulation.h): checked by the caller's thread, run by the stream's. */
#include "tests/cuda/emulation/emulation.h"

#include "tests/cuda/emulation/cudart.h"
#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/report.h"
#include "tests/cuda/emulation/stream.h"

#include <map>
#include <mutex>

enum { LAUNCH_GRID_YZ_MAX = 65535, LAUNCH_GRID_X_MAX = 0x7fffffff, LAUNCH_BLOCK_Z_MAX = 64 };

/* Never destroyed: streams may outlive main. */
static std::mutex *const launch_lock = new std::mutex();
static std::map<const void *, int> *const launch_shared_max = new std::map<const void *, int>();

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
	if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
		if (value < 0 || value > EMULATION_SHARED_MAX)
			return cudaErrorInvalidValue;
		std::lock_guard<std::mutex> held(*launch_lock);
		(*launch_shared_max)[function] = value;
	}
	return cudaSuccess;
}

static size_t launch_dynamic_max(const void *function)
{
	std::lock_guard<std::mutex> held(*launch_lock);
	auto at = launch_shared_max->find(function);
	size_t asked = at == launch_shared_max->end() ? 0 : (size_t)at->second;
	return asked > EMULATION_SHARED_STATIC_MAX ? asked : (size_t)EMULATION_SHARED_STATIC_MAX;
}

static void launch_check(const struct emulation_launch *launch)
{
	dim3 g = launch->grid, b = launch->block;
	uint64_t threads = (uint64_t)b.x * b.y * b.z;
	if (threads == 0 || threads > EMULATION_THREADS_MAX || b.z > LAUNCH_BLOCK_Z_MAX)
		emulation_report("kernel %s: a block of %u x %u x %u threads, of at most %d", launch->name,
			b.x, b.y, b.z, EMULATION_THREADS_MAX);
	if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > LAUNCH_GRID_X_MAX || g.y > LAUNCH_GRID_YZ_MAX ||
		g.z > LAUNCH_GRID_YZ_MAX)
		emulation_report("kernel %s: a grid of %u x %u x %u blocks", launch->name, g.x, g.y, g.z);
	size_t most = launch_dynamic_max(launch->function);
	if (launch->shared_bytes > most)
		emulation_report("kernel %s: %zu bytes of dynamic shared memory, of at most %zu by "
						 "cudaFuncSetAttribute (at most %d on the device)",
			launch->name, launch->shared_bytes, most, EMULATION_SHARED_MAX);
}

void emulation_launch_enqueue(cudaStream_t handle, struct emulation_launch launch)
{
	launch_check(&launch);
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		emulation_report("kernel %s: launched on a stream that is none", launch.name);
	unsigned number = stream_number(stream);
	cudart_return(graph_work(
		stream, GRAPH_KERNEL, 0, [launch, number]() { emulation_block_run_all(&launch, number); }));
}

cudaError_t emulation_enqueue(cudaStream_t handle, std::function<void()> work)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		emulation_report("work for a stream that is none");
	return graph_work(stream, GRAPH_KERNEL, 0, std::move(work));
}
