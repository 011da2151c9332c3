/* SPDX-License-Identifier: Apache-2.0
 * Captures and graphs of the emulation itself: what is recorded, what runs, and that all which a
 * device forbids in a capture is refused here too. */
#include "tests/cuda/kernel_fixture.h"

#include <thread>

enum { CAPTURE_SEEDS = 3 };

/* Not commutative: the order shows. */
static __global__ void step_kernel(int *x, int times, int plus)
{
	*x = *x * times + plus;
}

static __global__ void join_kernel(int *x, const int *a, const int *b)
{
	*x = *a * 1000 + *b;
}

static void begin(void)
{
	fixture_right(
		cudaStreamBeginCapture(fixture_stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
		"begin");
}

static cudaGraph_t end(void)
{
	cudaGraph_t graph;
	fixture_right(
		cudaStreamEndCapture(fixture_stream, &graph) == cudaSuccess && graph != nullptr, "end");
	return graph;
}

/* The capture has come to nothing, and its stream works as before. */
static void spoilt(cudaError_t expected, const char *what)
{
	cudaGraph_t graph;
	fixture_right(cudaStreamEndCapture(fixture_stream, &graph) == expected, what);
	fixture_right(graph == nullptr, "a graph of a capture that was spoilt");
	cudaGetLastError();
	int *x = fixture_device(std::vector<int>{ 1 });
	CUDA_LAUNCH(step_kernel, 1, 1, 0, x, 2, 3);
	fixture_right(fixture_host(x, 1)[0] == 5, "the stream afterwards");
}

static cudaGraph_t chain(int *x, int plus)
{
	begin();
	cudaMemsetAsync(x, 0, sizeof(*x), fixture_stream);
	for (int i = 0; i < 3; i++)
		CUDA_LAUNCH(step_kernel, 1, 1, 0, x, 10, plus + i);
	return end();
}

/* Nothing runs while it is recorded; what a launch was given stays, whatever is updated later. */
static void replay(void)
{
	int *x = fixture_device(std::vector<int>{ 7 }), *pinned;
	cudaGraphExec_t exec;
	cudaGraphExecUpdateResultInfo info;
	cudaGraph_t first = chain(x, 1), second = chain(x, 4);
	fixture_right(fixture_host(x, 1)[0] == 7, "something ran while it was recorded");
	fixture_right(cudaHostAlloc((void **)&pinned, 3 * sizeof(int), 0) == cudaSuccess, "pinned");
	fixture_right(cudaGraphInstantiate(&exec, first, 0) == cudaSuccess, "instantiate");
	for (int i = 0; i < 3; i++) {
		if (i == 2)
			fixture_right(cudaGraphExecUpdate(exec, second, &info) == cudaSuccess, "update");
		fixture_right(cudaGraphLaunch(exec, fixture_stream) == cudaSuccess, "launch");
		cudaMemcpyAsync(&pinned[i], x, sizeof(int), cudaMemcpyDeviceToHost, fixture_stream);
	}
	fixture_right(cudaGraphExecDestroy(exec) == cudaSuccess, "destroyed under way");
	cudaStreamSynchronize(fixture_stream);
	fixture_right(pinned[0] == 123 && pinned[1] == 123 && pinned[2] == 456, "replays");
	fixture_right(cudaGraphDestroy(first) == cudaSuccess &&
			cudaGraphDestroy(first) == cudaErrorInvalidValue &&
			cudaGraphExecDestroy(exec) == cudaErrorInvalidValue,
		"destroy twice");
}

/* Another form is refused, and what there was stays. */
static void refused(void)
{
	int *x = fixture_device(std::vector<int>{ 7 });
	cudaGraphExec_t exec;
	cudaGraphExecUpdateResultInfo info;
	cudaGraph_t graph = chain(x, 1);
	cudaGraphInstantiate(&exec, graph, 0);
	begin();
	for (int i = 0; i < 4; i++)
		CUDA_LAUNCH(step_kernel, 1, 1, 0, x, 10, i);
	cudaGraph_t kind = end();
	begin();
	cudaMemsetAsync(x, 0, sizeof(*x), fixture_stream);
	cudaGraph_t shorter = end();
	fixture_right(cudaGraphExecUpdate(exec, kind, &info) == cudaErrorGraphExecUpdateFailure &&
			info.result == cudaGraphExecUpdateErrorNodeTypeChanged,
		"another kind");
	fixture_right(cudaGraphExecUpdate(exec, shorter, &info) == cudaErrorGraphExecUpdateFailure &&
			info.result == cudaGraphExecUpdateErrorTopologyChanged,
		"another number");
	cudaGraphLaunch(exec, fixture_stream);
	fixture_right(fixture_host(x, 1)[0] == 123, "the former graph");
}

/* Events carry a capture over to another stream, and back. */
static void branches(void)
{
	int *x = fixture_device(std::vector<int>{ 0, 0, 0 });
	cudaStream_t mine = fixture_stream, other;
	cudaEvent_t fork, join;
	cudaGraphExec_t exec;
	cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
	cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
	cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
	for (int joined = 1; joined >= 0; joined--) {
		begin();
		cudaEventRecord(fork, mine);
		cudaStreamWaitEvent(other, fork, 0);
		CUDA_LAUNCH(step_kernel, 1, 1, 0, x, 1, 1);
		fixture_stream = other;
		CUDA_LAUNCH(step_kernel, 1, 1, 0, x + 1, 1, 2);
		cudaEventRecord(join, other);
		fixture_stream = mine;
		if (joined == 0)
			continue;
		cudaStreamWaitEvent(mine, join, 0);
		CUDA_LAUNCH(join_kernel, 1, 1, 0, x + 2, x, x + 1);
		cudaGraph_t graph = end();
		fixture_right(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate");
		for (int i = 0; i < 4; i++)
			cudaGraphLaunch(exec, mine);
		fixture_right(fixture_host(x, 3)[2] == 4008, "both branches");
	}
	spoilt(cudaErrorStreamCaptureUnjoined, "a branch that was not joined");
	fixture_right(cudaStreamSynchronize(other) == cudaSuccess, "the other stream is free");
	fixture_right(cudaStreamWaitEvent(mine, fork, 0) == cudaErrorCapturedEvent, "an old event");
}

/* The host may not wait for what does not run. */
static void waits(void)
{
	cudaEvent_t event;
	cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
	begin();
	fixture_right(
		cudaStreamSynchronize(fixture_stream) == cudaErrorStreamCaptureUnsupported, "a wait");
	int *none = nullptr;
	CUDA_LAUNCH(step_kernel, 1, 1, 0, none, 1, 1);
	fixture_right(cudaGetLastError() == cudaErrorStreamCaptureInvalidated, "a launch after it");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a wait");
	begin();
	fixture_right(cudaStreamQuery(fixture_stream) == cudaErrorStreamCaptureUnsupported, "a query");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a query");
	begin();
	cudaEventRecord(event, fixture_stream);
	fixture_right(cudaEventSynchronize(event) == cudaErrorCapturedEvent, "an event's wait");
	spoilt(cudaErrorStreamCaptureInvalidated, "after an event's wait");
	begin();
	fixture_right(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported, "the device");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a wait for the device");
}

/* Neither what comes from outside, nor what no stream sees. */
static void outside(void)
{
	float host[4] = { 0 }, *x = fixture_device(fixture_counting(4));
	cudaEvent_t event;
	void *p;
	cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
	cudaEventRecord(event, fixture_stream);
	begin();
	fixture_right(cudaStreamWaitEvent(fixture_stream, event, 0) == cudaErrorStreamCaptureIsolation,
		"work from outside");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a wait for work from outside");
	begin();
	fixture_right(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported, "memory");
	spoilt(cudaErrorStreamCaptureInvalidated, "after memory was asked for");
	begin();
	fixture_right(cudaMemcpyAsync(x, host, sizeof(host), cudaMemcpyHostToDevice, fixture_stream) ==
			cudaErrorStreamCaptureUnsupported,
		"memory that is not pinned");
	spoilt(cudaErrorStreamCaptureInvalidated, "after such a copy");
}

/* Of a capture, another thread knows nothing, and cannot end it. */
static void threads(void)
{
	cudaStream_t captured = fixture_stream;
	int *x = fixture_device(std::vector<int>{ 7 });
	begin();
	std::thread([captured]() {
		void *p;
		cudaGraph_t graph;
		fixture_right(cudaMalloc(&p, 16) == cudaSuccess, "memory of another thread");
		fixture_right(cudaStreamEndCapture(captured, &graph) == cudaErrorStreamCaptureWrongThread,
			"ended by another thread");
	}).join();
	CUDA_LAUNCH(step_kernel, 1, 1, 0, x, 1, 1);
	cudaGraph_t graph = end();
	cudaGraphExec_t exec;
	fixture_right(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate");
	begin();
	fixture_right(cudaStreamBeginCapture(fixture_stream, cudaStreamCaptureModeThreadLocal) ==
			cudaErrorIllegalState,
		"twice");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a second begin");
	begin();
	fixture_right(cudaGraphLaunch(exec, fixture_stream) == cudaErrorStreamCaptureUnsupported,
		"a graph in a graph");
	spoilt(cudaErrorStreamCaptureInvalidated, "after a graph in a graph");
}

static const struct fixture_case capture_cases[] = {
	{ "replay", replay },
	{ "refused", refused },
	{ "branches", branches },
	{ "waits", waits },
	{ "outside", outside },
	{ "threads", threads },
};

int main(void)
{
	return fixture_cases(capture_cases, CAPTURE_SEEDS) != 0;
}
