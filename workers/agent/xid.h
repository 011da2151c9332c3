/* SPDX-License-Identifier: Apache-2.0
 * What the driver's numbered errors of a GPU (Xid) mean for the yard. Pure; called by watch.c. */
#pragma once

#include <stdbool.h>

struct xid {
	unsigned number;
	/* The device's or its driver's doing, and not over with the process: what runs there ends as
	 * the platform's fault, and an operator looks at the device before it is used again. Others are
	 * the doing of the process, whose own end tells. */
	bool fault;
	const char *meaning;
};

/* NULL for a number that the table lacks: it is only logged. */
const struct xid *xid_find(unsigned long long number);
