/* SPDX-License-Identifier: Apache-2.0
 * Tars of images, made in memory for tests. */
#pragma once

#include "core/base/buf.h"
#include "tests/unit/workers/engine/data_fixture.h"

#include <archive.h>
#include <archive_entry.h>
#include <png.h>

#include <jpeglib.h>

enum {
	FIXTURE_HARDLINK = -1
}; /* beside libarchive's types: a second name of the entry "a/good.png" */

struct fixture_tar {
	struct buf bytes;
	struct archive *archive;
};

static la_ssize_t fixture_tar_write(struct archive *a, void *ctx, const void *p, size_t n)
{
	struct fixture_tar *t = ctx;
	return buf_append(&t->bytes, p, n) ? -1 : (la_ssize_t)n;
}

FIXTURE_FN void fixture_tar_begin(struct fixture_tar *t, bool gzip)
{
	buf_init(&t->bytes, 1 << 28);
	t->archive = archive_write_new();
	archive_write_set_format_ustar(t->archive);
	if (gzip)
		archive_write_add_filter_gzip(t->archive);
	assert_int_equal(archive_write_open(t->archive, t, NULL, fixture_tar_write, NULL), ARCHIVE_OK);
}

FIXTURE_FN void fixture_tar_put(
	struct fixture_tar *t, const char *name, const void *bytes, size_t count, int type)
{
	struct archive_entry *e = archive_entry_new();
	archive_entry_set_pathname(e, name);
	archive_entry_set_size(e, (la_int64_t)count);
	archive_entry_set_filetype(e, type == FIXTURE_HARDLINK ? AE_IFREG : (unsigned)type);
	archive_entry_set_perm(e, 0644);
	if (type == AE_IFLNK)
		archive_entry_set_symlink(e, "/etc/passwd");
	if (type == FIXTURE_HARDLINK)
		archive_entry_set_hardlink(e, "a/good.png");
	assert_int_equal(archive_write_header(t->archive, e), ARCHIVE_OK);
	if (count > 0)
		assert_int_equal(archive_write_data(t->archive, bytes, count), count);
	archive_entry_free(e);
}

FIXTURE_FN void fixture_tar_end(struct fixture_tar *t)
{
	assert_int_equal(archive_write_close(t->archive), ARCHIVE_OK);
	archive_write_free(t->archive);
}

static void fixture_png_write(png_structp png, png_bytep p, size_t n)
{
	assert_int_equal(buf_append(png_get_io_ptr(png), p, n), 0);
}
static void fixture_png_flush(png_structp png)
{
	(void)png;
}

/* Rows of `bits` deep samples of a libpng colour type; palettes have the colours (i, 2i, 3i). */
FIXTURE_FN void fixture_png(
	struct buf *out, int width, int height, int bits, int type, const unsigned char *pixels)
{
	const int samples[] = { [PNG_COLOR_TYPE_GRAY] = 1,
		[PNG_COLOR_TYPE_RGB] = 3,
		[PNG_COLOR_TYPE_PALETTE] = 1,
		[PNG_COLOR_TYPE_GRAY_ALPHA] = 2,
		[PNG_COLOR_TYPE_RGB_ALPHA] = 4 };
	buf_init(out, 1 << 26);
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	png_set_write_fn(png, out, fixture_png_write, fixture_png_flush);
	png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, bits, type, PNG_INTERLACE_NONE,
		PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	png_color palette[16];
	for (int i = 0; i < 16; i++)
		palette[i] = (png_color){ (png_byte)i, (png_byte)(2 * i), (png_byte)(3 * i) };
	if (type == PNG_COLOR_TYPE_PALETTE)
		png_set_PLTE(png, info, palette, 16);
	png_write_info(png, info);
	size_t row = ((size_t)width * (size_t)(samples[type] * bits) + 7) / 8;
	for (int y = 0; y < height; y++)
		png_write_row(png, pixels + (size_t)y * row);
	png_write_end(png, NULL);
	png_destroy_write_struct(&png, &info);
}

FIXTURE_FN void fixture_jpeg(
	struct buf *out, int width, int height, int channels, const unsigned char *pixels)
{
	struct jpeg_compress_struct jpeg;
	struct jpeg_error_mgr errors;
	unsigned char *mem = NULL;
	unsigned long bytes = 0;
	jpeg.err = jpeg_std_error(&errors);
	jpeg_create_compress(&jpeg);
	jpeg_mem_dest(&jpeg, &mem, &bytes);
	jpeg.image_width = (JDIMENSION)width;
	jpeg.image_height = (JDIMENSION)height;
	jpeg.input_components = channels;
	jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
	jpeg_set_defaults(&jpeg);
	jpeg_set_quality(&jpeg, 95, TRUE);
	jpeg_start_compress(&jpeg, TRUE);
	unsigned char *copy = malloc((size_t)(width * channels));
	for (int y = 0; y < height; y++) {
		memcpy(copy, pixels + y * width * channels, (size_t)(width * channels));
		(void)jpeg_write_scanlines(&jpeg, &copy, 1);
	}
	jpeg_finish_compress(&jpeg);
	jpeg_destroy_compress(&jpeg);
	free(copy);
	buf_init(out, 1 << 26);
	buf_append(out, mem, bytes);
	free(mem);
}
