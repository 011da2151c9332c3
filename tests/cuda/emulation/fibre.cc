/* SPDX-License-Identifier: Apache-2.0
 * Fibres (fibre.h). */
#include "tests/cuda/emulation/fibre.h"

#include "tests/cuda/emulation/report.h"

#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

/* Pages are taken only when touched. The lowest one stays closed. Stacks begin at different places
 * of their pages: frames at the same address of every page would share a few lines of the cache. */
enum {
	FIBRE_STACK_BYTES = 256 << 10,
	FIBRE_GUARD_BYTES = 4096,
	FIBRE_COLOURS = 97,
	FIBRE_COLOUR_BYTES = 320,
};

struct fibre_transfer {
	struct fibre *from;
	struct fibre *to;
};

/* First thing on every stack that was switched to: keeps where the other one stands. */
static void fibre_arrived(transfer_t transfer)
{
	struct fibre_transfer *x = static_cast<struct fibre_transfer *>(transfer.data);
	struct fibre *from = x->from;
	from->context = transfer.fctx;
#ifdef __SANITIZE_ADDRESS__
	const void *bottom;
	size_t bytes;
	__sanitizer_finish_switch_fiber(x->to->fake, &bottom, &bytes);
	if (from->bottom == nullptr) {
		from->bottom = bottom;
		from->bytes = bytes;
	}
#endif
}

static void fibre_entry(transfer_t transfer)
{
	struct fibre *self = static_cast<struct fibre_transfer *>(transfer.data)->to;
	fibre_arrived(transfer);
	self->run(self);
	emulation_report("a fibre ran over its end");
}

void fibre_create(struct fibre *fibre, void (*run)(struct fibre *fibre))
{
	void *stack = mmap(nullptr, FIBRE_STACK_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED || mprotect(stack, FIBRE_GUARD_BYTES, PROT_NONE) != 0)
		emulation_report("no memory for a fibre's stack");
	fibre->stack = stack;
	fibre->bottom = static_cast<char *>(stack) + FIBRE_GUARD_BYTES;
	static __thread size_t count;
	size_t colour = count++ % FIBRE_COLOURS * FIBRE_COLOUR_BYTES;
	fibre->bytes = FIBRE_STACK_BYTES - FIBRE_GUARD_BYTES - colour;
	fibre->run = run;
	fibre->context = make_fcontext(
		static_cast<char *>(stack) + FIBRE_STACK_BYTES - colour, fibre->bytes, fibre_entry);
}

void fibre_destroy(struct fibre *fibre)
{
	if (fibre->stack == nullptr)
		return;
#ifdef __SANITIZE_ADDRESS__
	/* What the fibre's frames poisoned would stay so for whoever gets the addresses next. */
	__asan_unpoison_memory_region(fibre->bottom, fibre->bytes);
#endif
	munmap(fibre->stack, FIBRE_STACK_BYTES);
	fibre->stack = nullptr;
}

void fibre_switch(struct fibre *from, struct fibre *to)
{
	struct fibre_transfer transfer = { from, to };
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
	fibre_arrived(jump_fcontext(to->context, &transfer));
}
