/* SPDX-License-Identifier: Apache-2.0
 * Captures (graph.h), in thread-local mode alone, and the graphs made of them. A launch runs its
 * nodes on the stream's thread in a random order that their dependencies allow. One lock for all.
 */
#include "tests/cuda/emulation/graph.h"

#include "tests/cuda/emulation/cudart.h"
#include "tests/cuda/emulation/graph_counts.h"
#include "tests/cuda/emulation/report.h"

#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

typedef std::vector<size_t> graph_nodes; /* indices */

struct graph_node {
	enum graph_kind kind;
	int detail;
	graph_nodes after;
	std::function<void()> work;
};

/* Never changed once it is whole: a launch that is under way keeps it. */
typedef std::vector<struct graph_node> graph_body;

struct CUgraph_st {
	std::shared_ptr<graph_body> body;
};

struct CUgraphExec_st {
	std::shared_ptr<graph_body> body;
};

struct graph_capture {
	std::shared_ptr<graph_body> body;
	const struct CUstream_st *origin;
	std::thread::id thread;
	bool invalid, ended;
	std::map<const struct CUstream_st *, graph_nodes> ends; /* of each stream that takes part */
};

struct graph_mark {
	std::shared_ptr<struct graph_capture> capture;
	graph_nodes ends;
};

/* Never destroyed: streams may outlive main. */
static struct graph_world {
	std::mutex lock;
	std::map<const struct CUstream_st *, std::shared_ptr<struct graph_capture>> captures;
	std::set<cudaGraph_t> graphs;
	std::set<cudaGraphExec_t> execs;
	struct emulation_graph_counts counts;
	uint64_t launches;
} *const world = new graph_world();

struct emulation_graph_counts emulation_graph_counts(void)
{
	std::lock_guard<std::mutex> held(world->lock);
	return world->counts;
}

/* The lock is held. */
static std::shared_ptr<struct graph_capture> graph_capture_of(const struct CUstream_st *stream)
{
	auto at = world->captures.find(stream);
	return at == world->captures.end() ? nullptr : at->second;
}

/* ----------------------------------------------------------------------------- in place of work */

cudaError_t graph_work(
	struct CUstream_st *stream, enum graph_kind kind, int detail, std::function<void()> work)
{
	std::unique_lock<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (capture == nullptr) {
		held.unlock();
		stream_add(stream, std::move(work));
		return cudaSuccess;
	}
	if (capture->invalid)
		return cudaErrorStreamCaptureInvalidated;
	graph_nodes &ends = capture->ends[stream];
	capture->body->push_back({ kind, detail, ends, std::move(work) });
	ends = { capture->body->size() - 1 };
	return cudaSuccess;
}

bool graph_captures(const struct CUstream_st *stream)
{
	std::lock_guard<std::mutex> held(world->lock);
	return graph_capture_of(stream) != nullptr;
}

cudaError_t graph_host(struct CUstream_st *stream)
{
	std::lock_guard<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (capture == nullptr)
		return cudaSuccess;
	capture->invalid = true;
	return cudaErrorStreamCaptureUnsupported;
}

cudaError_t graph_refuse(struct CUstream_st *stream)
{
	return graph_host(stream);
}

cudaError_t graph_unsafe(void)
{
	std::lock_guard<std::mutex> held(world->lock);
	cudaError_t rc = cudaSuccess;
	for (auto &at : world->captures)
		if (at.second->thread == std::this_thread::get_id()) {
			at.second->invalid = true;
			rc = cudaErrorStreamCaptureUnsupported;
		}
	return rc;
}

/* --------------------------------------------------------------------------------------- events */

std::shared_ptr<struct graph_mark> graph_mark_add(struct CUstream_st *stream)
{
	std::lock_guard<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (capture == nullptr)
		return nullptr;
	return std::make_shared<struct graph_mark>(graph_mark{ capture, capture->ends[stream] });
}

cudaError_t graph_mark_host(const std::shared_ptr<struct graph_mark> &mark)
{
	std::lock_guard<std::mutex> held(world->lock);
	mark->capture->invalid = true;
	return cudaErrorCapturedEvent;
}

cudaError_t graph_mark_wait(
	struct CUstream_st *stream, const std::shared_ptr<struct graph_mark> &mark)
{
	std::lock_guard<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (mark->capture->ended)
		return cudaErrorCapturedEvent;
	if (mark->capture->invalid)
		return cudaErrorStreamCaptureInvalidated;
	if (capture != nullptr && capture != mark->capture) {
		capture->invalid = mark->capture->invalid = true;
		return cudaErrorStreamCaptureMerge;
	}
	world->captures[stream] = mark->capture;
	graph_nodes &ends = mark->capture->ends[stream];
	for (size_t node : mark->ends) {
		bool known = false;
		for (size_t end : ends)
			known |= end == node;
		if (!known)
			ends.push_back(node);
	}
	return cudaSuccess;
}

/* ------------------------------------------------------------------------------------- captures */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr || mode != cudaStreamCaptureModeThreadLocal)
		return cudart_return(cudaErrorInvalidValue);
	if (handle == nullptr || handle == cudaStreamLegacy)
		return cudart_return(cudaErrorStreamCaptureUnsupported);
	std::lock_guard<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (capture != nullptr) {
		capture->invalid = true;
		return cudart_return(cudaErrorIllegalState);
	}
	capture = std::make_shared<struct graph_capture>();
	capture->body = std::make_shared<graph_body>();
	capture->origin = stream;
	capture->thread = std::this_thread::get_id();
	capture->ends[stream] = {};
	world->captures[stream] = capture;
	return cudaSuccess;
}

