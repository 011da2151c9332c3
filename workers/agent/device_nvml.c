/* SPDX-License-Identifier: Apache-2.0
 * Discovery by NVML. A GPU that cannot be asked is left out and said in the log; the others work.
 */
#include "workers/agent/device_nvml.h"

#include "core/base/log.h"

#include <stdio.h>
#include <string.h>

enum { GPUS_MAX = DEVICE_MAX };

static int failed(const struct nvml *l, int status, const char *doing, struct err *err)
{
	return err_set(err, ERR_UNAVAILABLE, NULL, "%s: NVML: %.200s", doing, l->text(status));
}

/* One of major version N runs what was built for any N.x (CUDA's minor version compatibility), and
 * what was built for older ones. */
static int check_driver(const struct device_set *set, struct err *err)
{
	char driver[DEVICE_CUDA_TEXT_MAX], built[DEVICE_CUDA_TEXT_MAX];
	device_cuda_text(set->driver_cuda, driver);
	device_cuda_text(set->built_cuda, built);
	if (set->built_cuda == 0)
		return err_set(err, ERR_UNAVAILABLE, "device_kind",
			"there are GPUs, but this build has no CUDA: install one that was built where nvcc is, "
			"or set device_kind = cpu");
	if (set->driver_cuda / 1000 < set->built_cuda / 1000)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"the NVIDIA driver %s is for CUDA %s, but the trainer was built for CUDA %s: install a "
			"driver for CUDA %d.0 or newer, or a trainer built with CUDA %d",
			set->driver, driver, built, set->built_cuda / 1000, set->driver_cuda / 1000);
	return 0;
}

/* ------------------------------------------------------------------------------ devices */

/* A memory row that could not be taken out of use stays bad: the GPU is due for replacement. */
static void check_rows(struct device_set *set, int index, struct nvml_device *gpu)
{
	unsigned correctable, uncorrectable, pending = 0, failures = 0;
	if (set->nvml->remapped_rows(gpu, &correctable, &uncorrectable, &pending, &failures) !=
		NVML_SUCCESS)
		return; /* older GPUs, and instances */
	if (failures != 0)
		device_fault(
			set, index, "a memory row could not be taken out of use (row remapping failed)");
	else if (pending != 0)
		log_warn("device.rows_pending", LOG_INT("device", index),
			LOG_STR("uuid", set->list[index].uuid));
}

static void add(
	struct device_set *set, struct nvml_device *handle, struct nvml_device *gpu, unsigned instance)
{
	const struct nvml *l = set->nvml;
	struct nvml_memory memory = { 0 };
	struct device d = { .handle = handle, .gpu_instance = instance };
	int status = l->uuid(handle, d.uuid, sizeof(d.uuid));
	if (status == NVML_SUCCESS)
		status = l->uuid(gpu, d.gpu_uuid, sizeof(d.gpu_uuid));
	if (status == NVML_SUCCESS)
		status = l->name(handle, d.name, sizeof(d.name));
	if (status == NVML_SUCCESS)
		status = l->memory(handle, &memory);
	if (status != NVML_SUCCESS || memory.total == 0 || d.uuid[0] == '\0' || d.name[0] == '\0') {
		log_error("device.left_out", LOG_STR("uuid", d.uuid), LOG_STR("why", l->text(status)));
		return;
	}
	if (set->count == DEVICE_MAX) {
		log_error("device.left_out", LOG_STR("uuid", d.uuid), LOG_STR("why", "too many devices"));
		return;
	}
	d.memory_bytes = (int64_t)memory.total;
	set->list[set->count] = d;
	check_rows(set, set->count, gpu);
	log_info("device.found", LOG_INT("device", set->count), LOG_STR("uuid", d.uuid),
		LOG_STR("name", d.name), LOG_INT("memory_bytes", d.memory_bytes));
	set->count++;
}

static bool is_mig(const struct nvml *l, struct nvml_device *gpu)
{
	unsigned current = 0, pending = 0;
	return l->mig_mode(gpu, &current, &pending) == NVML_SUCCESS && current == NVML_MIG_ENABLED;
}

/* Numbers may have gaps: instances come and go. */
static void add_instances(struct device_set *set, struct nvml_device *gpu)
{
	const struct nvml *l = set->nvml;
	unsigned max = 0;
	int before = set->count;
	if (l->mig_max(gpu, &max) != NVML_SUCCESS)
		max = 0;
	for (unsigned i = 0; i < max; i++) {
		struct nvml_device *instance = NULL;
		unsigned id = NVML_NO_INSTANCE;
		if (l->mig_by_index(gpu, i, &instance) != NVML_SUCCESS)
			continue;
		if (l->gpu_instance(instance, &id) != NVML_SUCCESS)
			id = NVML_NO_INSTANCE; /* an error of any instance is then its own too */
		add(set, instance, gpu, id);
	}
	if (set->count == before) {
		char uuid[NVML_UUID_MAX] = "";
		(void)l->uuid(gpu, uuid, sizeof(uuid));
		log_warn("device.left_out", LOG_STR("uuid", uuid),
			LOG_STR("why", "in MIG mode, without instances"));
	}
}

int device_nvml_find(const char *library, struct device_set *ret, bool *ret_any, struct err *err)
{
	unsigned gpus = 0;
	int rc = nvml_load(library, &ret->nvml, err);
	if (rc < 0)
		return rc;
	const struct nvml *l = ret->nvml;
	int status = l->count(&gpus);
	if (status == NVML_SUCCESS && gpus == 0)
		return 0;
	if (status == NVML_SUCCESS) {
		*ret_any = true;
		status = l->driver_version(ret->driver, sizeof(ret->driver));
	}
	if (status == NVML_SUCCESS)
		status = l->cuda_version(&ret->driver_cuda);
	if (status != NVML_SUCCESS)
		return failed(l, status, "the machine's GPUs", err);
	rc = check_driver(ret, err);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < gpus && i < GPUS_MAX; i++) {
		struct nvml_device *gpu = NULL;
		status = l->by_index(i, &gpu);
		if (status != NVML_SUCCESS)
			log_error("device.left_out", LOG_INT("gpu", i), LOG_STR("why", l->text(status)));
		else if (is_mig(l, gpu))
			add_instances(ret, gpu);
		else
			add(ret, gpu, gpu, NVML_NO_INSTANCE);
	}
	if (ret->count == 0)
		return err_set(err, ERR_UNAVAILABLE, NULL,
			"none of the machine's %u GPUs can be used: the log says why, for each", gpus);
	return 0;
}

/* ------------------------------------------------------------------------------ later */

int device_nvml_holders(const struct device_set *set, int index)
{
	unsigned count = 0;
	if (set->nvml == NULL)
		return 0;
	/* Without room for the list: success means that there is nobody. */
	int status = set->nvml->processes(set->list[index].handle, &count, NULL);
	return status == NVML_INSUFFICIENT_SIZE ? (int)count : 0;
}

bool device_nvml_lost(const struct device_set *set, int index)
{
	struct nvml_memory memory;
	return set->nvml != NULL &&
		set->nvml->memory(set->list[index].handle, &memory) == NVML_GPU_IS_LOST;
}
