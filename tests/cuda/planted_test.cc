/* SPDX-License-Identifier: Apache-2.0
 * Bugs that are planted here, each of which the emulation must catch, and how: by a report, by a
 * red zone, or by a result that is wrong under the orders of some seeds. Beside each stands the
 * kernel without the bug, which must pass under every seed. */
#include "tests/cuda/kernel_fixture.h"

enum { PLANTED_SEEDS = 16, PLANTED_THREADS = 96, PLANTED_COUNT = 1000 };

/* ------------------------------------------------------------------------------------- barriers */

/* Missing: the barrier between the block's writing of room and the reading. */
template <bool BARRIER> static __global__ void turn_kernel(const float *x, float *y)
{
	CUDA_SHARED(float, room, PLANTED_THREADS);
	room[threadIdx.x] = x[threadIdx.x];
	if (BARRIER)
		__syncthreads();
	y[threadIdx.x] = room[PLANTED_THREADS - 1 - threadIdx.x];
}

template <bool BARRIER> static void turn(void)
{
	float *x = fixture_device(fixture_counting(PLANTED_THREADS));
	float *y = fixture_empty<float>(PLANTED_THREADS);
	CUDA_LAUNCH(turn_kernel<BARRIER>, 3, PLANTED_THREADS, 0, x, y);
	std::vector<float> host = fixture_host(y, PLANTED_THREADS);
	for (int i = 0; i < PLANTED_THREADS; i++)
		fixture_right(host[(size_t)i] == (float)(PLANTED_THREADS - i), "not turned");
}

/* Missing: the barrier between the reading of room and the next round's writing. */
template <bool BARRIER> static __global__ void rounds_kernel(float *y)
{
	CUDA_SHARED(float, room, PLANTED_THREADS);
	float sum = 0;
	for (int round = 0; round < 3; round++) {
		room[threadIdx.x] = (float)round;
		__syncthreads();
		sum += room[(threadIdx.x + 1) % PLANTED_THREADS];
		if (BARRIER)
			__syncthreads();
	}
	y[threadIdx.x] = sum;
}

template <bool BARRIER> static void rounds(void)
{
	float *y = fixture_empty<float>(PLANTED_THREADS);
	CUDA_LAUNCH(rounds_kernel<BARRIER>, 1, PLANTED_THREADS, 0, y);
	for (float sum : fixture_host(y, PLANTED_THREADS))
		fixture_right(sum == 3, "a value of another round");
}

/* Missing: __syncwarp, by one who thinks that a warp goes in step. */
template <bool BARRIER> static __global__ void step_kernel(float *y)
{
	CUDA_SHARED(float, room, CUDA_WARP);
	room[threadIdx.x] = 1;
	for (unsigned step = CUDA_WARP / 2; step > 0; step /= 2) {
		if (BARRIER)
			__syncwarp();
		float other = room[threadIdx.x ^ step];
		if (BARRIER)
			__syncwarp();
		room[threadIdx.x] += other;
	}
	y[threadIdx.x] = room[threadIdx.x];
}

template <bool BARRIER> static void step(void)
{
	float *y = fixture_empty<float>(CUDA_WARP);
	CUDA_LAUNCH(step_kernel<BARRIER>, 1, CUDA_WARP, 0, y);
	for (float sum : fixture_host(y, CUDA_WARP))
		fixture_right(sum == CUDA_WARP, "not the sum of the warp");
}

static __global__ void ended_kernel(int threads)
{
	if ((int)threadIdx.x >= threads)
		return;
	__syncthreads();
}

static __global__ void branch_kernel(void)
{
	if (threadIdx.x % 2 == 0)
		__syncthreads();
	else
		__syncthreads();
}

static __global__ void lanes_kernel(int lanes, float *y)
{
	float x = 1;
	if ((int)threadIdx.x < lanes)
		x = __shfl_xor_sync(0xffffffffu, x, 1);
	__syncthreads();
	y[threadIdx.x] = x;
}

