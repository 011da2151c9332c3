/* SPDX-License-Identifier: Apache-2.0
 * In place of comm_nccl*.c where the CUDA toolkit is not installed. */
#include "workers/comm/comm_private.h"

static int unavailable(struct err *err)
{
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"this build has no CUDA: buffers of groups are in host memory (-Dcuda=enabled needs the "
		"CUDA toolkit and NCCL's header)");
}

int comm_nccl_open(const struct comm_options *o, struct comm **ret, struct err *err)
{
	(void)o;
	(void)ret;
	return unavailable(err);
}

int comm_nccl_copy(
	const struct comm_device *d, void *to, const void *from, int64_t bytes, struct err *err)
{
	(void)d;
	(void)to;
	(void)from;
	(void)bytes;
	return unavailable(err);
}

int comm_nccl_drain(const struct comm_device *d, struct err *err)
{
	(void)d;
	return unavailable(err);
}
