/* SPDX-License-Identifier: Apache-2.0
 * What tests of the emulation itself share: a device as kernel.h wants it, buffers, and a child
 * that runs a case under a seed, so that a case may end in a report. Included once a program. */
#pragma once

#include "workers/engine/cuda/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

static cudaStream_t fixture_stream;

cudaStream_t cuda_stream(void)
{
	return fixture_stream;
}

void cuda_launched(const char *) {}

int cuda_multiprocessors(void)
{
	return 4;
}

/* The case is over when its result is not the right one. */
enum { FIXTURE_WRONG = 3 };
static inline void fixture_right(bool right, const char *what)
{
	if (right)
		return;
	fprintf(stderr, "result: %s\n", what);
	_exit(FIXTURE_WRONG);
}

template <typename T> static inline T *fixture_empty(size_t count)
{
	void *p = nullptr;
	fixture_right(cudaMalloc(&p, count * sizeof(T)) == cudaSuccess, "no device memory");
	return static_cast<T *>(p);
}

template <typename T> static inline T *fixture_device(const std::vector<T> &values)
{
	T *p = fixture_empty<T>(values.size());
	fixture_right(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
			cudaSuccess,
		"no copy to the device");
	return p;
}

/* Waits for the stream. */
template <typename T> static inline std::vector<T> fixture_host(const T *p, size_t count)
{
	std::vector<T> values(count);
	fixture_right(cudaMemcpyAsync(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost,
					  fixture_stream) == cudaSuccess,
		"no copy to the host");
	fixture_right(cudaStreamSynchronize(fixture_stream) == cudaSuccess, "no wait");
	return values;
}

static inline std::vector<float> fixture_counting(int count)
{
	std::vector<float> x((size_t)count);
	for (int i = 0; i < count; i++)
		x[(size_t)i] = (float)(i + 1);
	return x;
}

struct fixture_end {
	int status;       /* of waitpid */
	std::string text; /* what the child said */
};

/* Nothing of CUDA may have been called here before: streams do not survive a fork. */
static inline struct fixture_end fixture_child(unsigned seed, void (*run)(void))
{
	struct fixture_end end = {};
	int pipes[2];
	if (pipe(pipes) != 0)
		abort();
	fflush(stdout);
	pid_t child = fork();
	if (child < 0)
		abort();
	if (child == 0) {
		dup2(pipes[1], STDERR_FILENO);
		close(pipes[0]);
		close(pipes[1]);
		setenv("TRAINYARD_EMULATION_SEED", std::to_string(seed).c_str(), 1);
		cudaStreamCreateWithFlags(&fixture_stream, cudaStreamNonBlocking);
		run();
		cudaDeviceSynchronize();
		_exit(0);
	}
	close(pipes[1]);
	char part[4096];
	for (ssize_t n; (n = read(pipes[0], part, sizeof(part))) > 0;)
		end.text.append(part, (size_t)n);
	close(pipes[0]);
	if (waitpid(child, &end.status, 0) != child)
		abort();
	return end;
}

struct fixture_case {
	const char *name;
	void (*run)(void);
};

/* Each case under each of the seeds 1 to `seeds`. Returns how many failed, and has said which. */
template <size_t COUNT>
static inline int fixture_cases(const struct fixture_case (&cases)[COUNT], unsigned seeds)
{
	int failed = 0;
	for (const auto &c : cases)
		for (unsigned seed = 1; seed <= seeds; seed++) {
			struct fixture_end end = fixture_child(seed, c.run);
			if (end.status == 0)
				continue;
			printf("FAIL %s, seed %u: %s\n", c.name, seed, end.text.c_str());
			failed++;
		}
	return failed;
}
