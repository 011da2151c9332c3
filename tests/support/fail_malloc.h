/* SPDX-License-Identifier: Apache-2.0
 * Lets the nth allocation of a test program fail, that of shared libraries too. For programs that
 * are built without sanitizers (these bring a malloc of their own). One thread. */
#pragma once

#include <stdbool.h>

/* The allocation after `after` more of them fails; a negative number switches it off. */
void fail_malloc_after(long after);
/* True when the failure has happened since it was asked for. */
bool fail_malloc_happened(void);
