/* SPDX-License-Identifier: Apache-2.0
 * Data files, good and bad: every refusal names the file and the position. */
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/data/data_private.h"

static struct err err;

static int open_text(const char *bytes, size_t count, struct data **ret)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.data.sequence_length = 4;
	struct fixture_file f = fixture_write(bytes, count);
	struct data_file file = { f.path, "poem.txt" };
	int rc = data_open(&s, &file, 1, "training_file", NULL, ret, &err);
	unlink(f.path);
	return rc;
}

static void test_text_windows(void **state)
{
	struct data *d = NULL;
	assert_ok(open_text("abcdefghijk", 11, &d));
	const struct data_info *i = data_info(d);
	assert_int_equal(i->samples, 2);
	assert_int_equal(i->tokens, 10);
	assert_int_equal(i->bytes, 11);
	assert_int_equal(data_evaluation_samples(d), 3);
	int32_t x[8], y[8];
	data_read(d, 1, 1, 0, &(struct data_batch){ .input = x, .labels = y });
	const int32_t x1[4] = { 'e', 'f', 'g', 'h' }, y1[4] = { 'f', 'g', 'h', 'i' };
	assert_memory_equal(x + 4, x1, sizeof(x1));
	assert_memory_equal(y + 4, y1, sizeof(y1));
	data_read(d, 2, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	const int32_t x2[4] = { 'i', 'j', 'k', 0 }, y2[4] = { 'j', 'k', -1, -1 };
	assert_memory_equal(x, x2, sizeof(x2));
	assert_memory_equal(y, y2, sizeof(y2));
	data_blank(d, 1, &(struct data_batch){ .input = x, .labels = y });
	const int32_t none[4] = { -1, -1, -1, -1 };
	assert_memory_equal(y + 4, none, sizeof(none));
	data_close(d);
}

/* Windows run over the ends of files; a file may be shorter than a window. */
static void test_text_files_join(void **state)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.data.sequence_length = 4;
	struct fixture_file f[3] = { fixture_write("abc", 3), fixture_write("d", 1),
		fixture_write("efghi", 5) };
	struct data_file files[3] = { { f[0].path, "a" }, { f[1].path, "b" }, { f[2].path, "c" } };
	struct data *d = NULL;
	assert_ok(data_open(&s, files, 3, "training_file", NULL, &d, &err));
	assert_int_equal(data_info(d)->samples, 2);
	char seen[10] = { 0 };
	for (int w = 0; w < 2; w++) {
		int32_t x[4], y[4];
		data_read(d, w, 0, 0, &(struct data_batch){ .input = x, .labels = y });
		for (int i = 0; i < 4; i++) {
			seen[4 * w + i] = (char)x[i];
			assert_int_equal(y[i], x[i] + 1);
		}
	}
	assert_string_equal(seen, "abcdefgh");
	data_close(d);
	for (int i = 0; i < 3; i++)
		unlink(f[i].path);
}

static void test_text_refused(void **state)
{
	struct data *d = NULL;
	assert_int_equal(open_text("", 0, &d), ERR_INVALID_DATA);
	assert_says("poem.txt", "empty");
	assert_string_equal(err.param, "training_file");
	assert_int_equal(open_text("one\ntwo\nbad \xff here", 18, &d), ERR_INVALID_DATA);
	assert_says("poem.txt", "0xff", "offset 12", "line 3");
	assert_int_equal(open_text("cut off \xe2\x82", 10, &d), ERR_INVALID_DATA);
	assert_says("offset 8", "line 1");
	assert_int_equal(open_text("abcd", 4, &d), ERR_INVALID_DATA);
	assert_says("4 bytes", "needs 5");
	assert_null(d);
	assert_ok(open_text("abcd\xe2\x82\xac", 7, &d));
	data_close(d);
}

static void test_entropy(void **state)
{
	struct data *d = NULL;
	assert_ok(open_text("aabbccdd", 8, &d));
	assert_true(fabs(data_info(d)->entropy_bits_per_byte - 2) < 1e-12);
	data_close(d);
	assert_ok(open_text("aaaaaaab", 8, &d));
	assert_true(fabs(data_info(d)->entropy_bits_per_byte - 0.543564443) < 1e-9);
	data_close(d);
}

/* The mnist-like pair of the fixture with one change. */
struct idx {
	unsigned char images[16 + 6 * 12], labels[8 + 6];
	size_t image_bytes, label_bytes;
};

