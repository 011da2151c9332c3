/* SPDX-License-Identifier: Apache-2.0
 * In place of data_image_tar.c where libarchive is not installed. */
#include "workers/engine/data/data_private.h"

int data_image_tar_open(struct data *d, const struct data_source *s, struct err *err)
{
	(void)d;
	return err_set(err, ERR_UNAVAILABLE, s->param,
		"tars of images need libarchive, which this build is without (libarchive-dev)");
}
