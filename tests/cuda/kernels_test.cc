/* SPDX-License-Identifier: Apache-2.0
 * Kernels without a bug under the emulation: their results are the right ones in every order. What
 * kernel.h brings, exchanges of a warp, votes, atomics, bf16, grids of three dimensions, streams.
 */
#include "tests/cuda/kernel_fixture.h"

enum { KERNELS_SEEDS = 12 };

/* ------------------------------------------------------------------------------------ reductions
 */

template <int THREADS>
static __global__ void sums_kernel(int cols, const float *x, float *sums, float *largest)
{
	CUDA_SHARED(float, room, THREADS / CUDA_WARP);
	float sum = 0, most = -1;
	for (int i = (int)threadIdx.x; i < cols; i += THREADS) {
		sum += x[(int64_t)blockIdx.x * cols + i];
		most = fmaxf(most, x[(int64_t)blockIdx.x * cols + i]);
	}
	sum = block_sum<THREADS>(sum, room);
	most = block_max<THREADS>(most, room);
	if (threadIdx.x == 0) {
		sums[blockIdx.x] = sum;
		largest[blockIdx.x] = most;
	}
}

template <int THREADS> static void sums_of(int rows, int cols)
{
	float *x = fixture_device(fixture_counting(rows * cols));
	float *y = fixture_empty<float>((size_t)rows), *z = fixture_empty<float>((size_t)rows);
	CUDA_LAUNCH((sums_kernel<THREADS>), (unsigned)rows, THREADS, 0, cols, x, y, z);
	std::vector<float> sums = fixture_host(y, (size_t)rows), most = fixture_host(z, (size_t)rows);
	for (int row = 0; row < rows; row++) {
		float first = (float)(row * cols + 1), last = (float)((row + 1) * cols);
		fixture_right(sums[(size_t)row] == (first + last) / 2 * (float)cols, "a wrong sum");
		fixture_right(most[(size_t)row] == last, "a wrong maximum");
	}
	cudaFree(x);
	cudaFree(y);
	cudaFree(z);
}

static void sums(void)
{
	sums_of<32>(7, 101);
	sums_of<64>(5, 1);
	sums_of<256>(4, 1031);
	sums_of<1024>(2, 2000);
}

/* ---------------------------------------------------------------------------------- transposition
 */

template <typename T> static __global__ void turn_kernel(int rows, int cols, const T *x, T *y)
{
	CUDA_SHARED_DYNAMIC(T, tile);
	int width = (int)blockDim.x + 1;
	int row = (int)(blockIdx.y * blockDim.x + threadIdx.y);
	int col = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	if (row < rows && col < cols)
		tile[(int)threadIdx.y * width + (int)threadIdx.x] = x[(int64_t)row * cols + col];
	__syncthreads();
	row = (int)(blockIdx.y * blockDim.x + threadIdx.x);
	col = (int)(blockIdx.x * blockDim.x + threadIdx.y);
	if (row < rows && col < cols)
		y[(int64_t)col * rows + row] = tile[(int)threadIdx.x * width + (int)threadIdx.y];
}

static void turn(void)
{
	enum { ROWS = 37, COLS = 70 };
	float *x = fixture_device(fixture_counting(ROWS * COLS));
	float *y = fixture_empty<float>(ROWS * COLS);
	for (unsigned side : { 8u, 32u }) {
		dim3 grid((COLS + side - 1) / side, (ROWS + side - 1) / side);
		CUDA_LAUNCH((turn_kernel<float>), grid, dim3(side, side), side * (side + 1) * sizeof(float),
			ROWS, COLS, x, y);
		std::vector<float> host = fixture_host(y, ROWS * COLS);
		for (int i = 0; i < ROWS * COLS; i++)
			fixture_right(
				host[(size_t)i] == (float)(i % ROWS * COLS + i / ROWS + 1), "not transposed");
	}
}

/* --------------------------------------------------------------------------- exchanges of a warp
 */

