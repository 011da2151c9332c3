/* SPDX-License-Identifier: Apache-2.0
 * Devices that must not be used: with a fault, or with memory that somebody still holds. Faults are
 * noted by watch.c; until the yard knows of one, no attempt begins or goes on there. After that the
 * yard ends what it has placed there, and an attempt that comes later came after an operator. */
#include "workers/agent/advance.h"
#include "workers/agent/advance_private.h"

#include "core/base/log.h"
#include "workers/agent/device_nvml.h"

#include <stdio.h>

enum {
	/* A process that was killed may take a while to give its memory back. */
	HELD_MS = 60000,
};

static void end_for_fault(struct agent *a, struct run *r, const char *fault)
{
	char text[ERR_MESSAGE_MAX];
	snprintf(text, sizeof(text), "the device failed: %s", fault);
	advance_fail(a, r, "platform_error", text);
}

void advance_faults(struct agent *a)
{
	for (int i = 0; i < a->devices.count; i++) {
		const char *fault = device_untold_fault(&a->devices, i);
		for (struct run *r = a->runs; fault != NULL && r != NULL; r = r->next) {
			if (r->over || r->end_seq != 0 || r->fault[0] != '\0' || !run_has_device(r, i))
				continue;
			snprintf(r->fault, sizeof(r->fault), "%s", fault);
			if (r->phase == RUN_TRAINING)
				end_for_fault(a, r, fault);
		}
	}
}

bool fault_devices_ready(struct agent *a, struct run *r)
{
	int64_t now = clock_boot_us(a->clock);
	if (r->fault[0] != '\0') {
		end_for_fault(a, r, r->fault);
		return false;
	}
	for (int i = 0; i < r->device_count; i++) {
		char text[DEVICE_FAULT_MAX];
		int holders = device_nvml_holders(&a->devices, r->devices[i]);
		if (holders == 0)
			continue;
		if (r->held_us == 0) {
			r->held_us = now;
			log_warn("device.held", LOG_STR("attempt_id", r->id), LOG_INT("device", r->devices[i]),
				LOG_INT("processes", holders));
		}
		if (now - r->held_us > HELD_MS * 1000LL) {
			snprintf(text, sizeof(text),
				"%d process(es) that are not this job's have held its memory for %d s", holders,
				HELD_MS / 1000);
			device_fault(&a->devices, r->devices[i], text);
			agent_report_soon(a);
		}
		return false;
	}
	r->held_us = 0;
	return true;
}
