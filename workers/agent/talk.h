/* SPDX-License-Identifier: Apache-2.0
 * What is said between the agent and the trainers of one run (docs/protocol.md). On the main
 * thread, with the agent's lock. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/agent/agent.h"

/* Takes what the trainers said. A connection that broke is closed. */
void talk_read(struct agent *a, struct run *r);
/* First lines of a connection: what is stored, how long the lease is, orders that stand. */
void talk_hello(struct agent *a, struct run *r, struct run_rank *k);
/* To every rank. */
void talk_ack(struct run *r);
void talk_lease(struct agent *a, struct run *r);
void talk_stop(struct run *r);
