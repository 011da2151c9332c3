/* SPDX-License-Identifier: Apache-2.0
 * Text by a tokenizer, and token files: the stream is that of one pass, however many threads.
 * usage: data_text_test FOLDER_OF_TOKENIZERS */
#include "core/base/file.h"
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/tokenizer/tokenizer.h"

static struct err err;
static const char *golden_dir;

enum { WINDOW = 64 };

static struct job_spec text_spec(void)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.data.tokenizer = SPEC_TOKENIZER_FILE;
	s.data.sequence_length = WINDOW;
	s.model.vocab_size = 800;
	return s;
}

struct ids {
	int32_t *id;
	size_t count, cap;
};

static int collect(void *ctx, const int32_t *ids, size_t count, struct err *e)
{
	struct ids *into = ctx;
	if (into->count + count > into->cap) {
		into->cap = (into->count + count) * 2;
		into->id = realloc(into->id, into->cap * sizeof(int32_t));
	}
	memcpy(into->id + into->count, ids, count * sizeof(int32_t));
	into->count += count;
	return 0;
}

static void path_of(const char *name, char path[static FILE_PATH_MAX])
{
	char leaf[64];
	snprintf(leaf, sizeof(leaf), "%s.json", name);
	assert_ok(file_join(path, golden_dir, leaf, &err));
}

static void encode(const char *path, const char *text, size_t bytes, struct ids *ret)
{
	struct tokenizer *t;
	struct tokenizer_encoder *e;
	assert_ok(tokenizer_open(path, "t", NULL, &t, &err));
	assert_ok(tokenizer_encoder_create(t, &e, &err));
	assert_ok(tokenizer_encode(e, text, bytes, collect, ret, &err));
	tokenizer_encoder_destroy(e);
	tokenizer_close(t);
}

/* Every window, the partial one too, has what the stream says. */
static void check_stream(const struct data *d, const struct ids *want)
{
	const struct data_info *i = data_info(d);
	assert_int_equal(i->tokens, want->count - 1);
	assert_int_equal(i->samples, i->tokens / WINDOW);
	int64_t valid = 0;
	for (int64_t w = 0; w < data_evaluation_samples(d); w++) {
		int32_t x[WINDOW], y[WINDOW], positions[WINDOW], starts[WINDOW];
		struct data_batch b = {
			.samples = 1, .input = x, .labels = y, .positions = positions, .starts = starts
		};
		data_read(d, w, 0, 0, &b);
		for (int64_t k = 0; k < WINDOW; k++) {
			size_t at = (size_t)(w * WINDOW + k);
			assert_int_equal(x[k], at < want->count ? want->id[at] : 0);
			assert_int_equal(y[k], at + 1 < want->count ? want->id[at + 1] : -1);
			assert_true(positions[k] == k && starts[k] == 0);
		}
		valid += data_valid_rows(d, w);
	}
	assert_int_equal(valid, i->tokens);
}

/* Words, long runs of digits that fall on the places where the text is cut (there the parts do not
 * fit and are done again), tokens, and white space. */
static char *odd_text(size_t bytes)
{
	char *text = malloc(bytes);
	uint64_t random = 3;
	for (size_t i = 0; i < bytes; i++) {
		double r = fixture_random(&random);
		text[i] = r < -0.7 ? ' ' : r < -0.68 ? '\n' : (char)('a' + (int)((r + 1) * 13) % 26);
	}
	for (size_t at = 4 << 20; at + 200000 < bytes; at += 4 << 20)
		for (size_t i = at - 100001; i < at + 100000; i++)
			text[i] = (char)('0' + i % 10);
	for (size_t at = 12345; at + 100 < bytes; at += 100003)
		memcpy(text + at, "<|end_of_text|>", 15);
	return text;
}

static void test_parts_are_one_pass(void **state)
{
	enum { BYTES = 13 << 20 };
	const char *const tokenizers[] = { "llama3", "gpt2", "odd" };
	char *text = odd_text(BYTES);
	struct job_spec s = text_spec();
	for (size_t i = 0; i < ARRAY_LEN(tokenizers); i++) {
		char path[FILE_PATH_MAX];
		struct ids want = { 0 };
		path_of(tokenizers[i], path);
		encode(path, text, BYTES, &want);
		for (int threads = 1; threads <= 3; threads += 2) {
			struct data_options o = { .tokenizer_path = path, .threads = threads };
			struct data *d = NULL;
			assert_ok(fixture_data(&s, text, BYTES, &o, &d, &err));
			check_stream(d, &want);
			data_close(d);
		}
		free(want.id);
	}
	free(text);
}

