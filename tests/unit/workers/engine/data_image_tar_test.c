/* SPDX-License-Identifier: Apache-2.0
 * Tars of images: classes by folder and by .cls file, one size, threads, and what is refused. */
#include "tests/unit/workers/engine/tar_fixture.h"

static struct err err;

static struct job_spec tar_spec(void)
{
	struct job_spec s = fixture_spec(SPEC_CNN);
	s.data.format = SPEC_FORMAT_IMAGE_TAR;
	s.model.in_channels = s.model.in_height = s.model.in_width = s.model.n_classes = 0;
	return s;
}

/* A grey PNG of one value, but for its first pixel, 255. */
static void put_png(struct fixture_tar *t, const char *name, int width, int height, int value)
{
	static unsigned char pixels[64 * 64];
	struct buf b;
	memset(pixels, value, sizeof(pixels));
	pixels[0] = 255;
	fixture_png(&b, width, height, 8, PNG_COLOR_TYPE_GRAY, pixels);
	fixture_tar_put(t, name, b.data, b.len, AE_IFREG);
	buf_finish(&b);
}

static int open_tar(const struct job_spec *s, struct fixture_tar *t, int threads, struct data **d)
{
	fixture_tar_end(t);
	struct data_options o = { .threads = threads };
	int rc = fixture_data(s, t->bytes.data, t->bytes.len, &o, d, &err);
	buf_finish(&t->bytes);
	return rc;
}

static void assert_sample(const struct data *d, int64_t index, int value, int label)
{
	static float x[64 * 64 * 3];
	int32_t y;
	data_read(d, index, 0, 0, &(struct data_batch){ .samples = 1, .input = x, .labels = &y });
	assert_true(x[0] == 1.0f);
	assert_true(fabsf(x[1] - (float)value / 255.0f) < 1e-7f);
	assert_int_equal(y, label);
}

static void test_folders(void **state)
{
	struct job_spec s = tar_spec();
	for (int gzip = 0; gzip < 2; gzip++) {
		struct fixture_tar t;
		struct data *d = NULL;
		fixture_tar_begin(&t, gzip);
		fixture_tar_put(&t, "set/", NULL, 0, AE_IFDIR);
		put_png(&t, "set/zebra/1.png", 6, 4, 10);
		put_png(&t, "set/Ant/1.PNG", 6, 4, 20);
		fixture_tar_put(&t, "set/README.txt", "hello", 5, AE_IFREG);
		fixture_tar_put(&t, "set/zebra/._1.png", "mac", 3, AE_IFREG);
		put_png(&t, "other/zebra/2.png", 6, 4, 30);
		put_png(&t, "set/cat/1.png", 6, 4, 40);
		assert_ok(open_tar(&s, &t, 1 + gzip, &d));
		const struct data_info *i = data_info(d);
		assert_true(i->samples == 4 && i->height == 4 && i->width == 6 && i->channels == 1);
		assert_int_equal(i->classes, 3);
		assert_sample(d, 0, 10, 2);
		assert_sample(d, 1, 20, 0);
		assert_sample(d, 2, 30, 2);
		assert_sample(d, 3, 40, 1);
		data_close(d);
	}
}

static void test_class_files(void **state)
{
	struct job_spec s = tar_spec();
	struct fixture_tar t;
	struct data *d = NULL;
	fixture_tar_begin(&t, false);
	put_png(&t, "0010.png", 3, 3, 3); /* not in the order of names */
	fixture_tar_put(&t, "000.cls", "7\n", 2, AE_IFREG);
	put_png(&t, "000.png", 3, 3, 1);
	put_png(&t, "001.png", 3, 3, 2);
	fixture_tar_put(&t, "001.json", "{}", 2, AE_IFREG);
	fixture_tar_put(&t, "001.cls", "0", 1, AE_IFREG);
	fixture_tar_put(&t, "0010.cls", " 3 ", 3, AE_IFREG);
	assert_ok(open_tar(&s, &t, 3, &d));
	assert_int_equal(data_info(d)->classes, 8);
	assert_sample(d, 0, 3, 3);
	assert_sample(d, 1, 1, 7);
	assert_sample(d, 2, 2, 0);
	data_close(d);
	fixture_tar_begin(&t, false);
	put_png(&t, "a/000.png", 3, 3, 1);
	put_png(&t, "a/001.png", 3, 3, 2);
	fixture_tar_put(&t, "a/001.cls", "0", 1, AE_IFREG);
	assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
	assert_says("image a/000", "no .cls file beside it");
	fixture_tar_begin(&t, false);
	put_png(&t, "a/001.png", 3, 3, 2);
	fixture_tar_put(&t, "a/001.cls", "0", 1, AE_IFREG);
	fixture_tar_put(&t, "a/001.cls", "1", 1, AE_IFREG);
	assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
	assert_says("image a/001", "two .cls files");
	const char *const bad[] = { "cat", "1234567890", "1 2", "-1", "" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		fixture_tar_begin(&t, false);
		fixture_tar_put(&t, "a/001.cls", bad[i], strlen(bad[i]), AE_IFREG);
		assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
		assert_says("entry a/001.cls", "one whole number");
	}
}

