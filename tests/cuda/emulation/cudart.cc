/* SPDX-License-Identifier: Apache-2.0
 * The rest of the cudart stand-in: devices, streams, events, errors. Linked in the place of
 * libcudart_static, under the real names; a call that is missing here is a link error. */
#include "tests/cuda/emulation/cudart.h"

#include "tests/cuda/emulation/graph.h"
#include "tests/cuda/emulation/memory.h"
#include "tests/cuda/emulation/stream.h"

#include <cuda_runtime_api.h>

#include <new>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulation/block.h"

enum {
	CUDART_DEVICES_MAX = 8,
	CUDART_MULTIPROCESSORS = 4, /* few: grids that loop do loop */
	CUDART_CAPABILITY_MAJOR = 9,
	CUDART_CAPABILITY_MINOR = 0,
};

static __thread int cudart_device;
static __thread cudaError_t cudart_last;

cudaError_t cudart_return(cudaError_t rc)
{
	if (rc != cudaSuccess && rc != cudaErrorNotReady)
		cudart_last = rc;
	return rc;
}

/* -------------------------------------------------------------------------------------- devices */

/* TRAINYARD_EMULATION_DEVICES, or 1. */
cudaError_t cudaGetDeviceCount(int *ret_count)
{
	const char *given = getenv("TRAINYARD_EMULATION_DEVICES");
	long count = given != nullptr ? strtol(given, nullptr, 10) : 1;
	*ret_count = 0;
	if (count <= 0)
		return cudart_return(cudaErrorNoDevice);
	*ret_count = count < CUDART_DEVICES_MAX ? (int)count : CUDART_DEVICES_MAX;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ret_device)
{
	*ret_device = cudart_device;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	int count;
	if (cudaGetDeviceCount(&count) != cudaSuccess || device < 0 || device >= count)
		return cudart_return(cudaErrorInvalidDevice);
	cudart_device = device;
	return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *ret_value, enum cudaDeviceAttr attribute, int)
{
	switch (attribute) {
	case cudaDevAttrMultiProcessorCount: *ret_value = CUDART_MULTIPROCESSORS; return cudaSuccess;
	case cudaDevAttrComputeCapabilityMajor:
		*ret_value = CUDART_CAPABILITY_MAJOR;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMinor:
		*ret_value = CUDART_CAPABILITY_MINOR;
		return cudaSuccess;
	case cudaDevAttrWarpSize: *ret_value = EMULATION_WARP; return cudaSuccess;
	case cudaDevAttrMaxThreadsPerBlock: *ret_value = EMULATION_THREADS_MAX; return cudaSuccess;
	case cudaDevAttrMaxSharedMemoryPerBlock:
		*ret_value = EMULATION_SHARED_STATIC_MAX;
		return cudaSuccess;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*ret_value = EMULATION_SHARED_MAX;
		return cudaSuccess;
	default: return cudart_return(cudaErrorInvalidValue);
	}
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
	int count;
	size_t free_bytes;
	if (cudaGetDeviceCount(&count) != cudaSuccess || device < 0 || device >= count)
		return cudart_return(cudaErrorInvalidDevice);
	memset(ret, 0, sizeof(*ret));
	strncpy(ret->name, "emulated", sizeof(ret->name) - 1);
	ret->uuid.bytes[0] = 'E';
	ret->uuid.bytes[1] = (char)device;
	cudaMemGetInfo(&free_bytes, &ret->totalGlobalMem);
	ret->sharedMemPerBlock = EMULATION_SHARED_STATIC_MAX;
	ret->sharedMemPerBlockOptin = EMULATION_SHARED_MAX;
	ret->warpSize = EMULATION_WARP;
	ret->maxThreadsPerBlock = EMULATION_THREADS_MAX;
	ret->multiProcessorCount = CUDART_MULTIPROCESSORS;
	ret->major = CUDART_CAPABILITY_MAJOR;
	ret->minor = CUDART_CAPABILITY_MINOR;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *ret_version)
{
	*ret_version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *ret_version)
{
	*ret_version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	cudaError_t rc = graph_unsafe();
	if (rc != cudaSuccess)
		return cudart_return(rc);
	stream_wait_all();
	memory_check();
	return cudaSuccess;
}

/* --------------------------------------------------------------------------------------- errors */

cudaError_t cudaGetLastError(void)
{
	cudaError_t rc = cudart_last;
	cudart_last = cudaSuccess;
	return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
	return cudart_last;
}