/* A tokenizer of the folder; what stands in its file from `begin` up to `end` is replaced. */
static struct fixture_file changed_tokenizer(
	const char *name, const char *begin, const char *end, const char *by)
{
	char path[FILE_PATH_MAX], *text = NULL;
	size_t bytes;
	struct buf b;
	path_of(name, path);
	assert_ok(file_read(path, 1 << 24, &text, &bytes, &err));
	const char *from = strstr(text, begin), *to = from ? strstr(from, end) : NULL;
	assert_non_null(to);
	buf_init(&b, 1 << 24);
	buf_append(&b, text, (size_t)(from - text));
	buf_str(&b, by);
	buf_str(&b, to);
	struct fixture_file f = fixture_write(b.data, b.len);
	buf_finish(&b);
	free(text);
	return f;
}

/* qwen2's, but its words are what stands in quotes, and single characters outside. */
static struct fixture_file quoting_tokenizer(void)
{
	return changed_tokenizer(
		"qwen2", "\"Regex\"", "\"behavior\"", "\"Regex\": \"\\\"[^\\\"]*\\\"?|[^\\\"]\"}, ");
}

/* From inside of the quotes on, where the second part seems to begin, what follows them is one word
 * that is too long. */
static void test_part_begins_inside(void **state)
{
	enum { BYTES = 6 << 20, CUT = 4 << 20, QUOTED = 60000 };
	struct fixture_file f = quoting_tokenizer();
	char *text = malloc(BYTES);
	for (size_t i = 0; i < BYTES; i++)
		text[i] = i % 2 ? ' ' : 'x';
	text[CUT - QUOTED] = text[CUT + QUOTED] = '"';
	struct job_spec s = text_spec();
	struct data_options o = { .tokenizer_path = f.path, .threads = 2 };
	struct ids want = { 0 };
	struct data *d = NULL;
	encode(f.path, text, BYTES, &want);
	assert_ok(fixture_data(&s, text, BYTES, &o, &d, &err));
	check_stream(d, &want);
	data_close(d);
	d = NULL;
	text[BYTES - 3] = '"';
	text[CUT + QUOTED] = 'x';
	assert_int_equal(fixture_data(&s, text, BYTES, &o, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "a word of");
	unlink(f.path);
	free(want.id);
	free(text);
}

/* Tokens that 16 bits do not hold. */
static void test_large_ids(void **state)
{
	struct fixture_file f = changed_tokenizer("gpt2", "\"0\":15", ",", "\"0\":70000");
	const char text[] = "In 40 days, 400";
	struct job_spec s = text_spec();
	struct data_options o = { .tokenizer_path = f.path };
	struct ids want = { 0 };
	struct data *d = NULL;
	encode(f.path, text, strlen(text), &want);
	assert_int_equal(want.id[want.count - 1], 70000);
	s.model.vocab_size = 70001;
	s.data.sequence_length = (int64_t)want.count - 1;
	assert_ok(fixture_data(&s, text, strlen(text), &o, &d, &err));
	assert_int_equal(data_info(d)->vocabulary, 70001);
	int32_t x[WINDOW], y[WINDOW];
	data_read(d, 0, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_memory_equal(x, want.id, (want.count - 1) * sizeof(*x));
	assert_memory_equal(y, want.id + 1, (want.count - 1) * sizeof(*y));
	data_close(d);
	unlink(f.path);
	free(want.id);
}

static void test_files_follow(void **state)
{
	char path[FILE_PATH_MAX];
	struct ids want = { 0 };
	path_of("gpt2", path);
	const char *const texts[2] = { "In the beginning God created the heaven", " and the earth." };
	struct fixture_file f[2];
	struct data_file files[2];
	for (int i = 0; i < 2; i++) {
		encode(path, texts[i], strlen(texts[i]), &want);
		f[i] = fixture_write(texts[i], strlen(texts[i]));
		files[i] = (struct data_file){ f[i].path, "part" };
	}
	struct job_spec s = text_spec();
	struct data_options o = { .tokenizer_path = path, .scratch_dir = "/tmp" };
	struct data *d = NULL;
	s.data.sequence_length = 8;
	assert_ok(data_open(&s, files, 2, "training_file", &o, &d, &err));
	assert_int_equal(data_info(d)->tokens, want.count - 1);
	assert_int_equal(data_info(d)->vocabulary, 757);
	assert_true(fabs(data_info(d)->bytes_per_token - 54.0 / (double)(want.count - 1)) < 1e-12);
	int32_t x[8], y[8];
	data_read(d, 1, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_memory_equal(x, want.id + 8, sizeof(x));
	assert_memory_equal(y, want.id + 9, sizeof(y));
	data_close(d);
	d = NULL;
	s.model.vocab_size = 700;
	assert_int_equal(data_open(&s, files, 2, "training_file", &o, &d, &err), ERR_INVALID_DATA);
	assert_says("757 tokens", "vocab_size is 700");
	s.model.vocab_size = 0;
	s.data.sequence_length = 100;
	assert_int_equal(data_open(&s, files, 2, "training_file", &o, &d, &err), ERR_INVALID_DATA);
	assert_says("tokens", "needs 101");
	o.tokenizer_path = NULL;
	assert_int_equal(data_open(&s, files, 2, "training_file", &o, &d, &err), ERR_INVALID_DATA);
	assert_string_equal(err.param, "data.tokenizer");
	o.tokenizer_path = "/nonexistent";
	assert_int_equal(data_open(&s, files, 2, "training_file", &o, &d, &err), ERR_IO);
	o.tokenizer_path = path;
	o.scratch_dir = "/nonexistent";
	assert_int_equal(data_open(&s, files, 2, "training_file", &o, &d, &err), ERR_IO);
	assert_says("/nonexistent");
	for (int i = 0; i < 2; i++)
		unlink(f[i].path);
	free(want.id);
}

static void test_word_too_long(void **state)
{
	size_t bytes = TOKENIZER_WORD_MAX_BYTES * 3;
	char *text = malloc(bytes), path[FILE_PATH_MAX];
	memset(text, 'z', bytes);
	path_of("gpt2", path);
	struct job_spec s = text_spec();
	struct data_options o = { .tokenizer_path = path };
	struct data *d = NULL;
	assert_int_equal(fixture_data(&s, text, bytes, &o, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "offset 0", "a word of");
	assert_string_equal(err.param, "training_file");
	free(text);
}

static void test_marks_too_many(void **state)
{
	size_t bytes = 3 << 20;
	char *text = malloc(bytes), path[FILE_PATH_MAX];
	for (size_t i = 0; i < bytes; i++)
		text[i] = i < 16 ? 'a' : i % 2 ? '\x81' : '\xcc';
	path_of("qwen2", path);
	struct job_spec s = text_spec();
	struct data_options o = { .tokenizer_path = path };
	struct data *d = NULL;
	assert_int_equal(fixture_data(&s, text, bytes, &o, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "1048576 bytes of combining marks");
	assert_string_equal(err.param, "training_file");
	free(text);
}

/* ---- token files ---- */

static struct job_spec tokens_spec(void)
{
	struct job_spec s = text_spec();
	s.data.format = SPEC_FORMAT_TOKENS;
	s.data.sequence_length = 4;
	return s;
}

static size_t npy(unsigned char *into, const char *type, int count, int bytes)
{
	char dict[128];
	int n = snprintf(dict, sizeof(dict),
		"{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", type, count);
	memcpy(into, "\x93NUMPY\1\0\x76\0", 10);
	memset(into + 10, ' ', 118);
	memcpy(into + 10, dict, (size_t)n);
	into[127] = '\n';
	memset(into + 128, 0, (size_t)(count * bytes));
	for (int i = 0; i < count; i++)
		into[128 + i * bytes] = (unsigned char)(i + 100);
	return 128 + (size_t)(count * bytes);
}

static size_t bin(unsigned char *into, uint32_t magic, uint32_t version, uint32_t count, int tokens)
{
	const uint32_t header[3] = { magic, version, count };
	memset(into, 0, 1024);
	memcpy(into, header, sizeof(header));
	for (int i = 0; i < tokens; i++) {
		into[1024 + 2 * i] = (unsigned char)(i + 100);
		into[1024 + 2 * i + 1] = 1;
	}
	return 1024 + (size_t)tokens * 2;
}

static void test_tokens(void **state)
{
	struct job_spec s = tokens_spec();
	unsigned char bytes[4096];
	const char *const types[] = { "<u2", "<u4", "<i4" };
	int32_t x[4], y[4];
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct data *d = NULL;
		size_t n = npy(bytes, types[i], 11, types[i][2] - '0');
		assert_ok(fixture_data(&s, bytes, n, NULL, &d, &err));
		assert_true(data_info(d)->samples == 2 && data_info(d)->tokens == 10);
		assert_int_equal(data_info(d)->vocabulary, 111);
		assert_int_equal(data_valid_rows(d, 2), 2);
		data_read(d, 1, 0, 0, &(struct data_batch){ .input = x, .labels = y });
		assert_true(x[0] == 104 && x[3] == 107 && y[0] == 105 && y[3] == 108);
		data_close(d);
	}
	struct data *d = NULL;
	assert_ok(fixture_data(&s, bytes, bin(bytes, 20240520, 1, 6, 6), NULL, &d, &err));
	data_read(d, 0, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_true(x[0] == 356 && y[3] == 360);
	assert_int_equal(data_info(d)->vocabulary, 362);
	data_close(d);
}

/* One stream: a window has the end of the first file and the start of the second. */
static void test_token_files_follow(void **state)
{
	struct job_spec s = tokens_spec();
	unsigned char a[2048], b[2048];
	size_t a_bytes = npy(a, "<u2", 6, 2), b_bytes = bin(b, 20240520, 1, 5, 5);
	struct data *d = NULL;
	assert_ok(fixture_data_pair(&s, a, a_bytes, b, b_bytes, &d, &err));
	assert_true(data_info(d)->samples == 2 && data_info(d)->tokens == 10);
	int32_t x[4], y[4];
	const int32_t input[4] = { 104, 105, 356, 357 }, labels[4] = { 105, 356, 357, 358 };
	data_read(d, 1, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	assert_memory_equal(x, input, sizeof(x));
	assert_memory_equal(y, labels, sizeof(y));
	data_close(d);
}

/* A model has room for the tokens of both. */
static void test_tokens_of_both(void **state)
{
	struct job_spec s = tokens_spec();
	unsigned char bytes[2048];
	struct data *d[2] = { NULL, NULL };
	assert_ok(fixture_data(&s, bytes, npy(bytes, "<u2", 11, 2), NULL, &d[0], &err));
	assert_ok(fixture_data(&s, bytes, bin(bytes, 20240520, 1, 6, 6), NULL, &d[1], &err));
	for (int i = 0; i < 2; i++) {
		struct plan_dataset dims;
		data_dims(d[i], d[1 - i], &dims);
		assert_int_equal(dims.vocabulary, 362);
		assert_true(dims.training_tokens == (i ? 5 : 10) && dims.validation_tokens == (i ? 10 : 5));
	}
	data_close(d[0]);
	data_close(d[1]);
}

#define refuse_tokens(count, ...)                                                           \
	do {                                                                                    \
		struct data *d = NULL;                                                              \
		assert_int_equal(fixture_data(&s, bytes, count, NULL, &d, &err), ERR_INVALID_DATA); \
		assert_says("the file", __VA_ARGS__);                                               \
	} while (0)

static void test_tokens_refused(void **state)
{
	struct job_spec s = tokens_spec();
	unsigned char bytes[4096];
	refuse_tokens(bin(bytes, 20240521, 1, 6, 6), "neither", "offset 0");
	refuse_tokens(bin(bytes, 20240520, 2, 6, 6), "version 2", "offset 4");
	refuse_tokens(bin(bytes, 20240520, 1, 7, 6), "promises 7 tokens", "1036 bytes");
	refuse_tokens(bin(bytes, 20240520, 1, 5, 6), "promises 5 tokens", "1036 bytes");
	refuse_tokens(bin(bytes, 20240520, 1, 0xffffffff, 6), "promises 4294967295");
	refuse_tokens((bin(bytes, 20240520, 1, 6, 6), 100), "truncated");
	refuse_tokens(bin(bytes, 20240520, 1, 3, 3), "3 tokens", "needs 5");
	refuse_tokens(npy(bytes, ">u2", 11, 2), "u2, u4 or i4");
	refuse_tokens(npy(bytes, "<f4", 11, 4), "u2, u4 or i4");
	refuse_tokens(npy(bytes, "<i8", 11, 8), "u2, u4 or i4");
	refuse_tokens(
		(npy(bytes, "<u2", 1, 2), memcpy(bytes + 60, "(1,1)} ", 7), 130), "one dimension");
	refuse_tokens((npy(bytes, "<i4", 11, 4), bytes[128 + 4 * 3 + 3] = 0xff, 128 + 44), "item 3",
		"offset 140", "token -");
	s.model.vocab_size = 105;
	refuse_tokens(npy(bytes, "<u2", 11, 2), "token 105", "item 5", "0 to 104");
	s.model.vocab_size = 0; /* whatever there is, but what an int32 holds */
	refuse_tokens((npy(bytes, "<u4", 11, 4), bytes[128 + 4 * 3 + 3] = 0x80, 128 + 44), "item 3",
		"token -2147483545", "0 to 2147483646");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_are_one_pass),
		cmocka_unit_test(test_part_begins_inside),
		cmocka_unit_test(test_large_ids),
		cmocka_unit_test(test_files_follow),
		cmocka_unit_test(test_word_too_long),
		cmocka_unit_test(test_marks_too_many),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_token_files_follow),
		cmocka_unit_test(test_tokens_of_both),
		cmocka_unit_test(test_tokens_refused),
	};
	if (argc < 2)
		return 2;
	golden_dir = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