/* Bit i of the result: check i failed. */
static __global__ void lanes_kernel(unsigned *wrong)
{
	unsigned lane = threadIdx.x % 32, full = 0xffffffffu, bad = 0;
	double d = __shfl_sync(full, (double)lane / 8, 5);
	bad |= (unsigned)(d != 5.0 / 8) << 0;
	int64_t down = __shfl_down_sync(full, (int64_t)lane << 40, 3);
	bad |= (unsigned)(down != (int64_t)(lane + 3 < 32 ? lane + 3 : lane) << 40) << 1;
	int up = __shfl_up_sync(full, (int)lane - 7, 2, 8);
	bad |= (unsigned)(up != (int)(lane % 8 >= 2 ? lane - 2 : lane) - 7) << 2;
	unsigned other = __shfl_xor_sync(full, lane, 21);
	bad |= (unsigned)(other != (lane ^ 21)) << 3;
	unsigned segment = __shfl_sync(full, lane, 17, 16);
	bad |= (unsigned)(segment != lane / 16 * 16 + 1) << 4;
	bad |= (unsigned)(__ballot_sync(full, lane % 3 == 0) != 0x49249249u) << 5;
	bad |= (unsigned)(!__any_sync(full, lane == 31) || __any_sync(full, lane == 32)) << 6;
	bad |= (unsigned)(!__all_sync(full, lane < 32) || __all_sync(full, lane < 31)) << 7;
	/* halves that go different ways */
	unsigned sum;
	if (lane < 16) {
		sum = __reduce_add_sync(0xffffu, lane);
		bad |= (unsigned)(sum != 120) << 8;
	} else {
		sum = __reduce_add_sync(0xffff0000u, lane);
		bad |= (unsigned)(sum != 376) << 8;
	}
	bad |= (unsigned)(__reduce_min_sync(full, (int)lane - 9) != -9) << 9;
	bad |= (unsigned)(__match_any_sync(full, lane % 2) != (lane % 2 ? 0xaaaaaaaau : 0x55555555u))
		<< 10;
	bad |= (unsigned)(warp_sum((float)lane) != 496) << 11;
	bad |= (unsigned)(__syncthreads_count(threadIdx.x % 4 == 0) != (int)blockDim.x / 4) << 12;
	bad |= (unsigned)(__syncthreads_or(threadIdx.x == 3) == 0) << 13;
	bad |= (unsigned)(__syncthreads_and(threadIdx.x != 3) != 0) << 14;
	__half h = __shfl_sync(full, __float2half((float)lane), 9);
	bad |= (unsigned)(__half2float(h) != 9) << 15;
	wrong[threadIdx.x] = bad;
}

static void lanes(void)
{
	for (unsigned threads : { 32u, 128u, 1024u }) {
		unsigned *wrong = fixture_empty<unsigned>(threads);
		CUDA_LAUNCH(lanes_kernel, 1, threads, 0, wrong);
		for (unsigned bits : fixture_host(wrong, threads)) {
			char text[40];
			snprintf(text, sizeof(text), "checks %#x", bits);
			fixture_right(bits == 0, text);
		}
	}
}

/* -------------------------------------------------------------------------------- atomics, grids
 */

static __global__ void atomics_kernel(int *out, unsigned long long *wide)
{
	int x = (int)(blockIdx.x + 3 * (blockIdx.y + 2 * blockIdx.z));
	int thread = (int)(threadIdx.x + 4 * (threadIdx.y + 2 * threadIdx.z));
	atomicAdd(&out[0], 1);
	atomicMax(&out[1], x * 24 + thread);
	atomicMin(&out[2], -x);
	atomicOr(&out[3], 1 << x % 30);
	atomicAdd(wide, 1ull << 33);
	while (atomicCAS(&out[4], x, x + 1) != x && out[4] < x)
		out[4] = x; /* blocks come one after the other */
}

static void atomics(void)
{
	int *out = fixture_device(std::vector<int>{ 0, -1, 1, 0, 0 });
	unsigned long long *wide = fixture_device(std::vector<unsigned long long>{ 0 });
	CUDA_LAUNCH(atomics_kernel, dim3(3, 2, 5), dim3(4, 2, 3), 0, out, wide);
	std::vector<int> host = fixture_host(out, 5);
	fixture_right(host[0] == 30 * 24, "atomicAdd");
	fixture_right(host[1] == 29 * 24 + 23, "atomicMax");
	fixture_right(host[2] == -29, "atomicMin");
	fixture_right(host[3] == (1 << 30) - 1, "atomicOr");
	fixture_right(fixture_host(wide, 1)[0] == (30ull * 24) << 33, "atomicAdd of 64 bits");
}

/* ----------------------------------------------------------------------------------- types, packs
 */

template <typename T> static __global__ void types_kernel(int64_t packs, const T *x, T *y)
{
	for (int64_t i = grid_begin(); i < packs; i += grid_stride()) {
		cuda_pack<T> pack = pack_load(x + i * cuda_pack<T>::count);
		for (int j = 0; j < cuda_pack<T>::count; j++)
			pack.v[j] = act_round<T>(fmaf(act_float(pack.v[j]), 0.5f, 1.0f));
		pack_store(y + i * cuda_pack<T>::count, pack);
	}
}