static __global__ void lanes_ended_kernel(int lanes, float *y)
{
	if ((int)threadIdx.x >= lanes)
		return;
	y[threadIdx.x] = warp_sum(1.0f);
}

template <int THREADS> static void ended(void)
{
	CUDA_LAUNCH(ended_kernel, 1, PLANTED_THREADS, 0, THREADS);
}

static void branch(void)
{
	CUDA_LAUNCH(branch_kernel, 1, PLANTED_THREADS, 0);
}

template <int LANES> static void lanes(void)
{
	CUDA_LAUNCH(lanes_kernel, 1, CUDA_WARP, 0, LANES, fixture_empty<float>(CUDA_WARP));
}

template <int LANES> static void lanes_ended(void)
{
	CUDA_LAUNCH(lanes_ended_kernel, 1, CUDA_WARP, 0, LANES, fixture_empty<float>(CUDA_WARP));
}

/* --------------------------------------------------------------------------------------- memory */

/* Elements [begin, end) of a buffer that has PLANTED_COUNT. */
static __global__ void add_kernel(int64_t begin, int64_t end, const float *x, float *y)
{
	for (int64_t i = begin + grid_begin(); i < end; i += grid_stride())
		y[i] = x[i] + 1;
}

static void add(int64_t begin, int64_t end, int64_t end_of_memory)
{
	std::vector<float> x = fixture_counting((int)(end_of_memory > end ? end_of_memory : end));
	float *y = fixture_empty<float>(PLANTED_COUNT);
	CUDA_LAUNCH(add_kernel, 2, PLANTED_THREADS, 0, begin, end,
		fixture_device(x) - (begin < 0 ? begin : 0), y);
	for (float value : fixture_host(y, PLANTED_COUNT))
		fixture_right(value >= 2, "an output that nobody wrote");
}

static void add_all(void)
{
	add(0, PLANTED_COUNT, PLANTED_COUNT);
}

static void write_beyond(void)
{
	add(0, PLANTED_COUNT + 1, PLANTED_COUNT + 1);
}

static void write_before(void)
{
	add(-1, PLANTED_COUNT, PLANTED_COUNT + 1);
}

static void unwritten(void)
{
	add(0, PLANTED_COUNT - 1, PLANTED_COUNT);
}

static void read_beyond(void)
{
	std::vector<float> x = fixture_counting(PLANTED_COUNT - 1);
	float *y = fixture_empty<float>(PLANTED_COUNT);
	CUDA_LAUNCH(add_kernel, 2, PLANTED_THREADS, 0, (int64_t)0, (int64_t)PLANTED_COUNT,
		fixture_device(x), y);
	for (float value : fixture_host(y, PLANTED_COUNT))
		fixture_right(value >= 2, "made of what is beyond the memory");
}

static void freed(void)
{
	float *x = fixture_device(fixture_counting(PLANTED_COUNT));
	float *y = fixture_empty<float>(PLANTED_COUNT);
	cudaFree(y);
	CUDA_LAUNCH(add_kernel, 2, PLANTED_THREADS, 0, (int64_t)0, (int64_t)PLANTED_COUNT, x, y);
}

static void copy_beyond(void)
{
	float *y = fixture_empty<float>(PLANTED_COUNT);
	cudaMemsetAsync(y + 1, 0, PLANTED_COUNT * sizeof(float), fixture_stream);
}

static __global__ void shared_kernel(int first, int last, float *y)
{
	CUDA_SHARED(float, room, PLANTED_THREADS);
	CUDA_SHARED(float, other, PLANTED_THREADS);
	other[threadIdx.x] = 1;
	float *to = room; /* of an array whose size it knows UBSan would tell first */
	for (int i = first + (int)threadIdx.x; i < last; i += PLANTED_THREADS)
		to[i] = 1;
	__syncthreads();
	y[threadIdx.x] = room[threadIdx.x] + other[threadIdx.x];
}

