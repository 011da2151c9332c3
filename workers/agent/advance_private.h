/* SPDX-License-Identifier: Apache-2.0
 * Between advance.c, advance_start.c and advance_ended.c: starting an attempt's trainers, finding
 * them again after the agent was restarted, and what their ends mean. With the agent's lock, on the
 * main thread. */
#pragma once

#include "core/base/attr.h"
#include "workers/agent/agent.h"

/* Queues the attempt's end, once. */
void advance_end(struct agent *a, struct run *r, const struct run_end *end);
/* Ends the trainers. While they live, what they still say comes first: the verdict, the first one,
 * is told when they are gone. */
void advance_judge(struct agent *a, struct run *r, const struct run_end *verdict);
void advance_kill(struct run *r);

/* Notices trainers that ended, and what they said before. */
void ended_reap(struct agent *a, struct run *r);
/* The same; and judges the attempt by the rank that ended by itself, or was the first to be lost.
 */
void ended_check(struct agent *a, struct run *r);

/* The attempt's devices may be used now: none has a fault, and nobody holds memory on them. Ends
 * the attempt where that is not to be expected any more. */
bool fault_devices_ready(struct agent *a, struct run *r);

/* One of the job's regions contains this machine's. */
bool start_residency_ok(const struct agent *a, const struct run *r);
/* Makes the attempt's folder with attempt.json. */
int start_folder(struct agent *a, struct run *r, struct err *err) must_check;
/* Marks the attempt as started, for good, then starts its trainers. */
int start_trainers(struct agent *a, struct run *r, struct err *err) must_check;
/* Trainers were started once, by this agent or the one before it. */
bool start_was_made(const struct run *r);
/* Connects to the living ones; the others count as ended. */
void start_find_again(struct agent *a, struct run *r);
/* A trainer found its rank taken: takes over the process that has it. False when it is gone. */
bool start_adopt(struct run *r, int rank);
