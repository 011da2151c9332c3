/* SPDX-License-Identifier: Apache-2.0
 * Captures and graphs of the cudart stand-in. What was work for a stream becomes a node while the
 * stream is captured; what a capture forbids ends it, as on a device. Called by cudart.cc,
 * launch.cc and memory.cc. */
#pragma once

#include "tests/cuda/emulation/stream.h"

enum graph_kind { GRAPH_KERNEL, GRAPH_COPY, GRAPH_FILL, GRAPH_HOST };

/* Into the stream's queue, or the graph. detail: what an update may not change. */
cudaError_t graph_work(
	struct CUstream_st *stream, enum graph_kind kind, int detail, std::function<void()> work);
/* The host waits for the stream or asks it something. */
cudaError_t graph_host(struct CUstream_st *stream);
/* The host does what no stream sees, such as taking memory: not in a thread that captures. */
cudaError_t graph_unsafe(void);
bool graph_captures(const struct CUstream_st *stream);
/* Work that no graph can have. */
cudaError_t graph_refuse(struct CUstream_st *stream);

/* What an event stands for that was recorded in a capture. */
struct graph_mark;
std::shared_ptr<struct graph_mark> graph_mark_add(struct CUstream_st *stream);
/* The host waits for such an event or asks it something. */
cudaError_t graph_mark_host(const std::shared_ptr<struct graph_mark> &mark);
/* The stream waits for it, and is captured from now on. */
cudaError_t graph_mark_wait(
	struct CUstream_st *stream, const std::shared_ptr<struct graph_mark> &mark);
