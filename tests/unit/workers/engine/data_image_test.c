/* SPDX-License-Identifier: Apache-2.0
 * Single images: every kind of PNG and JPEG that is read, sizes, and files that lie or are broken.
 */
#include "tests/unit/workers/engine/tar_fixture.h"
#include "workers/engine/data/data_image.h"

static struct err err;

static void assert_pixels(
	struct data_image *i, int64_t height, int64_t width, int64_t channels, const unsigned char *p)
{
	assert_true(i->height == height && i->width == width && i->channels == channels);
	assert_memory_equal(i->pixels, p, (size_t)(height * width * channels));
	data_image_finish(i);
}

static void decode_png(
	int width, int height, int bits, int type, const unsigned char *pixels, struct data_image *ret)
{
	struct buf b;
	fixture_png(&b, width, height, bits, type, pixels);
	assert_ok(data_png_decode((const unsigned char *)b.data, b.len, ret, &err));
	buf_finish(&b);
}

static void test_png(void **state)
{
	struct data_image i;
	const unsigned char grey[6] = { 0, 50, 100, 150, 200, 255 };
	decode_png(3, 2, 8, PNG_COLOR_TYPE_GRAY, grey, &i);
	assert_pixels(&i, 2, 3, 1, grey);
	decode_png(2, 1, 8, PNG_COLOR_TYPE_RGB, grey, &i);
	assert_pixels(&i, 1, 2, 3, grey);
	const unsigned char deep[4] = { 0x80, 0x80, 0xff, 0xff }, deep_want[2] = { 0x80, 0xff };
	decode_png(2, 1, 16, PNG_COLOR_TYPE_GRAY, deep, &i);
	assert_pixels(&i, 1, 2, 1, deep_want);
	const unsigned char bit[1] = { 0xa0 }, bit_want[3] = { 255, 0, 255 };
	decode_png(3, 1, 1, PNG_COLOR_TYPE_GRAY, bit, &i);
	assert_pixels(&i, 1, 3, 1, bit_want);
	const unsigned char index[2] = { 7, 15 }, index_want[6] = { 7, 14, 21, 15, 30, 45 };
	decode_png(2, 1, 8, PNG_COLOR_TYPE_PALETTE, index, &i);
	assert_pixels(&i, 1, 2, 3, index_want);
	/* Transparency is left out, not painted on anything. */
	const unsigned char alpha[4] = { 9, 0, 8, 255 }, alpha_want[2] = { 9, 8 };
	decode_png(2, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA, alpha, &i);
	assert_pixels(&i, 1, 2, 1, alpha_want);
	const unsigned char rgba[8] = { 1, 2, 3, 0, 4, 5, 6, 128 }, rgb[6] = { 1, 2, 3, 4, 5, 6 };
	decode_png(2, 1, 8, PNG_COLOR_TYPE_RGB_ALPHA, rgba, &i);
	assert_pixels(&i, 1, 2, 3, rgb);
}

static void refuse_png(const unsigned char *bytes, size_t count, const char *says)
{
	struct data_image i = { 0 };
	assert_int_equal(data_png_decode(bytes, count, &i, &err), ERR_INVALID_DATA);
	assert_says("PNG", says);
	assert_null(i.pixels);
}

static uint32_t crc_of(const unsigned char *p, size_t n)
{
	uint32_t c = ~UINT32_C(0);
	for (size_t i = 0; i < n; i++) {
		c ^= p[i];
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? UINT32_C(0xedb88320) : 0);
	}
	return ~c;
}

static void test_png_refused(void **state)
{
	static unsigned char pixels[64 * 64];
	struct buf b;
	for (size_t i = 0; i < sizeof(pixels); i++)
		pixels[i] = (unsigned char)(i * 7 + i / 64);
	fixture_png(&b, 64, 64, 8, PNG_COLOR_TYPE_GRAY, pixels);
	unsigned char *p = (unsigned char *)b.data;
	for (size_t n = 0; n < b.len; n += n < 100 ? 1 : 97)
		refuse_png(p, n, "");
	refuse_png(p, b.len / 2, "truncated");
	p[b.len / 2] ^= 0x40;
	refuse_png(p, b.len, "");
	p[b.len / 2] ^= 0x40;
	/* A header that promises more than there is memory for, its checksum right. */
	const uint32_t sides[][2] = { { 60000, 60000 }, { 16384, 16384 }, { 0x7fffffff, 1 } };
	for (size_t i = 0; i < ARRAY_LEN(sides); i++) {
		fixture_put32(p + 16, sides[i][0]);
		fixture_put32(p + 20, sides[i][1]);
		fixture_put32(p + 29, crc_of(p + 12, 17));
		refuse_png(p, b.len, i == 1 ? "64 Mi" : "Invalid IHDR");
	}
	buf_finish(&b);
}

