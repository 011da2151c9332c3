/* SPDX-License-Identifier: Apache-2.0
 * Files of every format with bytes changed, put in and cut off, from a printed seed: each is read
 * to its last sample, or refused with the file's name; nothing else happens. */
#include "tests/unit/workers/engine/tar_fixture.h"

static struct err err;

enum { ROUNDS = 250, FILE_MAX = 1 << 16 };

/* A good set of one or two files. */
struct base {
	const char *name;
	struct job_spec spec;
	int files;
	struct buf file[2];
};

static void put_big32(struct buf *b, uint32_t v)
{
	unsigned char p[4];
	fixture_put32(p, v);
	buf_append(b, p, 4);
}

static void make_idx(struct base *b)
{
	b->spec = fixture_spec(SPEC_CNN);
	b->spec.model.in_height = b->spec.model.in_width = 0;
	put_big32(&b->file[0], 0x00000803);
	put_big32(&b->file[0], 5);
	put_big32(&b->file[0], 4);
	put_big32(&b->file[0], 3);
	for (int i = 0; i < 60; i++)
		buf_char(&b->file[0], (char)(i * 4));
	put_big32(&b->file[1], 0x00000801);
	put_big32(&b->file[1], 5);
	buf_append(&b->file[1], "\0\1\2\3\4", 5);
}

static void put_npy(struct buf *b, const char *type, const char *shape, const void *p, size_t bytes)
{
	buf_append(b, "\x93NUMPY\1\0\x76\0", 10);
	buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
	while (b->len < 127)
		buf_char(b, ' ');
	buf_char(b, '\n');
	buf_append(b, p, bytes);
}

