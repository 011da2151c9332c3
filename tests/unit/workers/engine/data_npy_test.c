/* SPDX-License-Identifier: Apache-2.0
 * .npy files: types, versions and shapes; headers that lie. And images shifted and mirrored. */
#include "tests/unit/workers/engine/data_fixture.h"

static struct err err;

struct npy {
	unsigned char bytes[8192];
	size_t count;
};

static struct npy make(const char *dict, int version, const void *elements, size_t bytes)
{
	struct npy n = { .count = 0 };
	size_t prefix = version == 1 ? 10 : 12;
	size_t header = (prefix + strlen(dict) + 1 + 63) / 64 * 64;
	memcpy(n.bytes, "\x93NUMPY", 6);
	n.bytes[6] = (unsigned char)version;
	n.bytes[8] = (unsigned char)(header - prefix);
	n.bytes[9] = (unsigned char)((header - prefix) >> 8);
	memset(n.bytes + prefix, ' ', header - prefix);
	memcpy(n.bytes + prefix, dict, strlen(dict));
	n.bytes[header - 1] = '\n';
	memcpy(n.bytes + header, elements, bytes);
	n.count = header + bytes;
	return n;
}

static int open_pair(
	const struct job_spec *s, const struct npy *x, const struct npy *y, struct data **d)
{
	return fixture_data_pair(s, x->bytes, x->count, y->bytes, y->count, d, &err);
}

static struct job_spec npy_spec(enum spec_task task)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.task = task;
	s.data.format = SPEC_FORMAT_NPY;
	s.model.in_channels = s.model.in_height = s.model.in_width = s.model.n_classes = 0;
	return s;
}

static void test_types(void **state)
{
	struct job_spec s = npy_spec(SPEC_CLASSIFICATION);
	const float f4[6] = { 0.5f, -1, 2, 3, 4, 5 };
	const double f8[6] = { 0.5, -1, 2, 3, 4, 5 };
	const int64_t i8[3] = { 2, 0, 4 };
	const unsigned char be[6 * 4] = { 0x3f, 0, 0, 0, 0xbf, 0x80, 0, 0, 0x40, 0, 0, 0, 0x40, 0x40, 0,
		0, 0x40, 0x80, 0, 0, 0x40, 0xa0, 0, 0 };
	struct npy y = make("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", 1, i8, 24);
	struct npy x[] = {
		make("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 1, f4, 24),
		make("{'shape': (3, 2), 'descr': '<f8', 'fortran_order': False}", 2, f8, 48),
		make("{'descr': '>f4', 'fortran_order': False, 'shape': (3L, 2L)}", 3, be, 24),
	};
	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		struct data *d = NULL;
		assert_ok(open_pair(&s, &x[i], &y, &d));
		assert_true(data_info(d)->samples == 3 && data_info(d)->width == 2);
		assert_int_equal(data_info(d)->classes, 5);
		float in[2];
		int32_t label;
		struct data_batch b = { .samples = 1, .input = in, .labels = &label };
		data_read(d, 0, 0, 0, &b);
		assert_true(in[0] == 0.5f && in[1] == -1 && label == 2);
		data_read(d, 2, 0, 0, &b);
		assert_true(in[0] == 4 && in[1] == 5 && label == 4);
		data_close(d);
	}
}

/* Whole numbers as samples: the sign, the byte order and all the bytes count. */
static void test_whole_types(void **state)
{
	static const struct {
		const char *name;
		int bytes;
		double value;
	} types[] = { { "|i1", 1, -2 }, { "<i2", 2, -2 }, { ">i2", 2, -2 }, { "<i4", 4, -2 },
		{ ">i4", 4, -2 }, { "<i8", 8, -2 }, { ">i8", 8, -2 }, { "<u2", 2, 65534 },
		{ ">u2", 2, 65534 }, { "<u4", 4, 4294967294.0 }, { "<i8", 8, 8589934592.0 } };
	struct job_spec s = npy_spec(SPEC_CLASSIFICATION);
	const unsigned char zero = 0;
	struct npy y = make("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", 1, &zero, 1);
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		char dict[128];
		unsigned char elements[16] = { 0 };
		int n = types[i].bytes;
		for (int k = 0; k < n; k++)
			elements[n + (types[i].name[0] == '>' ? n - 1 - k : k)] =
				(unsigned char)((uint64_t)(int64_t)types[i].value >> (8 * k));
		snprintf(dict, sizeof(dict), "{'descr': '%s', 'fortran_order': False, 'shape': (1, 2), }",
			types[i].name);
		struct npy x = make(dict, 1, elements, (size_t)(2 * n));
		struct data *d = NULL;
		assert_ok(open_pair(&s, &x, &y, &d));
		float in[2];
		int32_t label;
		data_read(d, 0, 0, 0, &(struct data_batch){ .samples = 1, .input = in, .labels = &label });
		if (in[0] != 0 || in[1] != (float)types[i].value)
			fail_msg("%s: %g %g", types[i].name, (double)in[0], (double)in[1]);
		data_close(d);
	}
}

