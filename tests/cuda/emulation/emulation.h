/* SPDX-License-Identifier: Apache-2.0
 * The host's twin of nvcc for kernel files: workers/engine/cuda/kernel.h includes this where
 * CUDA_EMULATION is defined, and nobody else but tests/cuda. Threads of a block are fibres
 * (block.h) that run on the thread of the launch's stream (stream.h). */
#pragma once

#include "tests/cuda/emulation/device_math.h"
#include "tests/cuda/emulation/device_sync.h"

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

/* The headers leave these to the compiler that knows them. */
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ static_assert(false, "shared memory is declared by CUDA_SHARED");

/* ------------------------------------------------------------------------------------ launches */

/* A launch as its stream keeps it: geometry, and what one thread runs. */
struct emulation_launch {
	const char *name;
	dim3 grid;
	dim3 block;
	size_t shared_bytes;
	const void *function; /* what cudaFuncSetAttribute was told about */
	std::function<void()> thread;
};

/* Checks the geometry (a wrong one ends the process with a report) and puts the launch into the
 * stream's queue. */
void emulation_launch_enqueue(cudaStream_t stream, struct emulation_launch launch);

/* For other stand-ins (cuBLASLt, NCCL): runs work in the stream's order on the stream's thread,
 * where device memory may be touched. */
cudaError_t emulation_enqueue(cudaStream_t stream, std::function<void()> work);

/* Arguments are copied here, as by a launch: what they were made of may change at once. */
template <typename... P, typename... A>
static inline void emulation_launch_call(const char *name, dim3 grid, dim3 block,
	size_t shared_bytes, cudaStream_t stream, void (*kernel)(P...), A &&...arguments)
{
	auto copy = std::make_shared<std::tuple<std::decay_t<P>...>>(std::forward<A>(arguments)...);
	emulation_launch_enqueue(stream,
		{ name, grid, block, shared_bytes, (const void *)kernel,
			[kernel, copy]() { std::apply(kernel, *copy); } });
}

#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, ...)                             \
	do {                                                                                \
		emulation_launch_call(#kernel, dim3(grid), dim3(block), (size_t)(shared_bytes), \
			cuda_stream(), kernel, ##__VA_ARGS__);                                      \
		cuda_launched(#kernel);                                                         \
	} while (0)

/* --------------------------------------------------------------------------------- shared memory
 */

/* The running block's array of a place in the source: poisoned when the block began, with red zones
 * around it. `place` is the address of something that only this place has. */
void *emulation_shared(const void *place, size_t bytes, const char *name);
void *emulation_shared_dynamic(void);

#define CUDA_SHARED(type, name, count)                                   \
	typedef type name##_emulated_array[count];                           \
	static char name##_emulated_place;                                   \
	name##_emulated_array &name = *static_cast<name##_emulated_array *>( \
		emulation_shared(&name##_emulated_place, sizeof(name##_emulated_array), #name))
#define CUDA_SHARED_DYNAMIC(type, name) \
	type *const name = static_cast<type *>(emulation_shared_dynamic())

/* nvcc's headers have this one for kernels. */
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(
	void (*kernel)(P...), enum cudaFuncAttribute attribute, int value)
{
	return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
