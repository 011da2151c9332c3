/* SPDX-License-Identifier: Apache-2.0
 * The scheduler of a block's threads (block.h). A fibre that ends one thread begins the next one,
 * so a kernel that never waits needs one fibre and no switch; a thread that waits goes away with
 * its fibre. One scheduler a stream's thread. */
#include "tests/cuda/emulation/block.h"

#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/fibre.h"
#include "tests/cuda/emulation/report.h"
#include "tests/cuda/emulation/shared.h"

#include <memory>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { BLOCK_WARPS_MAX = EMULATION_THREADS_MAX / EMULATION_WARP };

/* A thread's fibre, and what it waits with. */
struct worker {
	struct fibre fibre; /* first: the fibre's run finds its worker */
	struct emulation_place at;
	struct scheduler *scheduler;
	int thread;
	/* of the wait */
	const char *file;
	int line;
	enum emulation_exchange kind;
	unsigned mask;
	int source;
	uint64_t value; /* brought, then given */
};

struct warp {
	unsigned there; /* lanes that the block has */
	unsigned ended;
	unsigned waiting; /* in an exchange */
};

struct scheduler {
	struct fibre host; /* the stream's thread */
	struct worker *running;
	const struct emulation_launch *launch;
	uint3 block_idx;
	int threads;
	int live;
	uint64_t random;
	/* threads that can go on: without a worker when they have not begun */
	int ready[EMULATION_THREADS_MAX];
	int ready_count;
	struct worker *workers[EMULATION_THREADS_MAX];
	struct warp warps[BLOCK_WARPS_MAX];
	/* the barrier */
	int barrier[EMULATION_THREADS_MAX];
	int barrier_count;
	int barrier_predicates;
	std::vector<std::unique_ptr<struct worker>> all;
	std::vector<struct worker *> idle;
	struct shared_room *shared;

	scheduler()
		: host(), running(), launch(), block_idx(), threads(), live(), random(), ready(),
		  ready_count(), workers(), warps(), barrier(), barrier_count(), barrier_predicates(),
		  shared(shared_create())
	{
	}
	~scheduler()
	{
		for (auto &worker : all)
			fibre_destroy(&worker->fibre);
		shared_destroy(shared);
	}
};

__thread struct emulation_place *emulation_here;
static thread_local std::unique_ptr<struct scheduler> block_scheduler;
static __thread struct scheduler *block_running; /* block_scheduler's, while a launch runs */

static struct scheduler *block_mine(void)
{
	struct scheduler *s = block_running;
	if (s == nullptr)
		emulation_report("a function of kernels was called outside of one");
	return s;
}

static uint32_t block_below(struct scheduler *s, uint32_t count)
{
	return (uint32_t)(((emulation_random(&s->random) >> 32) * count) >> 32);
}

/* ------------------------------------------------------------------------------------- reports */

[[noreturn]] static void block_report(struct scheduler *s, const char *what)
{
	const struct worker *w = s->running;
	emulation_report("kernel %s, block (%u, %u, %u), thread %d: %s", s->launch->name,
		s->block_idx.x, s->block_idx.y, s->block_idx.z, w->thread, what);
}

/* Nobody can go on: says who waits where. */
[[noreturn]] static void block_stuck(struct scheduler *s)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "no thread can go on:");
	if (s->barrier_count > 0) {
		const struct worker *w = s->workers[s->barrier[0]];
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %d of %d threads wait at %s:%d;",
			s->barrier_count, s->threads, w->file, w->line);
	}
	for (int i = 0; i < BLOCK_WARPS_MAX; i++) {
		unsigned waiting = s->warps[i].waiting;
		if (waiting == 0)
			continue;
		const struct worker *w = s->workers[i * EMULATION_WARP + __builtin_ctz(waiting)];
		snprintf(text + n, sizeof(text) - (size_t)n,
			" lanes %#x of warp %d wait at %s:%d for all of %#x", waiting, i, w->file, w->line,
			w->mask);
		break;
	}
	block_report(s, text);
}

/* --------------------------------------------------------------------------------- scheduling */

