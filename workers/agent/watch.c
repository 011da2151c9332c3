/* SPDX-License-Identifier: Apache-2.0
 * NVML's events: Xids and double-bit memory errors. A GPU that tells of none (some do not) works
 * without being watched, and the log says so. */
#include "workers/agent/watch.h"

#include "core/base/log.h"
#include "workers/agent/device_nvml.h"
#include "workers/agent/xid.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	WAIT_MS = 5000,
	NAP_MS = 2000, /* after a wait that failed */
};

struct watch {
	struct agent *agent;
	struct nvml_event_set *set;
};

/* With the lock. An error of one MIG instance is that instance's alone. */
static void mark(
	struct agent *a, const char *gpu_uuid, const struct nvml_event *event, const char *what)
{
	for (int i = 0; i < a->devices.count; i++) {
		const struct device *d = &a->devices.list[i];
		bool all = event->gpu_instance == NVML_NO_INSTANCE || d->gpu_instance == NVML_NO_INSTANCE;
		if (strcmp(d->gpu_uuid, gpu_uuid) == 0 && (all || d->gpu_instance == event->gpu_instance))
			device_fault(&a->devices, i, what);
	}
}

static void take(struct agent *a, const struct nvml_event *event)
{
	char uuid[NVML_UUID_MAX] = "", what[DEVICE_FAULT_MAX];
	const struct xid *xid = event->type == NVML_EVENT_XID ? xid_find(event->data) : NULL;
	(void)a->devices.nvml->uuid(event->device, uuid, sizeof(uuid));
	if (event->type == NVML_EVENT_XID)
		snprintf(what, sizeof(what), "Xid %llu of %s: %s", event->data, uuid,
			xid != NULL ? xid->meaning : "not known here");
	else
		snprintf(what, sizeof(what), "a double-bit memory error of %s", uuid);
	if (event->type == NVML_EVENT_XID && (xid == NULL || !xid->fault)) {
		log_warn("device.xid", LOG_STR("message", what));
		return;
	}
	pthread_mutex_lock(&a->lock);
	mark(a, uuid, event, what);
	agent_report_soon(a);
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
}

/* Without an event to say so: a wait that fails may mean that a GPU is gone. */
static void look_for_lost(struct agent *a)
{
	for (int i = 0; i < a->devices.count; i++) {
		if (!device_nvml_lost(&a->devices, i))
			continue;
		pthread_mutex_lock(&a->lock);
		if (!a->devices.list[i].lost) {
			a->devices.list[i].lost = true;
			device_fault(&a->devices, i, "the driver has lost the GPU");
			agent_report_soon(a);
		}
		pthread_mutex_unlock(&a->lock);
		agent_wake(a);
	}
}

static void *watch_thread(void *watch)
{
	const struct watch *w = watch;
	const struct nvml *l = w->agent->devices.nvml;
	const struct timespec pause = { NAP_MS / 1000, NAP_MS % 1000 * 1000000L };
	int last = NVML_SUCCESS;
	for (;;) {
		struct nvml_event event = { .gpu_instance = NVML_NO_INSTANCE };
		int status = l->event_wait(w->set, &event, WAIT_MS);
		if (status == NVML_SUCCESS) {
			take(w->agent, &event);
		} else if (status != NVML_TIMEOUT) {
			if (status != last)
				log_error("devices.watch_failed", LOG_STR("why", l->text(status)));
			look_for_lost(w->agent);
			nanosleep(&pause, NULL);
		}
		last = status;
	}
	return NULL;
}

/* MIG instances have no events of their own: they are their GPU's. */
static void register_gpu(const struct watch *w, struct nvml_device *gpu)
{
	const struct nvml *l = w->agent->devices.nvml;
	unsigned long long types = 0;
	int status = l->event_types(gpu, &types);
	types &= NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC;
	if (status == NVML_SUCCESS && types != 0)
		status = l->register_events(gpu, types, w->set);
	if (status != NVML_SUCCESS || types == 0)
		log_warn("device.not_watched",
			LOG_STR("why", types == 0 ? "it tells of no errors" : l->text(status)));
}

int watch_start(struct agent *a, struct err *err)
{
	static struct watch watch; /* the thread's, which never ends */
	pthread_t thread;
	const struct nvml *l = a->devices.nvml;
	unsigned gpus = 0;
	if (l == NULL)
		return 0;
	watch.agent = a;
	int status = l->event_set_create(&watch.set);
	if (status == NVML_SUCCESS)
		status = l->count(&gpus);
	if (status != NVML_SUCCESS)
		return err_set(
			err, ERR_UNAVAILABLE, NULL, "the GPUs cannot be watched: NVML: %s", l->text(status));
	for (unsigned i = 0; i < gpus; i++) {
		struct nvml_device *gpu = NULL;
		if (l->by_index(i, &gpu) == NVML_SUCCESS)
			register_gpu(&watch, gpu);
	}
	int rc = pthread_create(&thread, NULL, watch_thread, &watch);
	return rc == 0 ? 0 : err_errno(err, ERR_NO_MEMORY, rc, "no thread to watch the GPUs");
}
