/* SPDX-License-Identifier: Apache-2.0
 * Streams of the cudart stand-in: each is a thread with a queue. Half of them (drawn from the seed)
 * begin only when somebody waits for them, or after STREAM_LAZY_MS, so that host code which reads
 * before it waited finds what was there before. Events are marks that a queue passes. */
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <stdint.h>

struct stream_mark;

/* NULL for a handle that is none. Handle 0 is the device's default stream. */
struct CUstream_st *stream_of(cudaStream_t handle);
unsigned stream_number(const struct CUstream_st *stream);
struct CUstream_st *stream_create(void);
/* Waits for its work first. */
void stream_destroy(struct CUstream_st *stream);
void stream_add(struct CUstream_st *stream, std::function<void()> work);
bool stream_idle(struct CUstream_st *stream);
void stream_wait(struct CUstream_st *stream);
void stream_wait_all(void);

std::shared_ptr<struct stream_mark> stream_mark_add(struct CUstream_st *stream);
bool stream_mark_passed(const std::shared_ptr<struct stream_mark> &mark);
void stream_mark_wait(const std::shared_ptr<struct stream_mark> &mark);
/* Nanoseconds between two marks that were passed. */
int64_t stream_mark_between(const struct stream_mark *begin, const struct stream_mark *end);
