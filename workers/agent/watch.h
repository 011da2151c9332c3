/* SPDX-License-Identifier: Apache-2.0
 * The thread that waits for errors of the machine's GPUs. It only notes faults; what runs on a
 * device with one is ended by the main thread (advance_fault.c). */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/agent/agent.h"

/* Does nothing on a machine without GPUs. The thread runs for good. */
int watch_start(struct agent *a, struct err *err) must_check;