template <int FIRST, int LAST> static void shared(void)
{
	float *y = fixture_empty<float>(PLANTED_THREADS);
	CUDA_LAUNCH(shared_kernel, 2, PLANTED_THREADS, 0, FIRST, LAST, y);
	for (float value : fixture_host(y, PLANTED_THREADS))
		fixture_right(value == 2, "shared memory that nobody wrote");
}

/* -------------------------------------------------------------------------------------- launches
 */

static __global__ void dynamic_kernel(float *y)
{
	CUDA_SHARED_DYNAMIC(float, room);
	room[threadIdx.x] = (float)threadIdx.x;
	y[threadIdx.x] = room[threadIdx.x];
}

template <int BLOCK, int SHARED_BYTES, int ASKED> static void dynamic(void)
{
	if (ASKED > 0 &&
		cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ASKED) !=
			cudaSuccess)
		fprintf(stderr, "cudaFuncSetAttribute refuses\n");
	CUDA_LAUNCH(dynamic_kernel, 1, BLOCK, SHARED_BYTES, fixture_empty<float>(2048));
}

/* --------------------------------------------------------------------------------------- streams
 */

template <bool WAITS> static void host_reads(void)
{
	float *x = fixture_device(fixture_counting(PLANTED_COUNT));
	void *pinned = nullptr;
	cudaHostAlloc(&pinned, PLANTED_COUNT * sizeof(float), cudaHostAllocDefault);
	cudaMemcpyAsync(
		pinned, x, PLANTED_COUNT * sizeof(float), cudaMemcpyDeviceToHost, fixture_stream);
	if (WAITS)
		cudaStreamSynchronize(fixture_stream);
	float last = static_cast<volatile float *>(pinned)[PLANTED_COUNT - 1];
	cudaStreamSynchronize(fixture_stream); /* so that no wrong access is reported instead */
	fixture_right(last == PLANTED_COUNT, "read before it was there");
}

template <bool WAITS> static void two_streams(void)
{
	cudaStream_t second;
	cudaEvent_t event;
	cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
	cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
	float *x = fixture_device(fixture_counting(PLANTED_COUNT));
	float *y = fixture_empty<float>(PLANTED_COUNT);
	std::vector<float> host(PLANTED_COUNT);
	CUDA_LAUNCH(add_kernel, 2, PLANTED_THREADS, 0, (int64_t)0, (int64_t)PLANTED_COUNT, x, y);
	cudaEventRecord(event, fixture_stream);
	if (WAITS)
		cudaStreamWaitEvent(second, event, 0);
	cudaMemcpyAsync(host.data(), y, PLANTED_COUNT * sizeof(float), cudaMemcpyDeviceToHost, second);
	cudaStreamSynchronize(second);
	cudaStreamSynchronize(fixture_stream);
	fixture_right(host[PLANTED_COUNT - 1] == PLANTED_COUNT + 1, "copied before it was there");
	cudaEventDestroy(event);
	cudaStreamDestroy(second);
}

/* ----------------------------------------------------------------------------------------- cases
 */

/* says: in the report of every seed. wrong: the result is wrong under some seeds. dies: by a signal
 * or by a report of ASan. None of them: passes under every seed. */
struct planted {
	const char *name;
	void (*run)(void);
	const char *says;
	bool wrong;
	bool dies;
};

#ifdef __SANITIZE_ADDRESS__
enum { PLANTED_ASAN = true };
#define PLANTED_ZONE(text) "AddressSanitizer: use-after-poison"
#else
enum { PLANTED_ASAN = false };
#define PLANTED_ZONE(text) text
#endif

