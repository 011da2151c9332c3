/* SPDX-License-Identifier: Apache-2.0
 * cudaMalloc and its kin: host memory that is poisoned when fresh, with red zones around it, in
 * pages of its own, so that after a free nobody reaches it. */
#include "tests/cuda/emulation/memory.h"

#include "tests/cuda/emulation/cudart.h"
#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/report.h"
#include "tests/cuda/emulation/stream.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

enum { MEMORY_ALIGN = 256, MEMORY_PAGE = 4096, MEMORY_ZONE_BYTES = 4096, MEMORY_CLOSED_MAX = 256 };

/* [zone][bytes][rest up to a page, a zone too][closed page] */
struct memory_block {
	unsigned char *pages;
	size_t pages_bytes;
	unsigned char *p;
	size_t bytes;
	size_t zone_bytes; /* behind p */
};

/* Never destroyed: streams may outlive main. */
static struct memory_world {
	std::mutex lock;
	std::map<const void *, struct memory_block> blocks;
	std::map<const void *, size_t> pinned;
	std::deque<struct memory_block> closed; /* freed, the latest last */
	size_t used;
} *const world = new memory_world();

/* TRAINYARD_EMULATION_MEMORY_BYTES, or 4 GiB. */
static size_t memory_total(void)
{
	const char *given = getenv("TRAINYARD_EMULATION_MEMORY_BYTES");
	return given != nullptr ? strtoull(given, nullptr, 0) : (size_t)4 << 30;
}

static void memory_check_block(const struct memory_block *b)
{
	if (emulation_zone_broken(b->p - MEMORY_ZONE_BYTES, MEMORY_ZONE_BYTES))
		emulation_report(
			"device memory of %zu bytes was written to before its beginning", b->bytes);
	if (emulation_zone_broken(b->p + b->bytes, b->zone_bytes))
		emulation_report("device memory of %zu bytes was written to beyond its end", b->bytes);
}

void memory_check(void)
{
	std::lock_guard<std::mutex> held(world->lock);
	for (auto &block : world->blocks)
		memory_check_block(&block.second);
}

