/* SPDX-License-Identifier: Apache-2.0
 * Planted: a unit test reaches further than its room. */
#include "core/base/err.h"
#include "core/model/job.h"