static void test_regression(void **state)
{
	struct job_spec s = npy_spec(SPEC_REGRESSION);
	const unsigned char u1[4] = { 0, 255, 51, 102 };
	const float f4[4] = { 1, 2, 3, 4 };
	struct npy x = make("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }", 1, u1, 4);
	struct npy y = make("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", 1, f4, 16);
	struct data *d = NULL;
	assert_ok(open_pair(&s, &x, &y, &d));
	assert_int_equal(data_info(d)->classes, 2);
	float in[2], out[2];
	data_read(d, 1, 0, 0, &(struct data_batch){ .samples = 1, .input = in, .labels = out });
	assert_true(fabsf(in[0] - 0.2f) < 1e-7f && fabsf(in[1] - 0.4f) < 1e-7f);
	assert_true(out[0] == 3 && out[1] == 4);
	data_close(d);
}

#define refuse(dict, bytes_of_elements, ...)                           \
	do {                                                               \
		struct data *d = NULL;                                         \
		struct npy x = make(dict, 1, zeros, bytes_of_elements);        \
		assert_int_equal(open_pair(&s, &x, &y, &d), ERR_INVALID_DATA); \
		assert_says("the first", __VA_ARGS__);                         \
		assert_string_equal(err.param, "training_file");               \
	} while (0)