cudaError_t cudaMalloc(void **ret_p, size_t bytes)
{
	if (bytes == 0) {
		*ret_p = nullptr;
		return cudaSuccess;
	}
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	std::lock_guard<std::mutex> held(world->lock);
	if (bytes > memory_total() || world->used > memory_total() - bytes)
		return cudaErrorMemoryAllocation;
	struct memory_block b = {};
	b.bytes = bytes;
	size_t body = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
	body = (body + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
	b.pages_bytes = MEMORY_ZONE_BYTES + body + MEMORY_PAGE;
	void *pages = mmap(nullptr, b.pages_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pages == MAP_FAILED)
		return cudaErrorMemoryAllocation;
	b.pages = static_cast<unsigned char *>(pages);
	mprotect(b.pages + b.pages_bytes - MEMORY_PAGE, MEMORY_PAGE, PROT_NONE);
	/* As far to the closed page as the alignment of cudaMalloc lets it. */
	size_t before = (body - bytes) / MEMORY_ALIGN * MEMORY_ALIGN;
	b.p = b.pages + MEMORY_ZONE_BYTES + before;
	b.zone_bytes = body - before - bytes;
	emulation_poison(b.p, bytes);
	emulation_zone_set(b.p - MEMORY_ZONE_BYTES, MEMORY_ZONE_BYTES);
	emulation_zone_set(b.p + bytes, b.zone_bytes);
	world->blocks[b.p] = b;
	world->used += bytes;
	*ret_p = b.p;
	return cudaSuccess;
}

/* The host may use it too, which here it may anyway. */
cudaError_t cudaMallocManaged(void **ret_p, size_t bytes, unsigned)
{
	return cudaMalloc(ret_p, bytes);
}

cudaError_t cudaFree(void *p)
{
	if (p == nullptr)
		return cudaSuccess;
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	stream_wait_all(); /* as cudart does */
	std::lock_guard<std::mutex> held(world->lock);
	auto at = world->blocks.find(p);
	if (at == world->blocks.end())
		return cudaErrorInvalidValue;
	struct memory_block b = at->second;
	memory_check_block(&b);
	world->blocks.erase(at);
	world->used -= b.bytes;
	emulation_zone_clear(b.pages, b.pages_bytes - MEMORY_PAGE);
	/* Its addresses stay closed for a while: nobody else gets them. */
	mmap(b.pages, b.pages_bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	world->closed.push_back(b);
	if (world->closed.size() > MEMORY_CLOSED_MAX) {
		munmap(world->closed.front().pages, world->closed.front().pages_bytes);
		world->closed.pop_front();
	}
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	std::lock_guard<std::mutex> held(world->lock);
	*ret_total = memory_total();
	*ret_free = *ret_total - world->used;
	return cudaSuccess;
}

/* Pinned memory: the host's own allocator, which has red zones under ASan. */
cudaError_t cudaHostAlloc(void **ret_p, size_t bytes, unsigned)
{
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	void *p = nullptr;
	if (bytes > 0 && posix_memalign(&p, MEMORY_PAGE, bytes) != 0)
		return cudaErrorMemoryAllocation;
	if (p != nullptr)
		emulation_poison(p, bytes);
	std::lock_guard<std::mutex> held(world->lock);
	if (p != nullptr)
		world->pinned[p] = bytes;
	*ret_p = p;
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ret_p, size_t bytes)
{
	return cudaHostAlloc(ret_p, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *p)
{
	if (p == nullptr)
		return cudaSuccess;
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	stream_wait_all();
	std::lock_guard<std::mutex> held(world->lock);
	if (world->pinned.erase(p) == 0)
		return cudaErrorInvalidValue;
	free(p);
	return cudaSuccess;
}

/* Whether [p, p + bytes) lies in one device allocation; a device pointer that does not is a bug. */
static bool memory_device(const void *p, size_t bytes)
{
	const unsigned char *from = static_cast<const unsigned char *>(p);
	std::lock_guard<std::mutex> held(world->lock);
	auto at = world->blocks.upper_bound(p);
	if (at == world->blocks.begin())
		return false;
	const struct memory_block *b = &(--at)->second;
	if (from >= b->p + b->bytes + b->zone_bytes)
		return false;
	if (from + bytes > b->p + b->bytes)
		emulation_report("a copy or fill of %zu bytes at offset %zu of device memory of %zu bytes",
			bytes, (size_t)(from - b->p), b->bytes);
	return true;
}

static bool memory_kind_fits(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	bool to_device = memory_device(to, bytes), from_device = memory_device(from, bytes);
	switch (kind) {
	case cudaMemcpyHostToHost: return !to_device && !from_device;
	case cudaMemcpyHostToDevice: return to_device && !from_device;
	case cudaMemcpyDeviceToHost: return !to_device && from_device;
	case cudaMemcpyDeviceToDevice: return to_device && from_device;
	default: return true;
	}
}

static bool memory_pinned(const void *p)
{
	const unsigned char *at = static_cast<const unsigned char *>(p);
	std::lock_guard<std::mutex> held(world->lock);
	auto next = world->pinned.upper_bound(p);
	if (next == world->pinned.begin())
		return false;
	--next;
	return at < static_cast<const unsigned char *>(next->first) + next->second;
}

/* Memory that is not pinned goes through cudart's own: what is copied from it is taken at once,
 * what is copied to it is there on return. Both is nothing that a graph could do again. */
cudaError_t cudaMemcpyAsync(
	void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudaErrorInvalidResourceHandle;
	if (bytes == 0)
		return cudaSuccess;
	if (!memory_kind_fits(to, from, bytes, kind))
		return cudaErrorInvalidValue;
	bool from_pageable = kind == cudaMemcpyHostToDevice && !memory_pinned(from);
	bool to_pageable = kind == cudaMemcpyDeviceToHost && !memory_pinned(to);
	if ((from_pageable || to_pageable) && graph_refuse(stream) != cudaSuccess)
		return cudart_return(cudaErrorStreamCaptureUnsupported);
	if (from_pageable) {
		const unsigned char *begin = static_cast<const unsigned char *>(from);
		std::vector<unsigned char> taken(begin, begin + bytes);
		stream_add(stream, [to, taken]() { memcpy(to, taken.data(), taken.size()); });
		return cudaSuccess;
	}
	cudaError_t rc = graph_work(stream, GRAPH_COPY, (int)kind, [=]() { memcpy(to, from, bytes); });
	if (to_pageable)
		stream_wait(stream);
	return cudart_return(rc);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	rc = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
	if (rc == cudaSuccess)
		stream_wait(stream_of(nullptr));
	return rc;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
	size_t width, size_t rows, enum cudaMemcpyKind kind, cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudaErrorInvalidResourceHandle;
	if (width == 0 || rows == 0)
		return cudaSuccess;
	if (width > to_pitch || width > from_pitch || !memory_kind_fits(to, from, width, kind))
		return cudaErrorInvalidValue;
	memory_device(to, to_pitch * (rows - 1) + width);
	memory_device(from, from_pitch * (rows - 1) + width);
	return cudart_return(graph_work(stream, GRAPH_COPY, (int)kind, [=]() {
		for (size_t i = 0; i < rows; i++)
			memcpy(static_cast<char *>(to) + i * to_pitch,
				static_cast<const char *>(from) + i * from_pitch, width);
	}));
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudaErrorInvalidResourceHandle;
	if (bytes == 0)
		return cudaSuccess;
	if (!memory_device(p, bytes))
		return cudaErrorInvalidValue;
	return cudart_return(graph_work(stream, GRAPH_FILL, 0, [=]() { memset(p, value, bytes); }));
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
	return cudaMemsetAsync(p, value, bytes, nullptr);
}
