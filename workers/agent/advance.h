/* SPDX-License-Identifier: Apache-2.0
 * The life of a run: one function looks at where it stands and does what is due. Called on every
 * tick and whenever something happened, with the agent's lock; doing it twice changes nothing. */
#pragma once

#include "workers/agent/agent.h"

void advance_run(struct agent *a, struct run *r);
/* Ends the attempts whose devices have a fault that the yard does not know of yet, or marks them to
 * end when they are started. Before a report tells the fault, too (advance_fault.c). */
void advance_faults(struct agent *a);
/* The attempt is no longer ours: kill, delete, forget. */
void advance_over(struct agent *a, struct run *r, const char *why);
/* The attempt fails by our own finding; living trainers are killed first. */
void advance_fail(struct agent *a, struct run *r, const char *reason, const char *message);