static void test_jpeg(void **state)
{
	unsigned char pixels[32 * 16 * 3];
	for (int i = 0; i < 32 * 16; i++) {
		pixels[3 * i] = 200;
		pixels[3 * i + 1] = 100;
		pixels[3 * i + 2] = 50;
	}
	struct buf b;
	struct data_image i;
	fixture_jpeg(&b, 32, 16, 3, pixels);
	assert_ok(data_jpeg_decode((unsigned char *)b.data, b.len, &i, &err));
	assert_true(i.height == 16 && i.width == 32 && i.channels == 3);
	for (int k = 0; k < 32 * 16 * 3; k++)
		assert_in_range(i.pixels[k], pixels[k] - 3, pixels[k] + 3);
	data_image_finish(&i);
	for (size_t n = 0; n < b.len; n += 13) {
		assert_int_equal(data_jpeg_decode((unsigned char *)b.data, n, &i, &err), ERR_INVALID_DATA);
		assert_says("JPEG");
	}
	/* The frame header's height and width. */
	unsigned char *sof = memmem(b.data, b.len, "\xff\xc0", 2);
	memset(sof + 5, 0xff, 4);
	assert_int_equal(data_jpeg_decode((unsigned char *)b.data, b.len, &i, &err), ERR_INVALID_DATA);
	buf_finish(&b);
	fixture_jpeg(&b, 32, 16, 1, pixels);
	assert_ok(data_jpeg_decode((unsigned char *)b.data, b.len, &i, &err));
	assert_int_equal(i.channels, 1);
	data_image_finish(&i);
	buf_finish(&b);
	unsigned char cmyk[4 * 64] = { 0 };
	fixture_jpeg(&b, 8, 8, 4, cmyk);
	assert_int_equal(data_jpeg_decode((unsigned char *)b.data, b.len, &i, &err), ERR_INVALID_DATA);
	assert_says("neither grey nor RGB");
	buf_finish(&b);
}

static struct data_image image_of(
	int64_t height, int64_t width, int64_t channels, const unsigned char *p)
{
	struct data_image i;
	assert_ok(data_image_init(&i, height, width, channels, &err));
	memcpy(i.pixels, p, (size_t)(height * width * channels));
	return i;
}

static void test_resize(void **state)
{
	/* Growing: pixel centres at halves. */
	const unsigned char two[2] = { 0, 100 }, four[8] = { 0, 25, 75, 100, 0, 25, 75, 100 };
	struct data_image i = image_of(1, 2, 1, two);
	assert_ok(data_image_resize(&i, 2, 4, &err));
	assert_pixels(&i, 2, 4, 1, four);
	/* Shrinking: a triangle as wide as two pixels of the source to each side. 100 / 7 and its
	 * complement. */
	const unsigned char wide[8] = { 0, 0, 100, 100, 0, 0, 100, 100 }, half[2] = { 14, 86 };
	i = image_of(2, 4, 1, wide);
	assert_ok(data_image_resize(&i, 1, 2, &err));
	assert_pixels(&i, 1, 2, 1, half);
	/* What sticks out is cut off evenly. */
	const unsigned char row[6] = { 1, 2, 3, 4, 5, 6 }, middle[2] = { 3, 4 };
	i = image_of(1, 6, 1, row);
	assert_ok(data_image_resize(&i, 1, 2, &err));
	assert_pixels(&i, 1, 2, 1, middle);
	i = image_of(6, 1, 1, row);
	assert_ok(data_image_resize(&i, 2, 1, &err));
	assert_pixels(&i, 2, 1, 1, middle);
	/* One colour stays what it is, whatever the sizes. */
	unsigned char flat[13 * 7 * 3];
	memset(flat, 77, sizeof(flat));
	for (int64_t h = 1; h < 30; h += 4)
		for (int64_t w = 1; w < 30; w += 3) {
			i = image_of(13, 7, 3, flat);
			assert_ok(data_image_resize(&i, h, w, &err));
			for (int64_t k = 0; k < h * w * 3; k++)
				assert_int_equal(i.pixels[k], 77);
			data_image_finish(&i);
		}
}

static void test_channels(void **state)
{
	const unsigned char rgb[6] = { 255, 0, 0, 10, 20, 30 }, grey[2] = { 76, 18 };
	const unsigned char back[6] = { 76, 76, 76, 18, 18, 18 };
	struct data_image i = image_of(1, 2, 3, rgb);
	assert_ok(data_image_channels(&i, 1, &err));
	assert_memory_equal(i.pixels, grey, 2);
	assert_ok(data_image_channels(&i, 3, &err));
	assert_pixels(&i, 1, 2, 3, back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_png),
		cmocka_unit_test(test_png_refused),
		cmocka_unit_test(test_jpeg),
		cmocka_unit_test(test_resize),
		cmocka_unit_test(test_channels),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
