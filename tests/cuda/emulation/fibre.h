/* SPDX-License-Identifier: Apache-2.0
 * Stacks that one thread switches between (boost.context; known to ASan). Used by block.cc: one set
 * a thread, and a fibre never moves to another thread. */
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <stddef.h>

/* Zeroed before use; the first fibre of a thread is the thread's own stack and needs no more. */
struct fibre {
	boost::context::detail::fcontext_t context;
	void *stack;        /* of fibre_create */
	const void *bottom; /* what ASan is told */
	size_t bytes;
	void *fake;
	void (*run)(struct fibre *fibre);
};

/* run never returns: it switches away for the last time. */
void fibre_create(struct fibre *fibre, void (*run)(struct fibre *fibre));
void fibre_destroy(struct fibre *fibre);
/* Returns when somebody switches to `from` again. */
void fibre_switch(struct fibre *from, struct fibre *to);