template <typename T> static T types_of(float x);
template <> float types_of<float>(float x)
{
	return x;
}
template <> __nv_bfloat16 types_of<__nv_bfloat16>(float x)
{
	return __float2bfloat16_rn(x);
}
template <> __half types_of<__half>(float x)
{
	return __float2half_rn(x);
}

template <typename T> static void types(void)
{
	enum { COUNT = 8 * 33 };
	std::vector<T> x(COUNT);
	for (int i = 0; i < COUNT; i++)
		x[(size_t)i] = types_of<T>((float)i * 1.37f);
	T *from = fixture_device(x), *to = fixture_empty<T>(COUNT);
	int64_t packs = COUNT / cuda_pack<T>::count;
	fixture_right(pack_fits(from) && !pack_fits(reinterpret_cast<char *>(from) + 8), "pack_fits");
	CUDA_LAUNCH(types_kernel<T>, grid_of(packs, 32), 32, 0, packs, from, to);
	std::vector<T> y = fixture_host(to, COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		T want = types_of<T>(act_float(x[i]) * 0.5f + 1.0f);
		fixture_right(memcmp(&want, &y[i], sizeof(T)) == 0, "arithmetic of a type");
	}
}

/* -------------------------------------------------------------------------------------- streams */

static __global__ void next_kernel(int *counter, int expected)
{
	*counter = *counter == expected ? expected + 1 : -1000;
}

static void host_next(void *argument)
{
	++*static_cast<int *>(argument);
}

/* Two streams hand a counter to and fro: only events keep the order. */
static void streams(void)
{
	enum { ROUNDS = 20 };
	cudaStream_t mine = fixture_stream, other;
	cudaEvent_t event, begin;
	int called = 0;
	float ms = -1;
	cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, -1);
	cudaEventCreate(&event);
	cudaEventCreate(&begin);
	fixture_right(cudaEventQuery(event) == cudaSuccess, "an event before its record");
	int *counter = fixture_device(std::vector<int>{ 0 });
	cudaEventRecord(begin, mine);
	for (int i = 0; i < ROUNDS; i++) {
		fixture_stream = i % 2 == 0 ? mine : other;
		cudaStreamWaitEvent(fixture_stream, event, 0);
		CUDA_LAUNCH(next_kernel, 1, 1, 0, counter, i);
		cudaLaunchHostFunc(fixture_stream, host_next, &called);
		cudaEventRecord(event, fixture_stream);
	}
	cudaEventSynchronize(event);
	fixture_right(cudaEventElapsedTime(&ms, begin, event) == cudaSuccess && ms >= 0, "elapsed");
	fixture_stream = mine;
	fixture_right(fixture_host(counter, 1)[0] == ROUNDS && called == ROUNDS, "rounds");
	while (cudaStreamQuery(other) == cudaErrorNotReady)
		continue;
	fixture_right(cudaGetLastError() == cudaSuccess, "an error that nobody made");
	fixture_right(cudaEventDestroy(event) == cudaSuccess &&
			cudaEventDestroy(begin) == cudaSuccess && cudaStreamDestroy(other) == cudaSuccess,
		"destroy");
}

static void memory(void)
{
	size_t before, after, total;
	void *p;
	float *x = fixture_device(fixture_counting(4));
	cudaMemGetInfo(&before, &total);
	fixture_right(cudaMalloc(&p, total) == cudaErrorMemoryAllocation, "more than there is");
	fixture_right(cudaMalloc(&p, 1000) == cudaSuccess, "cudaMalloc");
	cudaMemGetInfo(&after, &total);
	fixture_right(after == before - 1000 && (uintptr_t)p % 256 == 0, "cudaMemGetInfo");
	fixture_right(cudaMemcpy(p, x, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue, "kind");
	fixture_right(cudaMemcpy(p, x, 16, cudaMemcpyDeviceToDevice) == cudaSuccess, "copy");
	cudaMemsetAsync(p, 0, 4, fixture_stream);
	std::vector<float> host = fixture_host(static_cast<float *>(p), 250);
	fixture_right(host[0] == 0 && host[3] == 4, "fill");
	fixture_right(host[4] != host[4] && host[249] != host[249], "fresh memory is poison");
	fixture_right(cudaFree(p) == cudaSuccess && cudaFree(p) == cudaErrorInvalidValue, "free");
}

static const struct fixture_case kernels_cases[] = {
	{ "block_sum, block_max", sums },
	{ "transposition", turn },
	{ "exchanges and votes", lanes },
	{ "atomics", atomics },
	{ "fp32", types<float> },
	{ "bf16", types<__nv_bfloat16> },
	{ "fp16", types<__half> },
	{ "streams", streams },
	{ "memory", memory },
};

int main(void)
{
	return fixture_cases(kernels_cases, KERNELS_SEEDS) != 0;
}