static struct idx good(void)
{
	struct idx x = { .image_bytes = sizeof(x.images), .label_bytes = sizeof(x.labels) };
	x.images[2] = x.labels[2] = 8;
	x.images[3] = 3;
	x.labels[3] = 1;
	fixture_put32(x.images + 4, 6);
	fixture_put32(x.images + 8, 4);
	fixture_put32(x.images + 12, 3);
	fixture_put32(x.labels + 4, 6);
	for (int i = 0; i < 72; i++)
		x.images[16 + i] = (unsigned char)(i * 3);
	for (int i = 0; i < 6; i++)
		x.labels[8 + i] = (unsigned char)(i % 5);
	return x;
}

static struct job_spec idx_spec(void)
{
	struct job_spec s = fixture_spec(SPEC_CNN);
	s.model.in_height = 4;
	s.model.in_width = 3;
	return s;
}

static int open_idx(const struct idx *x, bool swapped, struct data **ret)
{
	struct job_spec s = idx_spec();
	struct fixture_file f[2] = { fixture_write(x->images, x->image_bytes),
		fixture_write(x->labels, x->label_bytes) };
	struct data_file files[2] = { { f[0].path, "images" }, { f[1].path, "labels" } };
	struct data_file other[2] = { files[1], files[0] };
	int rc = data_open(&s, swapped ? other : files, 2, "validation_file", NULL, ret, &err);
	unlink(f[0].path);
	unlink(f[1].path);
	return rc;
}

static void test_idx(void **state)
{
	for (int swapped = 0; swapped < 2; swapped++) {
		struct idx x = good();
		struct data *d = NULL;
		assert_ok(open_idx(&x, swapped, &d));
		const struct data_info *i = data_info(d);
		assert_true(i->samples == 6 && i->classes == 5);
		assert_true(i->height == 4 && i->width == 3 && i->channels == 1);
		float input[24];
		int32_t labels[2] = { 0 };
		data_read(d, 2, 1, 0, &(struct data_batch){ .input = input, .labels = labels });
		assert_int_equal(labels[1], 2);
		for (int k = 0; k < 12; k++)
			assert_true(fabsf(input[12 + k] - (float)((24 + k) * 3) / 255.0f) < 1e-6f);
		data_close(d);
	}
}

/* Every type of element, big-endian. */
static void test_idx_types(void **state)
{
	static const struct {
		unsigned char type, bytes[8];
		int count;
		float value;
	} types[] = { { 0x08, { 51 }, 1, 0.2f }, { 0x09, { 0xfe }, 1, -2 },
		{ 0x0b, { 0xff, 0xfe }, 2, -2 }, { 0x0c, { 0xff, 0xff, 0xff, 0xfe }, 4, -2 },
		{ 0x0d, { 0xbf, 0xc0 }, 4, -1.5f }, { 0x0e, { 0xbf, 0xf8 }, 8, -1.5f } };
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.model.in_height = s.model.in_width = 1;
	const unsigned char y[9] = { 0, 0, 8, 1, 0, 0, 0, 1, 3 };
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		unsigned char x[12 + 8] = { 0, 0, types[i].type, 2, 0, 0, 0, 1, 0, 0, 0, 1 };
		memcpy(x + 12, types[i].bytes, (size_t)types[i].count);
		struct data *d = NULL;
		float got;
		int32_t label;
		assert_ok(fixture_data_pair(&s, x, 12 + (size_t)types[i].count, y, sizeof(y), &d, &err));
		data_read(d, 0, 0, 0, &(struct data_batch){ .input = &got, .labels = &label });
		assert_true(fabsf(got - types[i].value) < 1e-7f && label == 3);
		data_close(d);
	}
}

#define refuse_idx(change, ...)                                      \
	do {                                                             \
		struct idx x = good();                                       \
		struct data *d = NULL;                                       \
		change;                                                      \
		assert_int_equal(open_idx(&x, false, &d), ERR_INVALID_DATA); \
		assert_string_equal(err.param, "validation_file");           \
		assert_says(__VA_ARGS__);                                    \
	} while (0)

