/* SPDX-License-Identifier: Apache-2.0
 * Planted: a handler includes another handler, and one that is not the quote's includes the plan. */
#include "server/handlers/b.h"
#include "server/handlers/handlers.h"
#include "workers/plan/plan.h"