static void make_npy(struct base *b)
{
	const float x[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
	const int32_t y[5] = { 0, 1, 2, 3, 4 };
	b->spec = fixture_spec(SPEC_MLP);
	b->spec.data.format = SPEC_FORMAT_NPY;
	b->spec.model.in_channels = b->spec.model.in_height = b->spec.model.in_width = 0;
	put_npy(&b->file[0], "<f4", "(5, 2)", x, sizeof(x));
	put_npy(&b->file[1], "<i4", "(5,)", y, sizeof(y));
}

static void make_tokens(struct base *b)
{
	int32_t t[40];
	for (int i = 0; i < 40; i++)
		t[i] = i;
	b->spec = fixture_spec(SPEC_GPT2);
	b->spec.data.format = SPEC_FORMAT_TOKENS;
	put_npy(&b->file[0], "<u2", "(80,)", t, sizeof(t));
}

static void make_text(struct base *b)
{
	b->spec = fixture_spec(SPEC_GPT2);
	buf_str(&b->file[0],
		"na\xc3\xafve caf\xc3\xa9 \xe2\x82\xac 5 \xf0\x9f\x98\x80, and so on and on.\n");
}

static void make_jsonl(struct base *b)
{
	b->spec = fixture_spec(SPEC_GPT2);
	b->spec.task = SPEC_FINE_TUNE;
	b->spec.data.format = SPEC_FORMAT_JSONL;
	b->spec.data.sequence_length = 60;
	b->spec.data.packing = true;
	for (int i = 0; i < 3; i++)
		buf_printf(&b->file[0],
			"{\"messages\": [{\"role\": \"user\", \"content\": \"%d\\u00e9\\ud83d\\ude00\"}, "
			"{\"role\": \"assistant\", \"content\": \"yes\"}], \"id\": %d}\n",
			i, i);
}

static void make_csv(struct base *b)
{
	b->spec = fixture_spec(SPEC_DLRM);
	b->spec.task = SPEC_CLICK_THROUGH;
	b->spec.data.format = SPEC_FORMAT_CSV;
	b->spec.model.dense_features = 2;
	b->spec.model.table_count = b->spec.data.categorical_count = 1;
	b->spec.model.table_rows[0] = 10;
	b->spec.model.lookups = 2;
	snprintf(b->spec.data.categorical[0], SPEC_COLUMN_MAX, "c");
	buf_str(&b->file[0], "a,b,c,label\n1,-2.5e3,\"x\"\"y|7\",1\n,0.5,,0\r\n3,4,\"5\n\",1\n");
}

static void make_tar(struct base *b)
{
	struct fixture_tar t;
	unsigned char pixels[3 * 36];
	for (size_t i = 0; i < sizeof(pixels); i++)
		pixels[i] = (unsigned char)(i * 2);
	b->spec = fixture_spec(SPEC_CNN);
	b->spec.data.format = SPEC_FORMAT_IMAGE_TAR;
	b->spec.model.in_channels = 3;
	b->spec.model.in_height = b->spec.model.in_width = 5;
	fixture_tar_begin(&t, false);
	for (int i = 0; i < 4; i++) {
		struct buf image;
		char name[32];
		snprintf(name, sizeof(name), "%d/a.%s", i, i % 2 ? "png" : "jpg");
		if (i % 2)
			fixture_png(&image, 6, 6, 8, PNG_COLOR_TYPE_RGB, pixels);
		else
			fixture_jpeg(&image, 6, 6, 3, pixels);
		fixture_tar_put(&t, name, image.data, image.len, AE_IFREG);
		buf_finish(&image);
	}
	fixture_tar_end(&t);
	buf_append(&b->file[0], t.bytes.data, t.bytes.len);
	buf_finish(&t.bytes);
}

/* Reads everything, into buffers of exactly the size. */
static void read_all(const struct base *b, const struct data *d)
{
	const struct data_info *i = data_info(d);
	bool language = spec_is_language(&b->spec);
	int64_t numbers = language ? b->spec.data.sequence_length : i->height * i->width * i->channels;
	struct data_batch batch = { .samples = 1 };
	batch.input = malloc((size_t)numbers * 4);
	batch.labels = malloc((size_t)(language ? numbers : 1) * 4);
	batch.positions = malloc((size_t)numbers * 4);
	batch.starts = malloc((size_t)numbers * 4);
	batch.bags = malloc((size_t)(b->spec.model.lookups * b->spec.model.table_count) * 4 + 1);
	for (int64_t s = 0; s < data_evaluation_samples(d); s++) {
		data_read(d, s, 0, (uint64_t)s, &batch);
		assert_true(data_valid_rows(d, s) >= 1);
		if (b->spec.task == SPEC_CLICK_THROUGH)
			for (int64_t k = 0; k < b->spec.model.lookups; k++)
				assert_in_range(batch.bags[k] + 1, 0, 10);
		else if (!language)
			assert_in_range(((int32_t *)batch.labels)[0], 0, i->classes - 1);
		for (int64_t k = 0; k < numbers && language; k++)
			assert_in_range(((int32_t *)batch.labels)[k] + 1, 0, i->vocabulary);
	}
	data_blank(d, 0, &batch);
	free(batch.input);
	free(batch.labels);
	free(batch.positions);
	free(batch.starts);
	free(batch.bags);
}

static size_t below(uint64_t *random, size_t n)
{
	return (size_t)((1 + fixture_random(random)) / 2 * (double)n);
}

/* A copy with one to four accidents. */
static size_t spoil(const struct buf *from, unsigned char *into, uint64_t *random)
{
	size_t n = from->len;
	memcpy(into, from->data, n);
	for (size_t k = below(random, 4) + 1; k > 0 && n > 0; k--) {
		size_t at = below(random, below(random, 2) ? n : n < 64 ? n : 64);
		switch (below(random, 5)) {
		case 0: into[at] = (unsigned char)below(random, 256); break;
		case 1: into[at] ^= (unsigned char)(1 << below(random, 8)); break;
		case 2: into[at] = "\"\\{}[],:0-e\n|\0\xff"[below(random, 15)]; break;
		case 3: n = below(random, 3) ? n : at; break;
		default:
			memmove(into + at + 1, into + at, n - at);
			n++;
			break;
		}
	}
	return n;
}

static void try(const struct base *b, uint64_t *random, int *opened)
{
	static unsigned char bytes[2][FILE_MAX];
	struct fixture_file f[2];
	struct data_file files[2];
	for (int i = 0; i < b->files; i++) {
		size_t n = spoil(&b->file[i], bytes[i], random);
		f[i] = fixture_write(bytes[i], n);
		files[i] = (struct data_file){ f[i].path, i ? "second" : "first" };
	}
	struct data *d = NULL;
	struct data_options o = { .threads = 2 };
	err = (struct err){ 0 };
	int rc = data_open(&b->spec, files, b->files, "training_file", &o, &d, &err);
	for (int i = 0; i < b->files; i++)
		unlink(f[i].path);
	if (rc == 0) {
		(*opened)++;
		read_all(b, d);
		data_close(d);
		return;
	}
	if (rc != ERR_INVALID_DATA)
		fail_msg("%s: %d %s", b->name, rc, err.message);
	assert_string_equal(err.param, "training_file");
	assert_true(strlen(err.message) > 10);
}

static void test_noise(void **state)
{
	static const struct {
		const char *name;
		void (*make)(struct base *b);
	} bases[] = { { "idx", make_idx }, { "npy", make_npy }, { "tokens", make_tokens },
		{ "text", make_text }, { "jsonl", make_jsonl }, { "csv", make_csv }, { "tar", make_tar } };
	const uint64_t seed = 20260101;
	uint64_t random = seed;
	print_message("seed %llu\n", (unsigned long long)seed);
	for (size_t k = 0; k < ARRAY_LEN(bases); k++) {
		struct base b = { .name = bases[k].name };
		buf_init(&b.file[0], FILE_MAX / 2);
		buf_init(&b.file[1], FILE_MAX / 2);
		bases[k].make(&b);
		b.files = b.file[1].len > 0 ? 2 : 1;
		/* As it is it opens. */
		struct data *d = NULL;
		if (b.files == 1)
			assert_ok(fixture_data(&b.spec, b.file[0].data, b.file[0].len, NULL, &d, &err));
		else
			assert_ok(fixture_data_pair(
				&b.spec, b.file[0].data, b.file[0].len, b.file[1].data, b.file[1].len, &d, &err));
		read_all(&b, d);
		data_close(d);
		int opened = 0;
		for (int i = 0; i < ROUNDS; i++)
			try(&b, &random, &opened);
		print_message("%s: %d of %d opened\n", b.name, opened, ROUNDS);
		assert_true(opened > 0);
		buf_finish(&b.file[0]);
		buf_finish(&b.file[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_noise),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
