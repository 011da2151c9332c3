/* SPDX-License-Identifier: Apache-2.0
 * GPUs as NVML shows them: which there are, whether the driver suits the trainer, who uses them.
 * Called by device.c when the agent starts, and by advance*.c and watch.c. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "workers/agent/device.h"

#include <stdbool.h>

/* Fills in nvml, the list and the versions. *ret_any is set when there are GPUs, even where this
 * then fails: the driver is too old for ret->built_cuda, or the build has no CUDA. A GPU in MIG
 * mode is its instances. */
int device_nvml_find(
	const char *library, struct device_set *ret, bool *ret_any, struct err *err) must_check;

/* Processes that hold memory of the device; 0 too where the driver does not tell. */
int device_nvml_holders(const struct device_set *set, int index);
/* The driver has lost it: it will not come back without a reset. */
bool device_nvml_lost(const struct device_set *set, int index);
