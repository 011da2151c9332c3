/* SPDX-License-Identifier: Apache-2.0
 * In place of comm_gloo.cc where Gloo is not installed. */
#include "workers/comm/comm_private.h"

int comm_gloo_open(const struct comm_options *o, struct comm_wire **ret, struct err *err)
{
	(void)ret;
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"the group %s has %d ranks, and this build has no transport (libgloo-dev)", o->name,
		o->size);
}