/* Images of the second tar come behind those of the first; their folders are numbered together. */
static void test_files_follow(void **state)
{
	struct job_spec s = tar_spec();
	struct fixture_tar t[2];
	struct data *d = NULL;
	fixture_tar_begin(&t[0], false);
	put_png(&t[0], "dog/1.png", 6, 4, 10);
	put_png(&t[0], "cat/1.png", 6, 4, 20);
	fixture_tar_begin(&t[1], true);
	put_png(&t[1], "cow/1.png", 6, 4, 30);
	put_png(&t[1], "dog/1.png", 6, 4, 40);
	for (int i = 0; i < 2; i++)
		fixture_tar_end(&t[i]);
	assert_ok(fixture_data_pair(
		&s, t[0].bytes.data, t[0].bytes.len, t[1].bytes.data, t[1].bytes.len, &d, &err));
	assert_true(data_info(d)->samples == 4 && data_info(d)->classes == 3);
	assert_sample(d, 0, 10, 2);
	assert_sample(d, 1, 20, 0);
	assert_sample(d, 2, 30, 1);
	assert_sample(d, 3, 40, 2);
	data_close(d);
	for (int i = 0; i < 2; i++)
		buf_finish(&t[i].bytes);
}

/* The first image says how many channels all have, and what size; in the next batch too. */
static void test_first_decides(void **state)
{
	struct job_spec s = tar_spec();
	const unsigned char rgb[3] = { 10, 20, 30 }, grey = 100;
	struct buf one, three;
	fixture_png(&one, 1, 1, 8, PNG_COLOR_TYPE_GRAY, &grey);
	fixture_png(&three, 1, 1, 8, PNG_COLOR_TYPE_RGB, rgb);
	for (int colour = 0; colour < 2; colour++) {
		const float want[2][3] = { { 18 }, { 100, 100, 100 } };
		struct buf *first = colour ? &three : &one, *second = colour ? &one : &three;
		struct fixture_tar t;
		struct data *d = NULL;
		fixture_tar_begin(&t, false);
		fixture_tar_put(&t, "a/1.png", first->data, first->len, AE_IFREG);
		fixture_tar_put(&t, "a/2.png", second->data, second->len, AE_IFREG);
		assert_ok(open_tar(&s, &t, 1, &d));
		assert_int_equal(data_info(d)->channels, colour ? 3 : 1);
		float x[3];
		int32_t y;
		data_read(d, 1, 0, 0, &(struct data_batch){ .samples = 1, .input = x, .labels = &y });
		for (int c = 0; c < (colour ? 3 : 1); c++)
			assert_true(fabsf(x[c] - want[colour][c] / 255.0f) < 1e-7f);
		data_close(d);
	}
	buf_finish(&one);
	buf_finish(&three);
	struct fixture_tar t;
	struct data *d = NULL;
	fixture_tar_begin(&t, false);
	for (int k = 0; k < 40; k++) {
		char name[32];
		snprintf(name, sizeof(name), "a/%d.png", k);
		put_png(&t, name, k < 16 ? 6 : 7, 4, k);
	}
	assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
	assert_says("entry a/16.png", "4x7", "first image 4x6");
}

/* More images than wait at a time, of every colour, to the model's size, on any number of threads.
 */