static void test_idx_refused(void **state)
{
	refuse_idx(x.image_bytes -= 5, "images", "truncated", "72 bytes", "offset 83");
	refuse_idx(x.image_bytes = 9, "images", "truncated", "offset 9");
	refuse_idx(x.image_bytes = 3, "images", "truncated", "3 bytes");
	refuse_idx(x.image_bytes = 0, "images", "empty");
	refuse_idx(x.label_bytes = 0, "labels", "empty");
	refuse_idx(x.label_bytes -= 1, "labels", "truncated", "offset 13");
	refuse_idx(fixture_put32(x.labels + 4, 5), "labels", "1 bytes too many", "offset 13");
	refuse_idx(x.images[0] = 0x50, "images", "not IDX", "50 00 08 03", "offset 0");
	refuse_idx(x.images[2] = 0x07, "images", "not IDX", "00 00 07 03");
	refuse_idx((x.images[0] = 0x1f, x.images[1] = 0x8b), "images", "gzip");
	refuse_idx(x.labels[8 + 3] = 5, "labels", "label 5", "item 3", "offset 11", "0 to 4");
	refuse_idx(fixture_put32(x.images + 4, 0), "images", "dimension 0", "offset 4");
	refuse_idx((fixture_put32(x.images + 4, 0xffffffff), fixture_put32(x.images + 8, 0xffffffff),
				   fixture_put32(x.images + 12, 0xffffffff)),
		"images", "more than any file holds");
	refuse_idx((fixture_put32(x.labels + 4, 5), x.label_bytes -= 1), "labels", "5 labels", "images",
		"6 samples");
	refuse_idx((fixture_put32(x.images + 4, 5), x.image_bytes -= 12), "labels", "6 labels",
		"images", "5 samples");
	refuse_idx((fixture_put32(x.images + 8, 3), fixture_put32(x.images + 12, 4)), "images", "3x4x1",
		"4x3x1");
	refuse_idx((x.labels[2] = 0x0d, fixture_put32(x.labels + 4, 1), x.label_bytes = 12), "labels",
		"whole numbers");
	/* Two files of labels: neither can be the samples. */
	refuse_idx((memcpy(x.images, x.labels, sizeof(x.labels)), x.image_bytes = x.label_bytes),
		"1 dimension", "at least 2");
}

/* Signed labels below zero. */
static void test_negative_label(void **state)
{
	refuse_idx((x.labels[2] = 9, x.labels[9] = 0xff), "label -1", "item 1", "offset 9");
}

