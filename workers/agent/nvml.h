/* SPDX-License-Identifier: Apache-2.0
 * The few functions of NVML, the NVIDIA driver's management library, that the agent uses. Its
 * header is no part of the CUDA toolkit's runtime packages and the library comes with the driver:
 * both are stated here (names, numbers and layouts are the library's ABI), found when the agent
 * starts. Called by device_nvml.c and watch.c; the library's functions may be called by any thread.
 */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

enum {
	NVML_SUCCESS = 0,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_GPU_IS_LOST = 15,

	NVML_UUID_MAX = 96,
	NVML_NAME_MAX = 96,
	NVML_VERSION_MAX = 80,
	NVML_MIG_ENABLED = 1,
};
#define NVML_EVENT_DOUBLE_BIT_ECC 0x2ULL
#define NVML_EVENT_XID 0x8ULL
#define NVML_NO_INSTANCE 0xffffffffU

struct nvml_device;    /* a GPU, or a MIG instance of one */
struct nvml_event_set; /* what is waited for */

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_event {
	struct nvml_device *device;              /* the GPU, also where an instance had the error */
	unsigned long long type;                 /* one of NVML_EVENT_… */
	unsigned long long data;                 /* the number of an Xid */
	unsigned gpu_instance, compute_instance; /* NVML_NO_INSTANCE: the whole GPU */
};

/* X(member, name in the library, arguments) */
#define NVML_LIST(X)                                                                             \
	X(init, "nvmlInit_v2", (void))                                                               \
	X(driver_version, "nvmlSystemGetDriverVersion", (char *text, unsigned bytes))                \
	X(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *version))                         \
	X(count, "nvmlDeviceGetCount_v2", (unsigned *count))                                         \
	X(by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned index, struct nvml_device **device))  \
	X(uuid, "nvmlDeviceGetUUID", (struct nvml_device * device, char *text, unsigned bytes))      \
	X(name, "nvmlDeviceGetName", (struct nvml_device * device, char *text, unsigned bytes))      \
	X(memory, "nvmlDeviceGetMemoryInfo",                                                         \
		(struct nvml_device * device, struct nvml_memory * memory))                              \
	X(mig_mode, "nvmlDeviceGetMigMode",                                                          \
		(struct nvml_device * device, unsigned *current, unsigned *pending))                     \
	X(mig_max, "nvmlDeviceGetMaxMigDeviceCount", (struct nvml_device * device, unsigned *count)) \
	X(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex",                                       \
		(struct nvml_device * device, unsigned index, struct nvml_device **instance))            \
	X(gpu_instance, "nvmlDeviceGetGpuInstanceId", (struct nvml_device * instance, unsigned *id)) \
	X(remapped_rows, "nvmlDeviceGetRemappedRows",                                                \
		(struct nvml_device * device, unsigned *correctable, unsigned *uncorrectable,            \
			unsigned *pending, unsigned *failed))                                                \
	X(processes, "nvmlDeviceGetComputeRunningProcesses_v3",                                      \
		(struct nvml_device * device, unsigned *count, void *list))                              \
	X(event_set_create, "nvmlEventSetCreate", (struct nvml_event_set * *set))                    \
	X(event_types, "nvmlDeviceGetSupportedEventTypes",                                           \
		(struct nvml_device * device, unsigned long long *types))                                \
	X(register_events, "nvmlDeviceRegisterEvents",                                               \
		(struct nvml_device * device, unsigned long long types, struct nvml_event_set *set))     \
	X(event_wait, "nvmlEventSetWait_v2",                                                         \
		(struct nvml_event_set * set, struct nvml_event * event, unsigned timeout_ms))

/* Each function returns a number of the list above, or another of the library's. */
struct nvml {
#define X(member, name, arguments) int(*member) arguments;
	NVML_LIST(X)
#undef X
	const char *(*text)(int rc); /* what a number means */
};

/* Loads the library and prepares it; once, for good. UNAVAILABLE when there is none, or no driver.
 */
int nvml_load(const char *library, const struct nvml **ret, struct err *err) must_check;
