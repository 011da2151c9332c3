/* SPDX-License-Identifier: Apache-2.0
 * The CUDA device: opening, memory, copies, failures, and the numbers that kernels leave for the
 * host. Called through the tables by the engine's thread, and by the kernels' launchers. */
#include "workers/engine/cuda/device.h"

#include "workers/comm/comm.h"
#include "workers/engine/cuda/cuda.h"
#include "workers/engine/cuda/gemm.h"
#include "workers/engine/cuda/graph.h"
#include "workers/engine/engine.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { CAPABILITY_MIN = 80 }; /* bf16 and TF32 on tensor cores */

struct backend_ctx {
	int index, threads, multiprocessors;
	cudaStream_t stream;
	cudaEvent_t put; /* behind the last copy from the host */
	/* What is put ahead has a stream of its own. */
	cudaStream_t ahead;
	cudaEvent_t arrived; /* behind the last copy from the host there */
	cudaEvent_t taken;   /* behind the last copy from where it has arrived */
	struct cuda_graphs graphs;
	void *mapped[BACKEND_HOST + 1];
	int64_t peak_bytes;
	bool tf32;
	struct cuda_gemm_ctx *gemm;
	struct err failure; /* the first; code 0 = none */
	double *results;    /* pinned: kernels write here; one more than there may be */
	double *result_of[CUDA_RESULTS_MAX];
	int result_count;
};

static _Thread_local struct backend_ctx *current;

/* ------------------------------------------------------------------------------------- failures */

static int failed(cudaError_t rc, int code, const char *what, struct err *err)
{
	return err_set(
		err, code, NULL, "%s: %s (%s)", what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* What fails while operations are recorded may be the recording's fault: they will be given again.
 */
static void keep(struct backend_ctx *ctx, cudaError_t rc, const char *what)
{
	if (rc != cudaSuccess && !cuda_graphs_spoil(&ctx->graphs) && ctx->failure.code == 0)
		(void)failed(rc, ERR_UNAVAILABLE, what, &ctx->failure);
}

void cuda_failed(cudaError_t rc, const char *what)
{
	keep(current, rc, what);
}

void cuda_failed_because(const char *what, const char *why)
{
	if (!cuda_graphs_spoil(&current->graphs) && current->failure.code == 0)
		(void)err_set(&current->failure, ERR_UNAVAILABLE, NULL, "%s: %s", what, why);
}

void cuda_launched(const char *kernel)
{
	keep(current, cudaGetLastError(), kernel);
}

cudaStream_t cuda_stream(void)
{
	return current->stream;
}

bool cuda_tf32(void)
{
	return current->tf32;
}

int cuda_multiprocessors(void)
{
	return current->multiprocessors;
}

/* ------------------------------------------------------------------------------------ the device
 */

/* The first device, when it is one that the kernels were compiled for. */
static int find_device(int index, struct err *err)
{
	int count = 0, major = 0, minor = 0;
	cudaError_t rc = cudaGetDeviceCount(&count);
	if (rc != cudaSuccess)
		return failed(rc, ERR_UNAVAILABLE, "no CUDA device can be used", err);
	if (count == 0)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"no CUDA device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES");
	rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
	if (rc != cudaSuccess)
		return failed(rc, ERR_UNAVAILABLE, "the CUDA device", err);
	if (major * 10 + minor < CAPABILITY_MIN)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"the CUDA device has compute capability %d.%d, at least %d.%d is needed", major, minor,
			CAPABILITY_MIN / 10, CAPABILITY_MIN % 10);
	return 0;
}

int engine_cuda_find(struct err *err)
{
	int rc = find_device(0, err);
	if (rc < 0)
		(void)cudaGetLastError(); /* said here, and not by the next launch */
	return rc;
}

static int open_device(struct backend_ctx *ctx, struct err *err)
{
	int rc = find_device(ctx->index, err);
	if (rc < 0)
		return rc;
	cudaError_t failure = cudaSetDevice(ctx->index);
	if (failure == cudaSuccess)
		failure = cudaDeviceGetAttribute(
			&ctx->multiprocessors, cudaDevAttrMultiProcessorCount, ctx->index);
	return failure == cudaSuccess ? 0 : failed(failure, ERR_UNAVAILABLE, "the CUDA device", err);
}