static void test_refused(void **state)
{
	struct job_spec s = npy_spec(SPEC_CLASSIFICATION);
	static const unsigned char zeros[4096];
	struct npy y = make("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", 1, zeros, 12);
	refuse(
		"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 20, "truncated", "24 bytes");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 25, "too long");
	refuse("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }", 24, "Fortran order");
	refuse("{'descr': '<f2', 'fortran_order': False, 'shape': (3, 2), }", 12, "a type other than");
	refuse("{'descr': '|O', 'fortran_order': False, 'shape': (3, 2), }", 24, "a type other than");
	refuse("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", 12, "no string");
	refuse("{'descr': 'f4', 'fortran_order': False, 'shape': (3, 2), }", 24, "byte order");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, "no dimensions");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1), }", 4, "4 dimensions");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0), }", 0, "dimension 1 is 0");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, -2), }", 24, "whole numbers");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 2), }", 24,
		"no file holds");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 24,
		"more than any file holds");
	refuse("{'descr': '<f4', 'fortran_order': False, 'x': (3, 2), }", 24, "a member other");
	refuse("{'descr': '<f4', 'fortran_order': False, }", 24, "no shape");
	refuse("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)}", 24, "once");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)", 24, "no end");
	refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 12, "at least 2");
	refuse(
		"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }", 32, "3 labels", "4 samples");
	struct data *d = NULL;
	struct npy x =
		make("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 1, zeros, 24);
	const int64_t labels[3] = { 0, 1, INT64_C(1) << 32 };
	struct npy far =
		make("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", 1, labels, 24);
	assert_int_equal(open_pair(&s, &x, &far, &d), ERR_INVALID_DATA);
	assert_says("the second", "label 4294967296 of item 2");
	x.bytes[6] = 9;
	assert_int_equal(open_pair(&s, &x, &y, &d), ERR_INVALID_DATA);
	assert_says("version 9.0", "offset 6");
	x.bytes[6] = 1;
	x.bytes[9] = 0xff;
	assert_int_equal(open_pair(&s, &x, &y, &d), ERR_INVALID_DATA);
	assert_says("truncated", "offset 8");
	x.bytes[0] = 0;
	assert_int_equal(open_pair(&s, &x, &y, &d), ERR_INVALID_DATA);
	assert_says("no .npy file");
	x = make("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 1, zeros, 24);
	x.bytes[x.count - 1] = 0x7f;
	x.bytes[x.count - 2] = 0x80;
	assert_int_equal(open_pair(&s, &x, &y, &d), ERR_INVALID_DATA);
	assert_says("the first", "offset 148", "not finite");
}

/* One number more than a sample may have, in a file that is a hole. */
static void test_sample_too_large(void **state)
{
	struct job_spec s = npy_spec(SPEC_CLASSIFICATION);
	const unsigned char zero = 0;
	struct npy x =
		make("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 67108865), }", 1, "", 0);
	struct npy y = make("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", 1, &zero, 1);
	struct fixture_file f[2] = { fixture_write(x.bytes, x.count), fixture_write(y.bytes, y.count) };
	struct data_file files[2] = { { f[0].path, "the first" }, { f[1].path, "the second" } };
	struct data *d = NULL;
	assert_int_equal(truncate(f[0].path, (off_t)x.count + 67108865), 0);
	assert_int_equal(data_open(&s, files, 2, "training_file", NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("the first", "67108865 numbers", "at most 67108864");
	unlink(f[0].path);
	unlink(f[1].path);
}

/* Training and validation have samples of one shape. */
static void test_agree(void **state)
{
	static const unsigned char zeros[64];
	struct job_spec s = fixture_spec(SPEC_CNN);
	s.data.format = SPEC_FORMAT_NPY;
	s.model.in_channels = s.model.in_height = s.model.in_width = 0;
	const char *const shapes[] = { "2, 3, 2", "2, 3, 1", "3, 3, 2", "2, 2, 2" };
	struct npy y = make("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", 1, zeros, 1);
	struct data *d[ARRAY_LEN(shapes)] = { NULL };
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		char dict[128];
		size_t bytes = 1;
		for (const char *p = shapes[i]; *p; p++)
			bytes *= *p >= '0' ? (size_t)(*p - '0') : 1;
		snprintf(dict, sizeof(dict), "{'descr': '|u1', 'fortran_order': False, 'shape': (1, %s), }",
			shapes[i]);
		struct npy x = make(dict, 1, zeros, bytes);
		assert_ok(open_pair(&s, &x, &y, &d[i]));
	}
	assert_ok(data_agree(d[0], d[0], &err));
	const char *const says[] = { "2x3x1", "3x3x2", "2x2x2" };
	for (size_t i = 1; i < ARRAY_LEN(shapes); i++) {
		assert_int_equal(data_agree(d[0], d[i], &err), ERR_INVALID_DATA);
		assert_says("training samples 2x3x2", says[i - 1]);
	}
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		data_close(d[i]);
}

/* An image of numbered pixels, 4 x 6 with 2 channels, cropped from its padded self and mirrored;
 * there is one before and one behind it. */
static void test_augmentation(void **state)
{
	enum { H = 4, W = 6, C = 2, PAD = 2, N = H * W * C };
	struct job_spec s = fixture_spec(SPEC_CNN);
	s.data.format = SPEC_FORMAT_NPY;
	s.data.flip = true;
	s.data.crop_padding = PAD;
	s.model.in_channels = C;
	s.model.in_height = H;
	s.model.in_width = W;
	float images[3 * N], got[N];
	const float *pixels = images + N;
	for (int i = 0; i < 3 * N; i++)
		images[i] = (float)(i + 1);
	const int32_t zeros[3] = { 0 };
	struct npy x = make("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4, 6, 2), }", 1,
		images, sizeof(images));
	struct npy y = make("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", 1, zeros, 12);
	struct data *d = NULL;
	assert_ok(open_pair(&s, &x, &y, &d));
	int32_t label;
	struct data_batch b = { .samples = 1, .input = got, .labels = &label };
	data_read(d, 1, 0, 0, &b);
	assert_memory_equal(got, pixels, sizeof(got));
	int seen[2 * PAD + 1][2 * PAD + 1][2] = { { { 0 } } };
	for (uint64_t draw = 1; draw <= 4000; draw++) {
		data_read(d, 1, 0, draw, &b);
		int matches = 0;
		for (int dy = -PAD; dy <= PAD; dy++)
			for (int dx = -PAD; dx <= PAD; dx++)
				for (int mirror = 0; mirror < 2; mirror++) {
					bool same = true;
					for (int i = 0; i < N && same; i++) {
						int row = i / (W * C), column = i / C % W, c = i % C;
						int from_row = row + dy, from = (mirror ? W - 1 - column : column) + dx;
						bool inside = from_row >= 0 && from_row < H && from >= 0 && from < W;
						float want = inside ? pixels[(from_row * W + from) * C + c] : 0;
						same = got[i] == want;
					}
					matches += same;
					seen[dy + PAD][dx + PAD][mirror] += same;
				}
		assert_int_equal(matches, 1);
	}
	/* 80 each; outside of 45 to 115 by chance less than once in ten thousand. */
	for (int k = 0; k < 50; k++)
		assert_in_range(seen[k / 10][k / 2 % 5][k % 2], 45, 115);
	/* The same draw, the same image. */
	float again[N];
	data_read(d, 1, 0, 77, &b);
	memcpy(again, got, sizeof(got));
	data_read(d, 1, 0, 77, &b);
	assert_memory_equal(again, got, sizeof(got));
	data_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_whole_types),
		cmocka_unit_test(test_regression),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sample_too_large),
		cmocka_unit_test(test_agree),
		cmocka_unit_test(test_augmentation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
