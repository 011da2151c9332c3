/* SPDX-License-Identifier: Apache-2.0
 * In place of comm_gloo.cc where Gloo is not installed. */
#include "workers/comm/comm_private.h"

int comm_gloo_open(
	const struct comm_options *o, int64_t deadline_us, struct comm_wire **ret, struct err *err)
{
	(void)deadline_us;
	(void)ret;
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"the group %s cannot be joined by shared memory, and this build has no TCP (libgloo-dev)",
		o->name);
}
