/* SPDX-License-Identifier: Apache-2.0
 * The host's twin of workers/engine/cuda/mma.h, which includes this where CUDA_EMULATION is
 * defined and states the layout of fragments. Lanes read each other's registers as the device's
 * instructions do, so a fragment that was loaded wrongly gives a wrong product here as well. */
#pragma once

#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/report.h"

#include <string.h>
#include <vector>

/* What each lane brings. Lanes are fibres of one thread, whose stacks stay while all are inside. */
struct emulation_lanes {
	const void *of[EMULATION_WARP];
};

static inline void emulation_lanes_open(
	struct emulation_lanes *lanes, const void *mine, const char *file, int line)
{
	struct emulation_lanes *first = emulation_shuffle(0xffffffffu, lanes, 0, file, line);
	first->of[emulation_lane()] = mine;
	__syncwarp(0xffffffffu, file, line);
	*lanes = *first;
}

/* Only behind this may what a lane brought change. */
static inline void emulation_lanes_close(const char *file, int line)
{
	__syncwarp(0xffffffffu, file, line);
}

/* [register][half] */
struct emulation_mma_operands {
	float a[4][2];
	float b[2][2];
};

template <typename T> static inline void emulation_halves(unsigned bits, float (&ret)[2])
{
	T pair[2];
	memcpy(static_cast<void *>(pair), &bits, sizeof(bits));
	ret[0] = act_float(pair[0]);
	ret[1] = act_float(pair[1]);
}

template <typename T>
static inline void mma_add(float &s0, float &s1, float &s2, float &s3, const unsigned (&a)[4],
	unsigned b0, unsigned b1, EMULATION_AT)
{
	struct emulation_mma_operands mine;
	struct emulation_lanes lanes;
	for (int i = 0; i < 4; i++)
		emulation_halves<T>(a[i], mine.a[i]);
	emulation_halves<T>(b0, mine.b[0]);
	emulation_halves<T>(b1, mine.b[1]);
	emulation_lanes_open(&lanes, &mine, file, line);
	int g = emulation_lane() / 4, c = 2 * (emulation_lane() % 4);
	float *sums[4] = { &s0, &s1, &s2, &s3 };
	for (int i = 0; i < 4; i++) {
		int row = g + i / 2 * 8, column = c + i % 2;
		for (int k = 0; k < 16; k++) {
			const auto *of_a = static_cast<const struct emulation_mma_operands *>(
				lanes.of[row % 8 * 4 + k % 8 / 2]);
			const auto *of_b = static_cast<const struct emulation_mma_operands *>(
				lanes.of[column * 4 + k % 8 / 2]);
			*sums[i] += of_a->a[row / 8 + k / 8 * 2][k % 2] * of_b->b[k / 8][k % 2];
		}
	}
	emulation_lanes_close(file, line);
}

static inline void emulation_load_squares(
	unsigned (&ret)[4], const void *row, bool across, const char *file, int line)
{
	if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
		emulation_report("%s:%d: a row of a square at %p", file, line, row);
	struct emulation_lanes lanes;
	emulation_lanes_open(&lanes, row, file, line);
	int g = emulation_lane() / 4, c = 2 * (emulation_lane() % 4);
	for (int square = 0; square < 4; square++) {
		uint16_t pair[2];
		for (int i = 0; i < 2; i++) {
			int r = across ? c + i : g, column = across ? g : c + i;
			const auto *from = static_cast<const uint16_t *>(lanes.of[square * 8 + r]);
			pair[i] = from[column];
		}
		memcpy(&ret[square], pair, sizeof(pair));
	}
	emulation_lanes_close(file, line);
}

static inline void mma_load(unsigned (&ret)[4], const void *row, EMULATION_AT)
{
	emulation_load_squares(ret, row, false, file, line);
}
static inline void mma_load_across(unsigned (&ret)[4], const void *row, EMULATION_AT)
{
	emulation_load_squares(ret, row, true, file, line);
}

/* Nothing arrives before it was waited for: until then NaN stands there. */
struct mma_copies {
	struct copy {
		void *to;
		const void *from;
		size_t bytes;
		bool real;
	};
	std::vector<std::vector<copy>> committed;
	std::vector<copy> open;

	template <int BYTES> void add(void *to, const void *from, bool real)
	{
		static_assert(BYTES == 4 || BYTES == 16, "what mma.h has");
		if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % BYTES != 0)
			emulation_report("a copy of %d bytes from %p to %p", BYTES, from, to);
		memset(to, 0xFF, BYTES);
		open.push_back({ to, from, BYTES, real });
	}
	void commit(void)
	{
		committed.push_back(std::move(open));
		open.clear();
	}
	template <int N> void wait(void)
	{
		while (committed.size() > N) {
			for (const copy &c : committed.front())
				if (c.real)
					memcpy(c.to, c.from, c.bytes);
				else
					memset(c.to, 0, c.bytes);
			committed.erase(committed.begin());
		}
	}
};