static const struct planted planted_cases[] = {
	{ "barrier", turn<true>, nullptr, false, false },
	{ "no barrier before reading", turn<false>, nullptr, true, false },
	{ "barriers of rounds", rounds<true>, nullptr, false, false },
	{ "no barrier before the next round", rounds<false>, nullptr, true, false },
	{ "__syncwarp", step<true>, nullptr, false, false },
	{ "no __syncwarp", step<false>, nullptr, true, false },
	{ "all come to the barrier", ended<PLANTED_THREADS>, nullptr, false, false },
	{ "a thread ends before the barrier", ended<PLANTED_THREADS - 1>, "ended", false, false },
	{ "two barriers", branch, "came to the barrier at", false, false },
	{ "all lanes come", lanes<CUDA_WARP>, nullptr, false, false },
	{ "lanes stay away", lanes<16>, "no thread can go on: 16 of 32 threads wait at", false, false },
	{ "all lanes live", lanes_ended<CUDA_WARP>, nullptr, false, false },
	{ "lanes have ended", lanes_ended<31>, "ended", false, false },
	{ "all written", add_all, nullptr, false, false },
	{ "a write beyond", write_beyond, PLANTED_ZONE("beyond its end"), false, false },
	{ "a write before", write_before, PLANTED_ZONE("before its beginning"), false, false },
	{ "a read beyond", read_beyond, PLANTED_ZONE("made of what is beyond"), !PLANTED_ASAN, false },
	{ "an output unwritten", unwritten, "an output that nobody wrote", true, false },
	{ "memory that was freed", freed, nullptr, false, true },
	{ "a fill beyond", copy_beyond, "at offset 4 of device memory of 4000 bytes", false, false },
	{ "shared", shared<0, PLANTED_THREADS>, nullptr, false, false },
	{ "shared unwritten", shared<0, PLANTED_THREADS - 1>, "shared memory that nobody", true,
		false },
	{ "a shared write beyond", shared<0, PLANTED_THREADS + 1>,
		PLANTED_ZONE("beyond shared array room of 384 bytes"), false, false },
	{ "a shared write before", shared<-1, PLANTED_THREADS>, PLANTED_ZONE("wrote b"), false, false },
	{ "dynamic", dynamic<1024, 48 << 10, 0>, nullptr, false, false },
	{ "dynamic, asked for", dynamic<1024, 227 << 10, 227 << 10>, nullptr, false, false },
	{ "dynamic, not asked for", dynamic<32, 49 << 10, 0>, "by cudaFuncSetAttribute", false, false },
	{ "dynamic, too much", dynamic<32, 228 << 10, 228 << 10>, "SetAttribute refuses", false,
		false },
	{ "dynamic beyond", dynamic<33, 128, 0>, PLANTED_ZONE("beyond shared array (dynamic)"), false,
		false },
	{ "a block too large", dynamic<1025, 8192, 0>, "a block of 1025 x 1 x 1", false, false },
	{ "the host waits", host_reads<true>, nullptr, false, false },
	{ "the host does not wait", host_reads<false>, nullptr, true, false },
	{ "a stream waits", two_streams<true>, nullptr, false, false },
	{ "a stream does not wait", two_streams<false>, nullptr, true, false },
};

/* Under how many seeds the case was caught; -1 when it was caught by something else. */
static int planted_run(const struct planted *p)
{
	int caught = 0;
	for (unsigned seed = 1; seed <= PLANTED_SEEDS; seed++) {
		struct fixture_end end = fixture_child(seed, p->run);
		bool wrong = WIFEXITED(end.status) && WEXITSTATUS(end.status) == FIXTURE_WRONG;
		bool passed = WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0;
		bool said = p->says == nullptr || end.text.find(p->says) != std::string::npos;
		bool dies = p->dies || (p->says != nullptr && !p->wrong);
		if (passed)
			continue;
		caught++;
		if ((wrong && p->wrong && said) || (!wrong && dies && said))
			continue;
		printf("%s", end.text.c_str());
		return -1;
	}
	return caught;
}

int main(void)
{
	int failed = 0;
	for (const struct planted &p : planted_cases) {
		bool bug = p.says != nullptr || p.wrong || p.dies;
		bool every = p.says != nullptr || p.dies;
		int caught = planted_run(&p);
		bool good = bug ? caught > 0 && (!every || caught == PLANTED_SEEDS) : caught == 0;
		printf("%s %-36s caught under %d of %d seeds\n", good ? "ok  " : "FAIL", p.name, caught,
			PLANTED_SEEDS);
		failed += !good;
	}
	return failed != 0;
}
