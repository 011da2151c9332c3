/* SPDX-License-Identifier: Apache-2.0
 * JPEG by libjpeg-turbo, which leaves its functions by longjmp: everything that outlives the jump
 * lies in one struct. */
#include "workers/engine/data/data_image.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jerror.h>
#include <jpeglib.h>

enum {
	SCANS_MAX = 100,             /* of a progressive image */
	MEMORY_MAX_BYTES = 512 << 20 /* that the decoder takes besides the pixels */
};

struct job {
	struct jpeg_decompress_struct jpeg;
	struct jpeg_error_mgr errors;
	struct jpeg_progress_mgr progress;
	jmp_buf out;
	struct data_image image;
	char why[JMSG_LENGTH_MAX];
	struct err *err;
	int code;
};

static void give_up(struct job *j, const char *why)
{
	(void)snprintf(j->why, sizeof(j->why), "%s", why);
	j->code = ERR_INVALID_DATA;
	longjmp(j->out, 1);
}

static void on_error(j_common_ptr common)
{
	struct job *j = common->client_data;
	char text[JMSG_LENGTH_MAX];
	common->err->format_message(common, text);
	give_up(j, text);
}

/* Level -1 is damage that the decoder would paint over. */
static void on_message(j_common_ptr common, int level)
{
	if (level < 0)
		on_error(common);
}

static void on_progress(j_common_ptr common)
{
	struct job *j = common->client_data;
	if (common->is_decompressor && j->jpeg.input_scan_number > SCANS_MAX)
		give_up(j, "more scans than the limit of 100");
}

static void read_header(struct job *j, const unsigned char *bytes, size_t count)
{
	jpeg_create_decompress(&j->jpeg);
	j->jpeg.client_data = j;
	j->jpeg.progress = &j->progress;
	j->jpeg.mem->max_memory_to_use = MEMORY_MAX_BYTES;
	jpeg_mem_src(&j->jpeg, bytes, count);
	(void)jpeg_read_header(&j->jpeg, TRUE);
	int64_t width = j->jpeg.image_width, height = j->jpeg.image_height;
	if (width > DATA_IMAGE_SIDE_MAX || height > DATA_IMAGE_SIDE_MAX ||
		width * height > DATA_IMAGE_PIXELS_MAX)
		give_up(j, "more pixels than the limit of 64 Mi, or a side of more than 16384");
	if (j->jpeg.num_components != 1 && j->jpeg.num_components != 3)
		give_up(j, "it is neither grey nor RGB");
	j->jpeg.out_color_space = j->jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
	j->jpeg.dct_method = JDCT_ISLOW;
	(void)jpeg_start_decompress(&j->jpeg);
}

static void decode(struct job *j, const unsigned char *bytes, size_t count)
{
	if (setjmp(j->out))
		return;
	read_header(j, bytes, count);
	int64_t channels = j->jpeg.output_components;
	j->code =
		data_image_init(&j->image, j->jpeg.output_height, j->jpeg.output_width, channels, j->err);
	if (j->code)
		return;
	while (j->jpeg.output_scanline < j->jpeg.output_height) {
		JSAMPROW row = j->image.pixels + j->jpeg.output_scanline * j->image.width * channels;
		(void)jpeg_read_scanlines(&j->jpeg, &row, 1);
	}
	(void)jpeg_finish_decompress(&j->jpeg);
}

int data_jpeg_decode(
	const unsigned char *bytes, size_t count, struct data_image *ret, struct err *err)
{
	struct job *j = calloc(1, sizeof(*j));
	if (!j)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to decode an image");
	j->err = err;
	j->jpeg.err = jpeg_std_error(&j->errors);
	j->errors.error_exit = on_error;
	j->errors.emit_message = on_message;
	j->progress.progress_monitor = on_progress;
	j->jpeg.client_data = j;
	decode(j, bytes, count);
	jpeg_destroy_decompress(&j->jpeg);
	int code = j->code;
	if (code == ERR_INVALID_DATA)
		code = err_set(err, code, NULL, "the JPEG image cannot be decoded: %s", j->why);
	if (code)
		data_image_finish(&j->image);
	else
		*ret = j->image;
	free(j);
	return code;
}
