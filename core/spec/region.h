/* SPDX-License-Identifier: Apache-2.0
 * The tree of regions: any > us > us-east > us-east-1, … The one place that knows it; asked by
 * core/model/residency.c and by the agent before it fetches a byte. Thread-safe. */
#pragma once

#include "core/base/attr.h"

#include <stdbool.h>

/* A region that the tree lists. NULL and "" are not. */
bool region_known(const char *name);
/* True when both are known and inner is outer or lies below it. Unknown means refused. */
bool region_contains(const char *outer, const char *inner);
/* The parent ("us" of "us-east"); NULL for "any" and for what is unknown. */
const char *region_parent(const char *name);