static int open_stream(struct backend_ctx *ctx, struct err *err)
{
	void *results = NULL;
	cudaError_t rc = cudaStreamCreateWithFlags(&ctx->stream, cudaStreamNonBlocking);
	if (rc == cudaSuccess)
		rc = cudaStreamCreateWithFlags(&ctx->ahead, cudaStreamNonBlocking);
	cudaEvent_t *const events[] = { &ctx->put, &ctx->arrived, &ctx->taken };
	for (size_t i = 0; i < ARRAY_LEN(events) && rc == cudaSuccess; i++)
		rc = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
	if (rc == cudaSuccess)
		rc = cudaHostAlloc(
			&results, (CUDA_RESULTS_MAX + 1) * sizeof(*ctx->results), cudaHostAllocDefault);
	ctx->results = results;
	return rc == cudaSuccess ? 0 : failed(rc, ERR_UNAVAILABLE, "the CUDA device", err);
}

int cuda_open(int threads, struct backend_ctx **ret, struct err *err)
{
	struct backend_ctx *ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the device");
	ctx->threads = threads;
	int rc = open_device(ctx, err);
	if (!rc)
		rc = open_stream(ctx, err);
	if (!rc)
		rc = cuda_gemm_create(&ctx->gemm, err);
	if (rc) {
		cuda_close(ctx);
		return rc;
	}
	cuda_graphs_open(&ctx->graphs, ctx->stream);
	cuda_enter(ctx);
	*ret = ctx;
	return 0;
}

void cuda_close(struct backend_ctx *ctx)
{
	if (!ctx)
		return;
	(void)cudaSetDevice(ctx->index);
	if (ctx->ahead)
		(void)cudaStreamSynchronize(ctx->ahead);
	if (ctx->stream)
		(void)cudaStreamSynchronize(ctx->stream);
	cuda_graphs_close(&ctx->graphs);
	cuda_gemm_destroy(ctx->gemm);
	if (ctx->mapped[BACKEND_DEVICE])
		(void)cudaFree(ctx->mapped[BACKEND_DEVICE]);
	if (ctx->mapped[BACKEND_HOST])
		(void)cudaFreeHost(ctx->mapped[BACKEND_HOST]);
	if (ctx->results)
		(void)cudaFreeHost(ctx->results);
	const cudaEvent_t events[] = { ctx->put, ctx->arrived, ctx->taken };
	for (size_t i = 0; i < ARRAY_LEN(events); i++)
		if (events[i])
			(void)cudaEventDestroy(events[i]);
	if (ctx->ahead)
		(void)cudaStreamDestroy(ctx->ahead);
	if (ctx->stream)
		(void)cudaStreamDestroy(ctx->stream);
	if (current == ctx)
		current = NULL;
	free(ctx);
}

void cuda_enter(struct backend_ctx *ctx)
{
	current = ctx;
	cuda_gemm_enter(ctx->gemm);
	keep(ctx, cudaSetDevice(ctx->index), "the CUDA device");
	omp_set_num_threads(ctx->threads);
}

void cuda_group_device(const struct backend_ctx *ctx, struct comm_device *ret)
{
	*ret = (struct comm_device){ .index = ctx->index, .stream = ctx->stream };
}

int cuda_finish(struct backend_ctx *ctx, struct err *err)
{
	keep(ctx, cudaStreamSynchronize(ctx->stream), "the CUDA device");
	for (int i = 0; i < ctx->result_count; i++)
		*ctx->result_of[i] = ctx->results[i];
	ctx->result_count = 0;
	if (ctx->failure.code < 0)
		*err = ctx->failure;
	return ctx->failure.code;
}

/* All that open takes have it. */
int cuda_allow_tf32(struct backend_ctx *ctx, struct err *err)
{
	ctx->tf32 = true;
	return 0;
}

double *cuda_result(double *ret)
{
	struct backend_ctx *ctx = current;
	if (cuda_graphs_spoil(&ctx->graphs)) /* the next time it would be another place */
		return &ctx->results[CUDA_RESULTS_MAX];
	if (ctx->result_count == CUDA_RESULTS_MAX) {
		if (ctx->failure.code == 0)
			(void)err_set(&ctx->failure, ERR_INTERNAL, NULL,
				"more than %d numbers were asked of the device at once", CUDA_RESULTS_MAX);
		return &ctx->results[CUDA_RESULTS_MAX];
	}
	ctx->result_of[ctx->result_count] = ret;
	return &ctx->results[ctx->result_count++];
}

