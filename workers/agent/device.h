/* SPDX-License-Identifier: Apache-2.0
 * The devices of this machine: CPU devices as the settings say, or what NVML finds
 * (device_nvml.c). Found when the agent starts; which they are does not change after. Faults are
 * guarded by the agent's lock. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/json/writer.h"
#include "workers/agent/nvml.h"

#include <stdbool.h>
#include <stdint.h>

struct settings_agent;

enum { DEVICE_MAX = 64, DEVICE_FAULT_MAX = 240, DEVICE_CUDA_TEXT_MAX = 32 };

struct device {
	char name[NVML_NAME_MAX];
	char uuid[NVML_UUID_MAX]; /* what CUDA_VISIBLE_DEVICES names; "" for a CPU device */
	int64_t memory_bytes;

	struct nvml_device *handle;   /* NULL for a CPU device */
	char gpu_uuid[NVML_UUID_MAX]; /* of the GPU whose MIG instance it is, or its own */
	unsigned gpu_instance;        /* NVML_NO_INSTANCE: the whole GPU */

	char fault[DEVICE_FAULT_MAX]; /* what the yard is to be told; "" = nothing */
	int fault_number;             /* counts faults, so that one told is not one that came since */
	bool lost;                    /* the driver has lost it */
};

struct device_set {
	const struct nvml *nvml; /* NULL: CPU devices */
	int count;
	struct device list[DEVICE_MAX];
	char driver[NVML_VERSION_MAX];
	int driver_cuda; /* the newest CUDA that the driver speaks, as 1000 * major + 10 * minor */
	int built_cuda;  /* what the trainer was built for */
};

/* As the settings say. built_cuda: 0 for a build without CUDA. UNAVAILABLE, with what to do, when
 * they ask for GPUs that cannot be used. */
int device_find(const struct settings_agent *s, int built_cuda, struct device_set *ret,
	struct err *err) must_check;

/* Members `devices`, and `cuda` with GPUs, of a registration. */
void device_write_registration(const struct device_set *set, struct json_writer *w);
/* The member `faults` of a report, when there are any: a server of before does not know it. */
void device_write_faults(const struct device_set *set, struct json_writer *w);

/* Notes that the device must not be used. Only the first of several faults is told: the others are
 * its consequences as a rule. */
void device_fault(struct device_set *set, int index, const char *what);
/* The fault that the yard does not know of yet; NULL = none. */
const char *device_untold_fault(const struct device_set *set, int index);
/* The yard has the faults that were written when their numbers were these. */
void device_faults_told(struct device_set *set, const int numbers[static DEVICE_MAX]);
void device_fault_numbers(const struct device_set *set, int ret[static DEVICE_MAX]);

/* "13.0" */
void device_cuda_text(int version, char ret[static DEVICE_CUDA_TEXT_MAX]);
