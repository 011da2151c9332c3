/* SPDX-License-Identifier: Apache-2.0
 * Planted: the base includes something above it, and not from the root. */
#include "core/base/up.h"
#include "server/app.h"
#include "up.h"