/* --------------------------------------------------------------------------------------- memory */

int cuda_map(
	struct backend_ctx *ctx, enum backend_memory where, int64_t bytes, void **ret, struct err *err)
{
	void *data = NULL;
	cudaError_t rc = where == BACKEND_DEVICE
		? cudaMalloc(&data, (size_t)bytes)
		: cudaHostAlloc(&data, (size_t)bytes, cudaHostAllocDefault);
	if (rc != cudaSuccess) {
		(void)cudaGetLastError(); /* said here, and not by the next launch */
		return err_set(err, ERR_NO_MEMORY, NULL, "%s refused %lld bytes: %s",
			where == BACKEND_DEVICE ? "the device" : "pinned host memory", (long long)bytes,
			cudaGetErrorString(rc));
	}
	ctx->mapped[where] = data;
	ctx->peak_bytes += bytes;
	if (where == BACKEND_HOST)
		memset(data, 0, (size_t)bytes);
	else
		keep(ctx, cudaMemsetAsync(data, 0, (size_t)bytes, ctx->stream), "clearing memory");
	*ret = data;
	return 0;
}

int64_t cuda_memory_bytes(const struct backend_ctx *ctx)
{
	return ctx->peak_bytes;
}

/* What the host has now, a graph would not copy again. */
void cuda_put_of(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes)
{
	if (cuda_graphs_spoil(&ctx->graphs))
		return;
	keep(ctx, cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, ctx->stream),
		"copying to the device");
	keep(ctx, cudaEventRecord(ctx->put, ctx->stream), "copying to the device");
}

void cuda_put(void *device, const void *host, int64_t bytes)
{
	cuda_put_of(current, device, host, bytes);
}

void cuda_put_wait(struct backend_ctx *ctx)
{
	keep(ctx, cudaEventSynchronize(ctx->put), "copying to the device");
	keep(ctx, cudaEventSynchronize(ctx->arrived), "copying to the device");
}

void cuda_get(struct backend_ctx *ctx, void *host, const void *device, int64_t bytes)
{
	if (cuda_graphs_spoil(&ctx->graphs)) {
		memset(host, 0, (size_t)bytes);
		return;
	}
	keep(ctx, cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, ctx->stream),
		"copying from the device");
	keep(ctx, cudaStreamSynchronize(ctx->stream), "the CUDA device");
	if (ctx->failure.code < 0)
		memset(host, 0, (size_t)bytes);
}

void cuda_copy(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes)
{
	keep(ctx, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, ctx->stream),
		"copying on the device");
}

/* -------------------------------------------------------------------------------- read ahead */

/* Behind the copy that took what was there before. */
void cuda_put_ahead(struct backend_ctx *ctx, void *device, const void *host, int64_t bytes)
{
	keep(ctx, cudaStreamWaitEvent(ctx->ahead, ctx->taken, 0), "copying ahead");
	keep(ctx, cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, ctx->ahead),
		"copying ahead");
	keep(ctx, cudaEventRecord(ctx->arrived, ctx->ahead), "copying ahead");
}

void cuda_take_ahead(struct backend_ctx *ctx, void *to, const void *from, int64_t bytes)
{
	keep(ctx, cudaStreamWaitEvent(ctx->stream, ctx->arrived, 0), "copying ahead");
	cuda_copy(ctx, to, from, bytes);
	keep(ctx, cudaEventRecord(ctx->taken, ctx->stream), "copying ahead");
}

/* ------------------------------------------------------------------------------------ graphs */

bool cuda_replay(struct backend_ctx *ctx, int part, uint64_t key)
{
	cudaError_t rc = cudaSuccess;
	bool done = cuda_graphs_replay(&ctx->graphs, part, key, &rc);
	keep(ctx, rc, "a recorded part of the step");
	return done;
}

bool cuda_record(struct backend_ctx *ctx, int part)
{
	return cuda_graphs_record(&ctx->graphs, part);
}

bool cuda_recorded(struct backend_ctx *ctx, uint64_t key)
{
	cudaError_t rc = cudaSuccess;
	bool done = cuda_graphs_recorded(&ctx->graphs, key, &rc);
	keep(ctx, rc, "a recorded part of the step");
	return done;
}
