/* SPDX-License-Identifier: Apache-2.0
 * PNG by libpng, which leaves its functions by longjmp: everything that outlives the jump lies in
 * one struct. */
#include "workers/engine/data/data_image.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_MAX_BYTES = 8 << 20, CHUNKS_MAX = 1000 };

struct job {
	const unsigned char *at, *end;
	png_structp png;
	png_infop info;
	png_bytepp rows;
	struct data_image image;
	char why[256];
	struct err *err;
	int code;
};

static void on_error(png_structp png, png_const_charp text)
{
	struct job *j = png_get_error_ptr(png);
	(void)snprintf(j->why, sizeof(j->why), "%s", text);
	png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
	(void)png;
	(void)text;
}

static void on_read(png_structp png, png_bytep into, size_t count)
{
	struct job *j = png_get_io_ptr(png);
	if ((size_t)(j->end - j->at) < count)
		png_error(png, "the file is truncated");
	memcpy(into, j->at, count);
	j->at += count;
}

static void read_header(struct job *j)
{
	png_set_read_fn(j->png, j, on_read);
	png_set_user_limits(j->png, DATA_IMAGE_SIDE_MAX, DATA_IMAGE_SIDE_MAX);
	png_set_chunk_malloc_max(j->png, CHUNK_MAX_BYTES);
	png_set_chunk_cache_max(j->png, CHUNKS_MAX);
	png_read_info(j->png, j->info);
	png_set_expand(j->png);
	png_set_scale_16(j->png);
	png_set_strip_alpha(j->png);
	(void)png_set_interlace_handling(j->png);
	png_read_update_info(j->png, j->info);
}

/* Everything that may jump. */
static void decode(struct job *j)
{
	if (setjmp(png_jmpbuf(j->png))) {
		j->code = ERR_INVALID_DATA;
		return;
	}
	read_header(j);
	int64_t height = png_get_image_height(j->png, j->info);
	int64_t width = png_get_image_width(j->png, j->info);
	int64_t channels = png_get_channels(j->png, j->info);
	if (height * width > DATA_IMAGE_PIXELS_MAX)
		png_error(j->png, "more pixels than the limit of 64 Mi");
	if (png_get_bit_depth(j->png, j->info) != 8 || (channels != 1 && channels != 3))
		png_error(j->png, "an unknown kind of pixels");
	j->code = data_image_init(&j->image, height, width, channels, j->err);
	if (j->code)
		return;
	j->rows = malloc((size_t)height * sizeof(*j->rows));
	if (!j->rows) {
		j->code = err_set(j->err, ERR_NO_MEMORY, NULL, "no memory to decode an image");
		return;
	}
	for (int64_t y = 0; y < height; y++)
		j->rows[y] = j->image.pixels + y * width * channels;
	png_read_image(j->png, j->rows);
	png_read_end(j->png, NULL);
}

int data_png_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err)
{
	struct job j = { .at = bytes, .end = bytes + count, .err = err };
	j.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &j, on_error, on_warning);
	j.info = j.png ? png_create_info_struct(j.png) : NULL;
	if (j.info)
		decode(&j);
	else
		j.code = err_set(err, ERR_NO_MEMORY, NULL, "no memory to decode an image");
	png_destroy_read_struct(&j.png, &j.info, NULL);
	free(j.rows);
	if (j.code) {
		data_image_finish(&j.image);
		return j.code == ERR_INVALID_DATA
			? err_set(err, j.code, NULL, "the PNG image cannot be decoded: %s", j.why)
			: j.code;
	}
	*ret = j.image;
	return 0;
}
