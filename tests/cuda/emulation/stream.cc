/* SPDX-License-Identifier: Apache-2.0
 * Queues and marks (stream.h). One lock for all: work itself runs without it. */
#include "tests/cuda/emulation/stream.h"

#include "tests/cuda/emulation/report.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

typedef std::chrono::steady_clock stream_clock;

enum { STREAM_LAZY_MS = 2, STREAM_DEVICES_MAX = 8 };

struct CUstream_st {
	std::thread thread;
	std::deque<std::function<void()>> queue;
	unsigned number;
	bool lazy;
	uint64_t added;
	uint64_t done;
	uint64_t wanted; /* somebody waits for this many */
	bool ending;
};

struct stream_mark {
	struct CUstream_st *stream;
	uint64_t after; /* passed when the stream has done this many */
	bool passed;
	stream_clock::time_point time;
};

/* Never destroyed: streams may outlive main. */
static struct stream_world {
	std::mutex lock;
	std::condition_variable changed;
	std::vector<struct CUstream_st *> streams;
	struct CUstream_st *defaults[STREAM_DEVICES_MAX];
	unsigned count;
} *const world = new stream_world();

static void stream_run(struct CUstream_st *stream)
{
	std::unique_lock<std::mutex> held(world->lock);
	for (;;) {
		world->changed.wait(held, [&]() { return stream->ending || !stream->queue.empty(); });
		if (stream->queue.empty())
			return;
		if (stream->lazy)
			world->changed.wait_for(held, std::chrono::milliseconds(STREAM_LAZY_MS),
				[&]() { return stream->ending || stream->wanted > stream->done; });
		uint64_t batch = stream->added;
		while (stream->done < batch) {
			std::function<void()> work = std::move(stream->queue.front());
			stream->queue.pop_front();
			held.unlock();
			work();
			work = nullptr; /* what it holds may take its time to go */
			held.lock();
			stream->done++;
			world->changed.notify_all();
		}
	}
}

/* The lock is held. */
static struct CUstream_st *stream_create_locked(void)
{
	struct CUstream_st *stream = new CUstream_st();
	stream->number = world->count++;
	uint64_t random = emulation_seed() + stream->number;
	stream->lazy = emulation_random(&random) % 2 == 0;
	world->streams.push_back(stream);
	stream->thread = std::thread(stream_run, stream);
	return stream;
}

struct CUstream_st *stream_create(void)
{
	std::lock_guard<std::mutex> held(world->lock);
	return stream_create_locked();
}

struct CUstream_st *stream_of(cudaStream_t handle)
{
	std::lock_guard<std::mutex> held(world->lock);
	if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
		int device = 0;
		cudaGetDevice(&device);
		struct CUstream_st **of = &world->defaults[device];
		if (*of == nullptr)
			*of = stream_create_locked();
		return *of;
	}
	for (struct CUstream_st *stream : world->streams)
		if (stream == handle)
			return stream;
	return nullptr;
}

unsigned stream_number(const struct CUstream_st *stream)
{
	return stream->number;
}

void stream_add(struct CUstream_st *stream, std::function<void()> work)
{
	std::lock_guard<std::mutex> held(world->lock);
	stream->queue.push_back(std::move(work));
	stream->added++;
	world->changed.notify_all();
}

/* The lock is held. */
static void stream_wait_for(
	std::unique_lock<std::mutex> &held, struct CUstream_st *stream, uint64_t after)
{
	if (stream->wanted < after)
		stream->wanted = after;
	world->changed.notify_all();
	world->changed.wait(held, [&]() { return stream->done >= after; });
}

void stream_wait(struct CUstream_st *stream)
{
	std::unique_lock<std::mutex> held(world->lock);
	stream_wait_for(held, stream, stream->added);
}

void stream_wait_all(void)
{
	std::unique_lock<std::mutex> held(world->lock);
	std::vector<struct CUstream_st *> all = world->streams;
	for (struct CUstream_st *stream : all)
		stream_wait_for(held, stream, stream->added);
}

bool stream_idle(struct CUstream_st *stream)
{
	std::lock_guard<std::mutex> held(world->lock);
	stream->wanted = stream->added;
	world->changed.notify_all();
	return stream->done == stream->added;
}

void stream_destroy(struct CUstream_st *stream)
{
	{
		std::unique_lock<std::mutex> held(world->lock);
		stream_wait_for(held, stream, stream->added);
		stream->ending = true;
		for (size_t i = 0; i < world->streams.size(); i++)
			if (world->streams[i] == stream) {
				world->streams.erase(world->streams.begin() + (long)i);
				break;
			}
		world->changed.notify_all();
	}
	stream->thread.join();
	delete stream;
}

/* ---------------------------------------------------------------------------------------- marks */

std::shared_ptr<struct stream_mark> stream_mark_add(struct CUstream_st *stream)
{
	auto mark = std::make_shared<struct stream_mark>();
	std::lock_guard<std::mutex> held(world->lock);
	mark->stream = stream;
	mark->after = ++stream->added;
	stream->queue.push_back([mark]() {
		std::lock_guard<std::mutex> again(world->lock);
		mark->time = stream_clock::now();
		mark->passed = true;
	});
	world->changed.notify_all();
	return mark;
}

bool stream_mark_passed(const std::shared_ptr<struct stream_mark> &mark)
{
	std::lock_guard<std::mutex> held(world->lock);
	if (!mark->passed && mark->stream->wanted < mark->after) {
		mark->stream->wanted = mark->after;
		world->changed.notify_all();
	}
	return mark->passed;
}

void stream_mark_wait(const std::shared_ptr<struct stream_mark> &mark)
{
	std::unique_lock<std::mutex> held(world->lock);
	if (!mark->passed && mark->stream->wanted < mark->after) {
		mark->stream->wanted = mark->after;
		world->changed.notify_all();
	}
	world->changed.wait(held, [&]() { return mark->passed; });
}

int64_t stream_mark_between(const struct stream_mark *begin, const struct stream_mark *end)
{
	std::lock_guard<std::mutex> held(world->lock);
	return std::chrono::duration_cast<std::chrono::nanoseconds>(end->time - begin->time).count();
}