static void test_threads(void **state)
{
	struct job_spec s = tar_spec();
	s.model.in_channels = 3;
	s.model.in_height = 8;
	s.model.in_width = 8;
	struct data *d[2] = { NULL, NULL };
	for (int which = 0; which < 2; which++) {
		struct fixture_tar t;
		uint64_t random = 5;
		fixture_tar_begin(&t, false);
		for (int k = 0; k < 150; k++) {
			unsigned char pixels[20 * 20 * 3];
			for (size_t i = 0; i < sizeof(pixels); i++)
				pixels[i] = (unsigned char)((1 + fixture_random(&random)) * 128);
			int width = 5 + k % 15, height = 5 + k % 7;
			struct buf b;
			char name[64];
			snprintf(name, sizeof(name), "%c/%d.%s", 'a' + k % 5, k, k % 2 ? "jpg" : "png");
			if (k % 2)
				fixture_jpeg(&b, width, height, k % 3 ? 3 : 1, pixels);
			else
				fixture_png(&b, width, height, 8, PNG_COLOR_TYPE_RGB, pixels);
			fixture_tar_put(&t, name, b.data, b.len, AE_IFREG);
			buf_finish(&b);
		}
		assert_ok(open_tar(&s, &t, which ? 3 : 1, &d[which]));
	}
	for (int64_t k = 0; k < 150; k++) {
		float x[2][8 * 8 * 3];
		int32_t y[2];
		for (int i = 0; i < 2; i++)
			data_read(d[i], k, 0, 0, &(struct data_batch){ .input = x[i], .labels = &y[i] });
		assert_memory_equal(x[0], x[1], sizeof(x[0]));
		assert_true(y[0] == y[1] && y[0] == k % 5);
	}
	data_close(d[0]);
	data_close(d[1]);
}

#define refuse(put, ...)                                             \
	do {                                                             \
		struct fixture_tar t;                                        \
		struct data *d = NULL;                                       \
		fixture_tar_begin(&t, false);                                \
		put_png(&t, "a/good.png", 6, 4, 1);                          \
		put;                                                         \
		assert_int_equal(open_tar(&s, &t, 2, &d), ERR_INVALID_DATA); \
		assert_string_equal(err.param, "training_file");             \
		assert_says(__VA_ARGS__);                                    \
	} while (0)

static void test_refused(void **state)
{
	struct job_spec s = tar_spec();
	refuse(put_png(&t, "a/big.png", 7, 4, 1), "the file", "entry a/big.png", "4x7",
		"first image 4x6", "in_height");
	refuse(put_png(&t, "top.png", 6, 4, 1), "image top", "class is unknown");
	refuse(fixture_tar_put(&t, "a/x.png", "\x89PNG\r\n\x1a\n....", 12, AE_IFREG), "entry a/x.png",
		"PNG image cannot be decoded");
	refuse(
		fixture_tar_put(&t, "a/x.jpeg", "\xff\xd8\xff\xe0", 4, AE_IFREG), "entry a/x.jpeg", "JPEG");
	refuse(fixture_tar_put(&t, "a/x.jpg", "GIF89a", 6, AE_IFREG), "neither PNG nor JPEG");
	refuse(fixture_tar_put(&t, "a/x.jpg", "", 0, AE_IFREG), "1 byte to 64 MiB");
	refuse(fixture_tar_put(&t, "a/link.png", NULL, 0, AE_IFLNK), "entry a/link.png",
		"no regular file");
	refuse(fixture_tar_put(&t, "a/second.png", NULL, 0, FIXTURE_HARDLINK), "entry a/second.png",
		"no regular file");
	s.model.n_classes = 2;
	refuse((put_png(&t, "b/1.png", 6, 4, 1), put_png(&t, "c/1.png", 6, 4, 1)), "label 2", "0 to 1");
	s.model.in_channels = 2;
	refuse((void)0, "1 or 3 channels");
}