static int block_draw(struct scheduler *s)
{
	if (s->ready_count == 0)
		block_stuck(s);
	uint32_t i = block_below(s, (uint32_t)s->ready_count);
	int thread = s->ready[i];
	s->ready[i] = s->ready[--s->ready_count];
	return thread;
}

static void block_begin(struct scheduler *s, struct worker *w, int thread)
{
	dim3 size = s->launch->block;
	unsigned x = (unsigned)thread;
	w->thread = thread;
	w->at.thread_idx = { x % size.x, x / size.x % size.y, x / size.x / size.y };
	w->at.block_idx = s->block_idx;
	w->at.block_dim = size;
	w->at.grid_dim = s->launch->grid;
	s->workers[thread] = w;
	s->running = w;
	emulation_here = &w->at;
}

/* The running thread's end. One that others wait for is the end of all. */
static void block_end(struct scheduler *s)
{
	int thread = s->running->thread;
	struct warp *warp = &s->warps[thread / EMULATION_WARP];
	unsigned lane = 1u << thread % EMULATION_WARP;
	if (s->barrier_count > 0) {
		const struct worker *w = s->workers[s->barrier[0]];
		emulation_report("kernel %s, block (%u, %u, %u): thread %d ended while others wait at "
						 "the barrier at %s:%d",
			s->launch->name, s->block_idx.x, s->block_idx.y, s->block_idx.z, thread, w->file,
			w->line);
	}
	for (unsigned waiting = warp->waiting; waiting != 0; waiting &= waiting - 1) {
		const struct worker *w =
			s->workers[thread / EMULATION_WARP * EMULATION_WARP + __builtin_ctz(waiting)];
		if ((w->mask & lane) != 0)
			emulation_report("kernel %s, block (%u, %u, %u): thread %d ended while lanes of its "
							 "warp wait for it in an exchange at %s:%d",
				s->launch->name, s->block_idx.x, s->block_idx.y, s->block_idx.z, thread, w->file,
				w->line);
	}
	warp->ended |= lane;
	s->workers[thread] = nullptr;
	s->live--;
}

static void block_work(struct fibre *fibre)
{
	struct worker *w = reinterpret_cast<struct worker *>(fibre);
	struct scheduler *s = w->scheduler;
	for (;;) {
		s->launch->thread();
		block_end(s);
		if (s->live == 0) {
			s->idle.push_back(w);
			fibre_switch(fibre, &s->host);
			continue;
		}
		int thread = block_draw(s);
		struct worker *next = s->workers[thread];
		if (next == nullptr) {
			block_begin(s, w, thread);
			continue;
		}
		s->idle.push_back(w);
		s->running = next;
		emulation_here = &next->at;
		fibre_switch(fibre, &next->fibre);
	}
}

static struct worker *block_idle(struct scheduler *s)
{
	if (s->idle.empty()) {
		std::unique_ptr<struct worker> w(new struct worker());
		w->scheduler = s;
		fibre_create(&w->fibre, block_work);
		s->idle.push_back(w.get());
		s->all.push_back(std::move(w));
	}
	struct worker *w = s->idle.back();
	s->idle.pop_back();
	return w;
}

/* The running thread lets another go on; returns when its own turn comes. */
static void block_wait(struct scheduler *s)
{
	struct worker *self = s->running;
	int thread = block_draw(s);
	struct worker *next = s->workers[thread];
	if (next == self)
		return;
	if (next == nullptr)
		block_begin(s, next = block_idle(s), thread);
	s->running = next;
	emulation_here = &next->at;
	fibre_switch(&self->fibre, &next->fibre);
}

/* ------------------------------------------------------------------------------------- barriers */

