/* SPDX-License-Identifier: Apache-2.0
 * The cleanup helpers of attr.h. Used everywhere; thread-safe. */
#include "core/base/attr.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

void freep(void *p)
{
	void **owned = p;
	free(*owned);
	*owned = NULL;
}

void closep(int *fd)
{
	/* A cleanup runs on the way out of a failure: the errno that is being reported stays. */
	int saved = errno;
	if (*fd >= 0)
		(void)close(*fd);
	*fd = -1;
	errno = saved;
}
