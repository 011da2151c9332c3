/* SPDX-License-Identifier: Apache-2.0
 * Single images: decoding, with limits checked before memory is taken, and bringing them to one
 * size. Errors are INVALID_DATA and say what is wrong with the image. Used by data_image_tar.c; any
 * thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
	DATA_IMAGE_SIDE_MAX = 16384,
	DATA_IMAGE_PIXELS_MAX = 64 << 20,
};

/* 8 bits for each of 1 (grey) or 3 (red, green, blue) channels: [height, width, channels]. */
struct data_image {
	int64_t height, width, channels;
	unsigned char *pixels; /* malloc'ed */
};
void data_image_finish(struct data_image *i);
/* Takes the memory. */
int data_image_init(struct data_image *i, int64_t height, int64_t width, int64_t channels,
	struct err *err) must_check;

/* PNG: palettes and fewer bits are expanded, 16 bits become 8, transparency is left out. */
int data_png_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err) must_check;
/* JPEG: grey or colour; CMYK is refused, and so is a file with errors that a viewer would hide. */
int data_jpeg_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err) must_check;

/* Grey becomes three equal channels; colour becomes grey by (299 R + 587 G + 114 B) / 1000. */
int data_image_channels(struct data_image *i, int64_t channels, struct err *err) must_check;
/* Scaled, keeping its proportions, so that it just covers height x width; what sticks out is cut
 * off evenly on both sides. Bilinear with a triangle as wide as a pixel of the result (of the
 * source when it grows), pixel centres at halves. */
int data_image_resize(
	struct data_image *i, int64_t height, int64_t width, struct err *err) must_check;