/* Whether the origin comes after all that the other streams were given. */
static bool graph_joined(const struct graph_capture *capture)
{
	graph_nodes open = capture->ends.at(capture->origin);
	std::set<size_t> before(open.begin(), open.end());
	while (!open.empty()) {
		size_t node = open.back();
		open.pop_back();
		for (size_t i : (*capture->body)[node].after)
			if (before.insert(i).second)
				open.push_back(i);
	}
	for (auto &stream : capture->ends)
		for (size_t node : stream.second)
			if (before.count(node) == 0)
				return false;
	return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *ret_graph)
{
	*ret_graph = nullptr;
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	std::lock_guard<std::mutex> held(world->lock);
	auto capture = graph_capture_of(stream);
	if (capture == nullptr)
		return cudart_return(cudaErrorIllegalState);
	if (capture->origin != stream) {
		capture->invalid = true;
		return cudart_return(cudaErrorStreamCaptureUnmatched);
	}
	if (capture->thread != std::this_thread::get_id())
		return cudart_return(cudaErrorStreamCaptureWrongThread);
	capture->ended = true;
	for (auto &member : capture->ends)
		world->captures.erase(member.first);
	bool joined = graph_joined(capture.get());
	if (capture->invalid || !joined) {
		world->counts.invalid++;
		return cudart_return(
			capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
	}
	world->counts.captured++;
	*ret_graph = new CUgraph_st{ capture->body };
	world->graphs.insert(*ret_graph);
	return cudaSuccess;
}

/* --------------------------------------------------------------------------------------- graphs */

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	std::lock_guard<std::mutex> held(world->lock);
	if (world->graphs.erase(graph) == 0)
		return cudart_return(cudaErrorInvalidValue);
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(
	cudaGraphExec_t *ret_exec, cudaGraph_t graph, unsigned long long flags)
{
	std::lock_guard<std::mutex> held(world->lock);
	if (world->graphs.count(graph) == 0 || flags != 0)
		return cudart_return(cudaErrorInvalidValue);
	world->counts.instantiated++;
	*ret_exec = new CUgraphExec_st{ graph->body };
	world->execs.insert(*ret_exec);
	return cudaSuccess;
}

/* Launches under way end, since they keep what they run. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	std::lock_guard<std::mutex> held(world->lock);
	if (world->execs.erase(exec) == 0)
		return cudart_return(cudaErrorInvalidValue);
	delete exec;
	return cudaSuccess;
}

static enum cudaGraphExecUpdateResult graph_compare(const graph_body &now, const graph_body &next)
{
	if (now.size() != next.size())
		return cudaGraphExecUpdateErrorTopologyChanged;
	for (size_t i = 0; i < now.size(); i++) {
		if (now[i].after != next[i].after)
			return cudaGraphExecUpdateErrorTopologyChanged;
		if (now[i].kind != next[i].kind)
			return cudaGraphExecUpdateErrorNodeTypeChanged;
		if (now[i].detail != next[i].detail)
			return cudaGraphExecUpdateErrorParametersChanged;
	}
	return cudaGraphExecUpdateSuccess;
}

cudaError_t cudaGraphExecUpdate(
	cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *ret_info)
{
	std::lock_guard<std::mutex> held(world->lock);
	*ret_info = {};
	ret_info->result = cudaGraphExecUpdateError;
	if (world->graphs.count(graph) == 0 || world->execs.count(exec) == 0)
		return cudart_return(cudaErrorInvalidValue);
	ret_info->result = graph_compare(*exec->body, *graph->body);
	if (ret_info->result != cudaGraphExecUpdateSuccess) {
		world->counts.refused++;
		return cudart_return(cudaErrorGraphExecUpdateFailure);
	}
	world->counts.updated++;
	exec->body = graph->body;
	return cudaSuccess;
}

static void graph_run(const graph_body &body, uint64_t random)
{
	graph_nodes ready, missing;
	std::vector<graph_nodes> next(body.size());
	for (size_t i = 0; i < body.size(); i++) {
		missing.push_back(body[i].after.size());
		for (size_t node : body[i].after)
			next[node].push_back(i);
		if (body[i].after.empty())
			ready.push_back(i);
	}
	while (!ready.empty()) {
		size_t at = emulation_random(&random) % ready.size(), node = ready[at];
		ready[at] = ready.back();
		ready.pop_back();
		body[node].work();
		for (size_t i : next[node])
			if (--missing[i] == 0)
				ready.push_back(i);
	}
}

/* A graph in a graph is not here. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
	struct CUstream_st *stream = stream_of(handle);
	if (stream == nullptr)
		return cudart_return(cudaErrorInvalidResourceHandle);
	cudaError_t rc = graph_refuse(stream);
	if (rc != cudaSuccess)
		return cudart_return(rc);
	std::shared_ptr<graph_body> body;
	uint64_t random;
	{
		std::lock_guard<std::mutex> held(world->lock);
		if (world->execs.count(exec) == 0)
			return cudart_return(cudaErrorInvalidValue);
		world->counts.launched++;
		random = emulation_seed() + world->launches++;
		body = exec->body;
	}
	stream_add(stream, [body, random]() { graph_run(*body, random); });
	return cudaSuccess;
}
