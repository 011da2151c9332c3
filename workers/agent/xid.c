/* SPDX-License-Identifier: Apache-2.0
 * The table of Xids. Numbers and meanings: NVIDIA's public Xid catalogue
 * (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), in our own words. */
#include "workers/agent/xid.h"

#include "core/base/attr.h"

#include <stddef.h>

static const struct xid table[] = {
	{ 8, false, "the GPU stopped processing a channel's work" },
	{ 11, false, "an invalid stream of commands" },
	{ 13, false, "an exception of the compute engine: a kernel's bad access or instruction" },
	{ 31, false, "a page fault: a kernel used an address that is not mapped" },
	{ 43, false, "the GPU stopped processing: a process's channel was reset" },
	{ 45, false, "a process's channels were removed, as after any kill" },
	{ 46, true, "the GPU stopped processing" },
	{ 48, true, "an uncorrectable (double-bit) memory error" },
	{ 62, true, "the GPU's internal controller has halted" },
	/* The process may go on, but the row is only taken out of use by a reset of the GPU. */
	{ 63, true, "a memory row or page is to be taken out of use" },
	{ 64, true, "a memory row or page could not be taken out of use" },
	{ 74, true, "an NVLink error" },
	{ 79, true, "the GPU has fallen off the bus" },
	/* What has failed can fail again, and the next process would be another customer's. */
	{ 94, true, "an uncorrectable memory error, contained to one process" },
	{ 95, true, "an uncorrectable memory error that was not contained" },
	{ 119, true, "the GPU's system processor (GSP) does not answer" },
	{ 120, true, "an error of the GPU's system processor (GSP)" },
	{ 140, true, "an uncorrectable memory error that recovery missed" },
};

const struct xid *xid_find(unsigned long long number)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].number == number)
			return &table[i];
	return NULL;
}
