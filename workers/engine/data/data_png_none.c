/* SPDX-License-Identifier: Apache-2.0
 * In place of data_png.c where libpng is not installed. */
#include "workers/engine/data/data_image.h"

int data_png_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err)
{
	(void)bytes;
	(void)count;
	(void)ret;
	return err_set(
		err, ERR_UNAVAILABLE, NULL, "a PNG image: this build is without libpng (libpng-dev)");
}
