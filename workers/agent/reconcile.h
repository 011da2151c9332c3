/* SPDX-License-Identifier: Apache-2.0
 * Making the runs of this machine what the yard's list says. Called by the poll's thread. */
#pragma once

#include "workers/agent/agent.h"

/* With the lock held. list: the poll's `attempts`; began_us: monotonic, when that poll was sent. */
void reconcile_list(struct agent *a, const struct json_val *list, int64_t began_us);
