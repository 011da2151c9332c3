/* SPDX-License-Identifier: Apache-2.0
 * Planted: the engine includes JSON and more of the spec than its struct. */
#include "core/json/reader.h"
#include "core/spec/spec.h"
#include "core/spec/spec_json.h"
#include "workers/plan/plan.h"
