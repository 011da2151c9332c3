/* SPDX-License-Identifier: Apache-2.0
 * The cluster that an instance type's devices make, for the cost model: what the catalogue says of
 * a device, and what is known of how such devices are joined. Called by whoever settles a spec's
 * mesh. Pure. */
#pragma once

#include "workers/plan/scale.h"

/* Of the catalogue; 0 = not known, the figure of the type's name is taken. */
struct scale_type {
	const char *name;
	double memory_bytes, memory_bytes_s;
	double fp32_flops, tf32_flops, half_flops; /* peaks */
	int machine_devices;                       /* the most that one machine has */
};

/* A name that is not known has the links and the rates of a CPU, and as much memory as is asked. */
void scale_type_cluster(const struct scale_type *t, int devices, struct scale_cluster *ret);
