/* SPDX-License-Identifier: Apache-2.0
 * In place of data_jpeg.c where libjpeg is not installed. */
#include "workers/engine/data/data_image.h"

int data_jpeg_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err)
{
	(void)bytes;
	(void)count;
	(void)ret;
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"a JPEG image: this build is without libjpeg (libjpeg62-turbo-dev)");
}
