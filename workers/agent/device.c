/* SPDX-License-Identifier: Apache-2.0
 * The machine's list of devices, what the yard is told of it, and its faults. */
#include "workers/agent/device.h"

#include "core/base/log.h"
#include "workers/agent/device_nvml.h"
#include "workers/agent/settings.h"

#include <stdio.h>
#include <string.h>

static void find_cpus(const struct settings_agent *s, struct device_set *ret)
{
	ret->count = (int)s->devices;
	for (int i = 0; i < ret->count; i++) {
		struct device *d = &ret->list[i];
		snprintf(d->name, sizeof(d->name), "cpu%d", i);
		d->memory_bytes = s->device_memory_bytes;
		d->gpu_instance = NVML_NO_INSTANCE;
	}
}

int device_find(
	const struct settings_agent *s, int built_cuda, struct device_set *ret, struct err *err)
{
	struct err why = { 0 };
	memset(ret, 0, sizeof(*ret));
	ret->built_cuda = built_cuda;
	if (strcmp(s->device_kind, "cpu") == 0) {
		find_cpus(s, ret);
		return 0;
	}
	bool only_cuda = strcmp(s->device_kind, "cuda") == 0;
	if (!only_cuda && strcmp(s->device_kind, "auto") != 0)
		return err_set(err, ERR_INVALID_VALUE, "device_kind", "%.40s is not auto, cpu or cuda",
			s->device_kind);
	bool any = false;
	int rc = device_nvml_find(s->nvml_library, ret, &any, &why);
	if (rc == 0 && any)
		return 0;
	/* GPUs that are there and cannot be used are an operator's business, not a reason to train on
	 * the CPU. */
	if (rc < 0 && (only_cuda || any)) {
		*err = why;
		return rc;
	}
	if (only_cuda)
		return err_set(err, ERR_UNAVAILABLE, "device_kind",
			"the driver shows no GPU to this machine: look at nvidia-smi -L, or set device_kind = "
			"cpu");
	log_info("devices.cpu", LOG_STR("why", rc < 0 ? why.message : "the driver shows no GPU"));
	ret->nvml = NULL;
	find_cpus(s, ret);
	return 0;
}

/* ------------------------------------------------------------------------------ what is told */

void device_cuda_text(int version, char ret[static DEVICE_CUDA_TEXT_MAX])
{
	snprintf(ret, DEVICE_CUDA_TEXT_MAX, "%d.%d", version / 1000, version % 1000 / 10);
}

void device_write_registration(const struct device_set *set, struct json_writer *w)
{
	char text[DEVICE_CUDA_TEXT_MAX];
	json_key(w, "devices");
	json_begin_array(w);
	for (int i = 0; i < set->count; i++) {
		const struct device *d = &set->list[i];
		json_begin_object(w);
		json_field_i64(w, "index", i);
		json_field_str(w, "name", d->name);
		json_field_i64(w, "memory_bytes", d->memory_bytes);
		if (d->uuid[0] != '\0')
			json_field_str(w, "uuid", d->uuid);
		json_end_object(w);
	}
	json_end_array(w);
	if (set->nvml == NULL)
		return;
	json_key(w, "cuda");
	json_begin_object(w);
	json_field_str(w, "driver", set->driver);
	device_cuda_text(set->driver_cuda, text);
	json_field_str(w, "driver_cuda", text);
	device_cuda_text(set->built_cuda, text);
	json_field_str(w, "build_cuda", text);
	json_end_object(w);
}

void device_write_faults(const struct device_set *set, struct json_writer *w)
{
	bool any = false;
	for (int i = 0; i < set->count; i++)
		any = any || set->list[i].fault[0] != '\0';
	if (!any)
		return;
	json_key(w, "faults");
	json_begin_array(w);
	for (int i = 0; i < set->count; i++) {
		const struct device *d = &set->list[i];
		if (d->fault[0] == '\0')
			continue;
		json_begin_object(w);
		json_field_i64(w, "index", i);
		json_field_str(w, "uuid", d->uuid);
		json_field_str(w, "message", d->fault);
		json_end_object(w);
	}
	json_end_array(w);
}

/* ------------------------------------------------------------------------------ faults */

void device_fault(struct device_set *set, int index, const char *what)
{
	struct device *d = &set->list[index];
	log_error("device.fault", LOG_INT("device", index), LOG_STR("uuid", d->uuid),
		LOG_STR("message", what));
	if (d->fault[0] != '\0')
		return;
	snprintf(d->fault, sizeof(d->fault), "%s", what);
	d->fault_number++;
}

const char *device_untold_fault(const struct device_set *set, int index)
{
	if (index < 0 || index >= set->count || set->list[index].fault[0] == '\0')
		return NULL;
	return set->list[index].fault;
}

void device_fault_numbers(const struct device_set *set, int ret[static DEVICE_MAX])
{
	for (int i = 0; i < set->count; i++)
		ret[i] = set->list[i].fault_number;
}

void device_faults_told(struct device_set *set, const int numbers[static DEVICE_MAX])
{
	for (int i = 0; i < set->count; i++)
		if (set->list[i].fault_number == numbers[i])
			set->list[i].fault[0] = '\0';
}
