/* SPDX-License-Identifier: Apache-2.0
 * How ranks of several machines meet: each machine's trainers put values into the attempt's folder
 * rendezvous/, and a thread of this run carries them through the yard into those of the others.
 * Machines wait there for each other, too, before they start trainers. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/agent/agent.h"

#include <stdbool.h>

/* With the lock held. Starts the thread, unless it runs or the attempt has one machine only. It
 * ends when the run is abandoned, or over. */
int meet_start(struct agent *a, struct run *r, struct err *err) must_check;
/* Says that this machine is prepared. Again changes nothing. */
int meet_tell_prepared(const struct run *r, struct err *err) must_check;
/* All machines of the attempt are. */
bool meet_all_prepared(const struct run *r);