static bool block_same_place(const struct worker *a, const struct worker *b)
{
	return a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

int emulation_barrier(int predicate, const char *file, int line)
{
	struct scheduler *s = block_mine();
	struct worker *self = s->running;
	self->file = file;
	self->line = line;
	if (s->barrier_count > 0 && !block_same_place(self, s->workers[s->barrier[0]])) {
		const struct worker *other = s->workers[s->barrier[0]];
		char text[400];
		snprintf(text, sizeof(text), "came to the barrier at %s:%d while thread %d waits at %s:%d",
			file, line, other->thread, other->file, other->line);
		block_report(s, text);
	}
	if (s->live != s->threads) {
		char text[300];
		snprintf(text, sizeof(text), "came to the barrier at %s:%d, but %d threads have ended",
			file, line, s->threads - s->live);
		block_report(s, text);
	}
	s->barrier[s->barrier_count++] = self->thread;
	s->barrier_predicates += predicate != 0;
	if (s->barrier_count == s->threads) {
		for (int i = 0; i < s->barrier_count; i++) {
			s->workers[s->barrier[i]]->value = (uint64_t)s->barrier_predicates;
			s->ready[s->ready_count++] = s->barrier[i];
		}
		s->barrier_count = 0;
		s->barrier_predicates = 0;
	}
	block_wait(s);
	return (int)self->value;
}

/* ------------------------------------------------------------------------------------ exchanges */

int emulation_lane(void)
{
	return block_mine()->running->thread % EMULATION_WARP;
}

static uint64_t block_combine(enum emulation_exchange kind, uint64_t x, uint64_t y)
{
	switch (kind) {
	case EMULATION_ADD: return x + y;
	case EMULATION_AND: return x & y;
	case EMULATION_OR: return x | y;
	case EMULATION_XOR: return x ^ y;
	case EMULATION_MIN: return x < y ? x : y;
	case EMULATION_MAX: return x > y ? x : y;
	case EMULATION_MIN_SIGNED: return (int64_t)x < (int64_t)y ? x : y;
	case EMULATION_MAX_SIGNED: return (int64_t)x > (int64_t)y ? x : y;
	default: return 0;
	}
}

/* All lanes of mask are here: gives each its result. lanes are the warp's 32 workers. */
static void block_exchange(enum emulation_exchange kind, unsigned mask, struct worker **lanes)
{
	uint64_t brought[EMULATION_WARP], all = 0;
	bool first = true;
	for (unsigned left = mask; left != 0; left &= left - 1) {
		int lane = __builtin_ctz(left);
		brought[lane] = lanes[lane]->value;
		if (kind == EMULATION_BALLOT)
			all |= (uint64_t)(brought[lane] != 0) << lane;
		else
			all = first ? brought[lane] : block_combine(kind, all, brought[lane]);
		first = false;
	}
	for (unsigned left = mask; left != 0; left &= left - 1) {
		struct worker *w = lanes[__builtin_ctz(left)];
		if (kind == EMULATION_SHUFFLE) {
			bool named = w->source >= 0 && w->source < EMULATION_WARP && (mask >> w->source & 1);
			w->value = named ? brought[w->source] : EMULATION_POISON * 0x0001000100010001u;
		} else if (kind == EMULATION_MATCH) {
			uint64_t own = w->value, same = 0;
			for (unsigned others = mask; others != 0; others &= others - 1)
				same |= (uint64_t)(brought[__builtin_ctz(others)] == own) << __builtin_ctz(others);
			w->value = same;
		} else {
			w->value = all;
		}
	}
}

static void block_exchange_check(struct scheduler *s, const struct warp *warp)
{
	const struct worker *self = s->running;
	char text[400];
	if ((self->mask >> self->thread % EMULATION_WARP & 1) == 0) {
		snprintf(text, sizeof(text), "calls the exchange at %s:%d with a mask %#x without itself",
			self->file, self->line, self->mask);
		block_report(s, text);
	}
	unsigned lost = self->mask & (warp->ended | ~warp->there);
	if (lost != 0) {
		snprintf(text, sizeof(text),
			"the exchange at %s:%d names lanes %#x, which have ended or never were", self->file,
			self->line, lost);
		block_report(s, text);
	}
}

/* Whether w waits in the exchange that the running thread has come to. It may still be in one
 * before it, of other lanes; but not in one that waits for the running thread. */
static bool block_exchange_same(struct scheduler *s, const struct worker *w)
{
	const struct worker *self = s->running;
	if (self->mask == w->mask && self->kind == w->kind && block_same_place(self, w))
		return true;
	if ((w->mask >> self->thread % EMULATION_WARP & 1) == 0)
		return false;
	char text[400];
	snprintf(text, sizeof(text),
		"came to the exchange at %s:%d of lanes %#x while thread %d waits for it at %s:%d in one "
		"of lanes %#x",
		self->file, self->line, self->mask, w->thread, w->file, w->line, w->mask);
	block_report(s, text);
}

uint64_t emulation_warp_exchange(enum emulation_exchange kind, unsigned mask, uint64_t value,
	int source, const char *file, int line)
{
	struct scheduler *s = block_mine();
	struct worker *self = s->running;
	int warp_index = self->thread / EMULATION_WARP, first = warp_index * EMULATION_WARP;
	struct warp *warp = &s->warps[warp_index];
	self->kind = kind;
	self->mask = mask;
	self->value = value;
	self->source = source;
	self->file = file;
	self->line = line;
	block_exchange_check(s, warp);
	/* One of those that wait is looked at now, all of them when all are here. */
	if ((warp->waiting & mask) != 0)
		(void)block_exchange_same(s, s->workers[first + __builtin_ctz(warp->waiting & mask)]);
	warp->waiting |= 1u << self->thread % EMULATION_WARP;
	bool all = (warp->waiting & mask) == mask;
	for (unsigned left = all ? mask : 0; left != 0; left &= left - 1)
		all = block_exchange_same(s, s->workers[first + __builtin_ctz(left)]) && all;
	if (all) {
		block_exchange(kind, mask, &s->workers[first]);
		warp->waiting &= ~mask;
		for (unsigned left = mask; left != 0; left &= left - 1)
			s->ready[s->ready_count++] = first + __builtin_ctz(left);
	}
	block_wait(s);
	return self->value;
}

/* --------------------------------------------------------------------------------------- blocks */

void *emulation_shared(const void *place, size_t bytes, const char *name)
{
	return shared_static(block_mine()->shared, place, bytes, name);
}

void *emulation_shared_dynamic(void)
{
	return shared_dynamic(block_mine()->shared);
}

static void block_run(struct scheduler *s)
{
	s->live = s->threads;
	s->ready_count = s->threads;
	for (int i = 0; i < s->threads; i++)
		s->ready[i] = i;
	memset(s->workers, 0, (size_t)s->threads * sizeof(s->workers[0]));
	for (int i = 0; i * EMULATION_WARP < s->threads; i++) {
		int lanes = s->threads - i * EMULATION_WARP;
		s->warps[i] = { lanes < EMULATION_WARP ? (1u << lanes) - 1 : 0xffffffffu, 0, 0 };
	}
	shared_block_begin(s->shared);
	struct worker *w = block_idle(s);
	block_begin(s, w, block_draw(s));
	fibre_switch(&s->host, &w->fibre);
	emulation_here = nullptr;
	shared_block_end(s->shared);
}

/* Blocks in the order of i * step + begin: every order of this kind meets each block once. */
void emulation_block_run_all(const struct emulation_launch *launch, unsigned stream_number)
{
	if (block_scheduler == nullptr) {
		block_scheduler.reset(new struct scheduler());
		block_scheduler->random = emulation_seed() + stream_number * 0x632BE59BD9B4E019u;
	}
	struct scheduler *s = block_scheduler.get();
	dim3 grid = launch->grid;
	uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
	uint64_t at = emulation_random(&s->random) % blocks, step = 1, a, b;
	do {
		step = a = emulation_random(&s->random) % blocks;
		for (b = blocks; a != 0;) {
			uint64_t rest = b % a;
			b = a;
			a = rest;
		}
	} while (b != 1);
	block_running = s;
	s->launch = launch;
	s->threads = (int)(launch->block.x * launch->block.y * launch->block.z);
	shared_launch(s->shared, launch->name, launch->shared_bytes);
	for (uint64_t i = 0; i < blocks; i++, at = (at + step) % blocks) {
		s->block_idx = { (unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
			(unsigned)(at / grid.x / grid.y) };
		block_run(s);
	}
	s->launch = nullptr;
	block_running = nullptr;
}