static const struct cudart_error {
	cudaError_t rc;
	const char *name;
	const char *text;
} cudart_errors[] = {
	{ cudaSuccess, "cudaSuccess", "no error" },
	{ cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
	{ cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
	{ cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
	{ cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
	{ cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
	{ cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
	{ cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
		"operation not permitted when stream is capturing" },
	{ cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
		"operation failed due to a previous error during capture" },
	{ cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
		"operation not permitted on an event last recorded in a capturing stream" },
};

static const struct cudart_error *cudart_error_of(cudaError_t rc)
{
	static const struct cudart_error other = { cudaErrorUnknown, "cudaErrorUnknown",
		"another error" };
	for (const struct cudart_error &e : cudart_errors)
		if (e.rc == rc)
			return &e;
	return &other;
}

const char *cudaGetErrorName(cudaError_t rc)
{
	return cudart_error_of(rc)->name;
}

const char *cudaGetErrorString(cudaError_t rc)
{
	return cudart_error_of(rc)->text;
}

/* -------------------------------------------------------------------------------------- streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret_stream, unsigned, int)
{
	*ret_stream = stream_create();
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_stream, unsigned flags)
{
	return cudaStreamCreateWithPriority(ret_stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *ret_stream)
{
	return cudaStreamCreateWithPriority(ret_stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	*ret_least = 0;
	*ret_greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
	struct CUstream_st *stream = handle == nullptr ? nullptr : stream_of(handle);
	if (stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	cudaError_t rc = graph_host(stream);
	if (rc != cudaSuccess)
		return cudart_return(rc);
	stream_destroy(stream);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	cudaError_t rc = graph_host(stream);
	if (rc != cudaSuccess)
		return cudart_return(rc);
	stream_wait(stream);
	memory_check();
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	cudaError_t rc = graph_host(stream);
	if (rc != cudaSuccess)
		return cudart_return(rc);
	return stream_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr || function == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	return cudart_return(
		graph_work(stream, GRAPH_HOST, 0, [function, argument]() { function(argument); }));
}

/* --------------------------------------------------------------------------------------- events */

/* The mark of the latest record; none: an event that nobody recorded has passed. */
struct CUevent_st {
	std::shared_ptr<struct stream_mark> mark;
	std::shared_ptr<struct graph_mark> captured; /* instead, when it was recorded in a capture */
	unsigned flags;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags)
{
	*ret_event = new CUevent_st{ nullptr, nullptr, flags };
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *ret_event)
{
	return cudaEventCreateWithFlags(ret_event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	if (event == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (event == nullptr || stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	event->captured = graph_mark_add(stream);
	event->mark = event->captured == nullptr ? stream_mark_add(stream) : nullptr;
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	if (event == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	cudaError_t rc = event->captured == nullptr ? graph_unsafe() : graph_mark_host(event->captured);
	if (rc != cudaSuccess)
		return cudart_return(rc);
	return event->mark == nullptr || stream_mark_passed(event->mark) ? cudaSuccess
																	 : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (event == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	if (event->captured != nullptr)
		return cudart_return(graph_mark_host(event->captured));
	if (event->mark != nullptr)
		stream_mark_wait(event->mark);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t begin, cudaEvent_t end)
{
	if (begin == nullptr || end == nullptr || begin->mark == nullptr || end->mark == nullptr ||
		((begin->flags | end->flags) & cudaEventDisableTiming) != 0)
		return cudart_return(cudaErrorInvalidResourceHandle);
	if (!stream_mark_passed(begin->mark) || !stream_mark_passed(end->mark))
		return cudaErrorNotReady;
	*ret_ms = (float)stream_mark_between(begin->mark.get(), end->mark.get()) * 1e-6f;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
	struct CUstream_st *stream = stream_of(handle);
	if (event == nullptr || stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	if (event->captured != nullptr)
		return cudart_return(graph_mark_wait(stream, event->captured));
	if (event->mark != nullptr) {
		if (graph_refuse(stream) != cudaSuccess) /* work from outside of the capture */
			return cudart_return(cudaErrorStreamCaptureIsolation);
		std::shared_ptr<struct stream_mark> mark = event->mark;
		stream_add(stream, [mark]() { stream_mark_wait(mark); });
	}
	return cudaSuccess;
}