static void test_broken_tars(void **state)
{
	struct job_spec s = tar_spec();
	struct fixture_tar t;
	struct data *d = NULL;
	fixture_tar_begin(&t, false);
	fixture_tar_put(&t, "a/x.txt", "hello", 5, AE_IFREG);
	assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
	assert_says("the file", "no entry that ends in .png");
	assert_int_equal(fixture_data(&s, "not a tar at all", 16, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "no readable tar");
	fixture_tar_begin(&t, false);
	put_png(&t, "a/1.png", 40, 40, 1);
	put_png(&t, "a/2.png", 40, 40, 2);
	fixture_tar_end(&t);
	for (size_t n = 100; n < 2500; n += 100) {
		assert_int_equal(fixture_data(&s, t.bytes.data, n, NULL, &d, &err), ERR_INVALID_DATA);
		assert_says("the file");
	}
	/* Cut where an entry ends. */
	assert_int_equal(fixture_data(&s, t.bytes.data, 1024, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("truncated");
	buf_finish(&t.bytes);
	/* 200 MB of zeros in 200 kB. */
	char *zeros = calloc(1, 50 << 20);
	fixture_tar_begin(&t, true);
	for (int i = 0; i < 4; i++) {
		char name[32];
		snprintf(name, sizeof(name), "a/%d.bin", i);
		fixture_tar_put(&t, name, zeros, 50 << 20, AE_IFREG);
	}
	free(zeros);
	assert_int_equal(open_tar(&s, &t, 1, &d), ERR_INVALID_DATA);
	assert_says("entry a/1.bin", "more than 64 times its size");
}

/* The size of the first entry as a number of 64 bits, big-endian, with the marks of that form. */
static void set_size(char *header, int64_t size)
{
	unsigned sum = 0;
	memset(header + 124, size < 0 ? 0xff : 0, 12);
	if (size >= 0)
		header[124] = (char)0x80;
	for (int i = 0; i < 8; i++)
		header[135 - i] = (char)((uint64_t)size >> (8 * i));
	memset(header + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		sum += (unsigned char)header[i];
	snprintf(header + 148, 8, "%06o", sum);
}

static void test_sizes_out_of_bounds(void **state)
{
	struct job_spec s = tar_spec();
	const int64_t sizes[] = { -1, INT64_MIN, INT64_MAX, INT64_MAX - 512 };
	const char *const names[] = { "a/1.cls", "a/1.png", "a/1.txt" };
	for (size_t i = 0; i < ARRAY_LEN(sizes) * ARRAY_LEN(names); i++) {
		struct fixture_tar t;
		struct data *d = NULL;
		fixture_tar_begin(&t, false);
		fixture_tar_put(&t, names[i % ARRAY_LEN(names)], "1", 1, AE_IFREG);
		fixture_tar_end(&t);
		set_size(t.bytes.data, sizes[i / ARRAY_LEN(names)]);
		assert_int_equal(
			fixture_data(&s, t.bytes.data, t.bytes.len, NULL, &d, &err), ERR_INVALID_DATA);
		assert_string_equal(err.param, "training_file");
		buf_finish(&t.bytes);
	}
}

/* Training and validation must mean the same by a class. */
static void test_agree(void **state)
{
	struct job_spec s = tar_spec();
	const char *const folders[3][2] = { { "cat/1.png", "dog/1.png" }, { "cat/7.png", "dog/8.png" },
		{ "cat/1.png", "fox/1.png" } };
	struct data *d[3] = { NULL, NULL, NULL };
	for (int i = 0; i < 3; i++) {
		struct fixture_tar t;
		fixture_tar_begin(&t, false);
		put_png(&t, folders[i][0], 6, 4, 1);
		put_png(&t, folders[i][1], 6, 4, 1);
		assert_ok(open_tar(&s, &t, 1, &d[i]));
	}
	assert_ok(data_agree(d[0], d[1], &err));
	assert_int_equal(data_agree(d[0], d[2], &err), ERR_INVALID_DATA);
	assert_says("\"fox\"", "\"dog\"");
	for (int i = 0; i < 3; i++)
		data_close(d[i]);
}

/* Names of folders on one side, numbers on the other. */
static void test_agree_kinds(void **state)
{
	struct job_spec s = tar_spec();
	struct data *d[2] = { NULL, NULL };
	for (int i = 0; i < 2; i++) {
		struct fixture_tar t;
		fixture_tar_begin(&t, false);
		put_png(&t, "cat/1.png", 6, 4, 1);
		if (i)
			fixture_tar_put(&t, "cat/1.cls", "0", 1, AE_IFREG);
		assert_ok(open_tar(&s, &t, 1, &d[i]));
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(data_agree(d[i], d[1 - i], &err), ERR_INVALID_DATA);
		assert_string_equal(err.param, "validation_file");
		assert_says(i ? "training images numbers" : "training images names", "folders", ".cls");
		assert_ok(data_agree(d[i], d[i], &err));
	}
	data_close(d[0]);
	data_close(d[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_folders),
		cmocka_unit_test(test_class_files),
		cmocka_unit_test(test_files_follow),
		cmocka_unit_test(test_first_decides),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_broken_tars),
		cmocka_unit_test(test_sizes_out_of_bounds),
		cmocka_unit_test(test_agree),
		cmocka_unit_test(test_agree_kinds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
