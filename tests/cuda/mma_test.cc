/* SPDX-License-Identifier: Apache-2.0
 * Fragments of tensor cores under the emulation: products of random tiles are those of plain loops,
 * loaded each way, chained, in two parts; copies are there once they were waited for, not before.
 */
#include "tests/cuda/kernel_fixture.h"
#include "workers/engine/cuda/mma.h"

#include <random>

enum { MMA_SEEDS = 6, MMA_SIDE = 16, MMA_STRIDE = 24 };

static std::mt19937 mma_random;

template <typename T> static std::vector<T> mma_tile(void)
{
	std::uniform_real_distribution<float> uniform(-1, 1);
	std::vector<T> x(MMA_SIDE * MMA_SIDE);
	for (T &v : x)
		v = act_round<T>(uniform(mma_random));
	return x;
}

template <typename T> static std::vector<float> mma_floats(const std::vector<T> &x)
{
	std::vector<float> y;
	for (const T &v : x)
		y.push_back(act_float(v));
	return y;
}

static std::vector<double> mma_plain(const std::vector<float> &a, const std::vector<float> &b)
{
	std::vector<double> c(MMA_SIDE * MMA_SIDE);
	for (size_t i = 0; i < c.size(); i++)
		for (size_t k = 0; k < MMA_SIDE; k++)
			c[i] += (double)a[i / MMA_SIDE * MMA_SIDE + k] * b[k * MMA_SIDE + i % MMA_SIDE];
	return c;
}

static void mma_near(const std::vector<float> &x, const std::vector<double> &want, double tolerance,
	const char *what)
{
	for (size_t i = 0; i < x.size(); i++)
		fixture_right(fabs((double)x[i] - want[i]) <= tolerance, what);
}

template <typename T> static __device__ void mma_fill(T *tile, const T *x, bool turned)
{
	for (int i = (int)threadIdx.x; i < MMA_SIDE * MMA_SIDE; i += CUDA_WARP) {
		int row = i / MMA_SIDE, column = i % MMA_SIDE;
		tile[turned ? column * MMA_STRIDE + row : row * MMA_STRIDE + column] = x[i];
	}
}

/* y = a b; then z = (a b) b, whose first operand is the sums themselves, in two parts. */
template <typename T>
static __global__ void product_kernel(const T *a, const T *b, bool turned, float *y, float *z)
{
	CUDA_SHARED(T, tile_a, MMA_SIDE * MMA_STRIDE);
	CUDA_SHARED(T, tile_b, MMA_SIDE * MMA_STRIDE);
	unsigned fa[4], fb[4], whole[4], rest[4];
	float s[2][4] = {}, t[2][4] = {};
	int g = (int)threadIdx.x / 4, c = (int)threadIdx.x % 4 * 2;
	mma_fill(tile_a, a, false);
	mma_fill(tile_b, b, turned);
	__syncthreads();
	mma_load(fa, mma_row_a(tile_a, MMA_STRIDE));
	if (turned)
		mma_load(fb, mma_row_b(tile_b, MMA_STRIDE));
	else
		mma_load_across(fb, mma_row_b_across(tile_b, MMA_STRIDE));
	for (int n = 0; n < 2; n++)
		mma_add<T>(s[n][0], s[n][1], s[n][2], s[n][3], fa, fb[2 * n], fb[2 * n + 1]);
	for (int i = 0; i < 4; i++) {
		float x0 = s[i / 2][i % 2 * 2], x1 = s[i / 2][i % 2 * 2 + 1];
		whole[i] = mma_pair<T>(x0, x1);
		rest[i] = mma_pair_rest<T>(whole[i], x0, x1);
	}
	for (int n = 0; n < 2; n++) {
		mma_add<T>(t[n][0], t[n][1], t[n][2], t[n][3], rest, fb[2 * n], fb[2 * n + 1]);
		mma_add<T>(t[n][0], t[n][1], t[n][2], t[n][3], whole, fb[2 * n], fb[2 * n + 1]);
	}
	for (int n = 0; n < 2; n++)
		for (int i = 0; i < 4; i++) {
			int at = (g + i / 2 * 8) * MMA_SIDE + n * 8 + c + i % 2;
			y[at] = s[n][i];
			z[at] = t[n][i];
		}
}

template <typename T> static void product_of(void)
{
	std::vector<T> a = mma_tile<T>(), b = mma_tile<T>();
	std::vector<double> once = mma_plain(mma_floats(a), mma_floats(b));
	std::vector<double> twice =
		mma_plain(std::vector<float>(once.begin(), once.end()), mma_floats(b));
	T *da = fixture_device(a), *db = fixture_device(b);
	for (bool turned : { false, true }) {
		float *y = fixture_empty<float>(a.size()), *z = fixture_empty<float>(a.size());
		CUDA_LAUNCH((product_kernel<T>), 1, CUDA_WARP, 0, da, db, turned, y, z);
		mma_near(fixture_host(y, a.size()), once, 2e-6, "not the product");
		/* One part alone: 2.8e-2 with bf16, 3e-3 with fp16. */
		mma_near(fixture_host(z, a.size()), twice, 2e-4, "not the product of the product");
	}
}

static void products(void)
{
	for (int i = 0; i < 4; i++) {
		product_of<__nv_bfloat16>();
		product_of<__half>();
	}
}

/* Two groups of copies on their way: the first is there, the second not, until all were waited
 * for. Bit 0 of a thread's result: something stood there too early; bit 1: too late. */
static __global__ void copies_kernel(const float *x, unsigned *wrong)
{
	CUDA_SHARED(float, first, 4 * CUDA_WARP);
	CUDA_SHARED(float, second, CUDA_WARP);
	int i = (int)threadIdx.x;
	struct mma_copies copies;
	copies.template add<16>(first + 4 * i, x + 4 * i, i != 5);
	copies.commit();
	copies.template add<4>(second + i, x + i, i != 7);
	copies.commit();
	copies.template wait<1>();
	unsigned bad = !isnan(second[i]);
	for (int k = 0; k < 4; k++)
		bad |= (first[4 * i + k] != (i == 5 ? 0 : x[4 * i + k])) << 1;
	copies.template wait<0>();
	bad |= (second[i] != (i == 7 ? 0 : x[i])) << 1;
	wrong[i] = bad;
}

static void copies(void)
{
	float *x = fixture_device(fixture_counting(4 * CUDA_WARP));
	unsigned *wrong = fixture_empty<unsigned>(CUDA_WARP);
	CUDA_LAUNCH(copies_kernel, 1, CUDA_WARP, 0, x, wrong);
	for (unsigned bad : fixture_host(wrong, CUDA_WARP))
		fixture_right(bad == 0, bad & 1 ? "a copy before its wait" : "a wrong copy");
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "products", products }, { "copies", copies } };
	unsigned first = std::random_device()();
	int failed = 0;
	printf("seed %u\n", first);
	for (unsigned seed = first; seed < first + MMA_SEEDS; seed++)
		for (const auto &c : cases) {
			mma_random.seed(seed);
			struct fixture_end end = fixture_child(seed, c.run);
			if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0)
				continue;
			printf("%s, seed %u: status %#x\n%s\n", c.name, seed, end.status, end.text.c_str());
			failed = 1;
		}
	return failed;
}