static void test_regression(void **state)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.task = SPEC_REGRESSION;
	s.model.in_height = 1;
	s.model.in_width = 0;
	s.model.n_classes = 0;
	struct fixture_file f[2];
	fixture_regression(5, 3, 2, &f[0], &f[1]);
	struct data_file files[2] = { { f[0].path, "features" }, { f[1].path, "targets" } };
	struct data *d = NULL;
	assert_ok(data_open(&s, files, 2, "training_file", NULL, &d, &err));
	assert_true(data_info(d)->width == 3 && data_info(d)->classes == 2);
	float x[6], y[4];
	uint64_t random = 12;
	data_read(d, 0, 1, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_true(y[2] == (float)fixture_random(&random) && y[3] == (float)fixture_random(&random));
	data_blank(d, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_true(isnan(y[0]) && isnan(y[1]) && x[0] == 0 && x[2] == 0);
	struct data *one = NULL;
	struct data_file single[2] = { files[0], files[0] }; /* three targets */
	assert_ok(data_open(&s, single, 2, "validation_file", NULL, &one, &err));
	assert_int_equal(data_agree(d, one, &err), ERR_INVALID_DATA);
	assert_says("validation targets have 3 values", "training targets 2");
	data_close(one);
	data_close(d);
	d = NULL;
	for (int64_t n = 1; n <= 3; n += 2) {
		s.model.n_classes = n;
		assert_int_equal(
			data_open(&s, files, 2, "training_file", NULL, &d, &err), ERR_INVALID_DATA);
		assert_says("targets", "2 values", n == 1 ? "1 outputs" : "3 outputs");
	}
	unlink(f[0].path);
	unlink(f[1].path);
	/* A number that is not one. */
	unsigned char bytes[16] = { 0, 0, 0x0d, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x7f, 0xc0, 0, 0 };
	f[0] = f[1] = fixture_write(bytes, sizeof(bytes));
	s.model.n_classes = 1;
	files[0].path = files[1].path = f[0].path;
	assert_int_equal(data_open(&s, files, 2, "training_file", NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("features", "offset 12", "not finite");
	unlink(f[0].path);
}

static void test_open_refused(void **state)
{
	struct job_spec s = fixture_spec(SPEC_CNN);
	struct data *d = NULL;
	struct data_file files[SPEC_FILES_MAX + 1] = { { "/nonexistent/x", "gone.idx" } };
	assert_int_equal(data_open(&s, files, 0, "training_file", NULL, &d, &err), ERR_INVALID_DATA);
	assert_int_equal(data_open(&s, files, SPEC_FILES_MAX + 1, "training_file", NULL, &d, &err),
		ERR_INVALID_DATA);
	assert_int_equal(data_open(&s, files, 1, "training_file", NULL, &d, &err), ERR_IO);
	assert_says("gone.idx");
	files[0] = (struct data_file){ "/tmp", "folder" };
	assert_int_equal(data_open(&s, files, 1, "training_file", NULL, &d, &err), ERR_IO);
	assert_null(d);
}

static void test_validate(void **state)
{
	struct job_spec s = fixture_spec(SPEC_CNN);
	struct fixture_file f[6];
	fixture_images(11, 10, 9, 5, &f[0], &f[1]);
	fixture_images(7, 10, 8, 4, &f[2], &f[3]);
	fixture_images(8, 10, 9, 7, &f[4], &f[5]);
	struct data_file training[2] = { { f[0].path, "ti" }, { f[1].path, "tl" } };
	struct data_file other[2] = { { f[2].path, "vi" }, { f[3].path, "vl" } };
	struct plan_dataset dims;
	assert_ok(data_validate(&s, training, 2, training, 2, NULL, &dims, &err));
	assert_true(dims.training_samples == 11 && dims.validation_samples == 11);
	assert_true(dims.in_height == 10 && dims.in_width == 9 && dims.n_classes == 5);
	s.model.in_width = 0;
	assert_int_equal(data_validate(&s, training, 2, other, 2, NULL, &dims, &err), ERR_INVALID_DATA);
	assert_says("10x8x1", "10x9x1");
	assert_string_equal(err.param, "validation_file");
	assert_ok(data_validate(&s, training, 2, NULL, 0, NULL, &dims, &err));
	assert_int_equal(dims.validation_samples, 0);
	/* A model has room for the classes of both. */
	struct data_file more[2] = { { f[4].path, "mi" }, { f[5].path, "ml" } };
	s.model.n_classes = 0;
	for (int i = 0; i < 2; i++) {
		struct data_file *a = i ? more : training, *b = i ? training : more;
		assert_ok(data_validate(&s, a, 2, b, 2, NULL, &dims, &err));
		assert_int_equal(dims.n_classes, 7);
		assert_true(
			dims.training_samples == (i ? 8 : 11) && dims.validation_samples == (i ? 11 : 8));
	}
	for (int i = 0; i < 6; i++)
		unlink(f[i].path);
}

/* A hole in the scratch file ends where its maximum is. */
static void test_scratch_maximum(void **state)
{
	struct data_source source = { .param = "validation_file", .threads = 1 };
	struct data_scratch s = { 0 };
	assert_ok(data_scratch_open(&s, &source, &err));
	const int64_t beyond[] = { DATA_SCRATCH_MAX_BYTES - 3, DATA_SCRATCH_MAX_BYTES, INT64_MAX - 1 };
	for (size_t i = 0; i < ARRAY_LEN(beyond); i++) {
		assert_int_equal(data_scratch_write(&s, beyond[i], "1234", 4, &err), ERR_INVALID_DATA);
		assert_string_equal(err.param, "validation_file");
		assert_says("more than 274877906944 bytes");
	}
	assert_ok(data_scratch_write(&s, 4, "1234", 4, &err));
	assert_ok(data_scratch_map(&s, 8, &err));
	assert_memory_equal(s.bytes,
		"\0\0\0\0"
		"1234",
		8);
	data_scratch_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_windows),
		cmocka_unit_test(test_scratch_maximum),
		cmocka_unit_test(test_text_files_join),
		cmocka_unit_test(test_text_refused),
		cmocka_unit_test(test_entropy),
		cmocka_unit_test(test_idx),
		cmocka_unit_test(test_idx_types),
		cmocka_unit_test(test_idx_refused),
		cmocka_unit_test(test_negative_label),
		cmocka_unit_test(test_regression),
		cmocka_unit_test(test_open_refused),
		cmocka_unit_test(test_validate),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
