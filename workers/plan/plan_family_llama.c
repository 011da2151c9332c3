/* SPDX-License-Identifier: Apache-2.0
 * The llama family. Called by plan.c. */
#include "workers/plan/plan_private.h"

void plan_family_llama(struct plan_build *b)
{
	plan_build_fail(
		b, ERR_INVALID_VALUE, "$.model.config.family", "the llama family is not planned yet");
}
