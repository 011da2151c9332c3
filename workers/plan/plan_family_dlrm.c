/* SPDX-License-Identifier: Apache-2.0
 * The dlrm family. Called by plan.c. */
#include "workers/plan/plan_private.h"

void plan_family_dlrm(struct plan_build *b)
{
	plan_build_fail(
		b, ERR_INVALID_VALUE, "$.model.config.family", "the dlrm family is not planned yet");
}
