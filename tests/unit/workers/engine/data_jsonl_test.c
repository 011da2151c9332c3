/* SPDX-License-Identifier: Apache-2.0
 * jsonl: what the loss counts, how documents are packed and cut, what is refused and where.
 * usage: data_jsonl_test FOLDER_OF_TOKENIZERS */
#include "core/base/buf.h"
#include "core/base/file.h"
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/data/jsonl_line.h"

static struct err err;
static const char *golden_dir;

enum { WINDOW = 12 };

static struct job_spec jsonl_spec(enum spec_task task)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.task = task;
	s.data.format = SPEC_FORMAT_JSONL;
	s.data.sequence_length = WINDOW;
	s.data.packing = true;
	return s;
}

static struct data *open_ok(const struct job_spec *s, const char *text)
{
	struct data *d = NULL;
	assert_ok(fixture_data(s, text, strlen(text), NULL, &d, &err));
	return d;
}

/* A window as text: the inputs ('.' for 0), and the labels ('$' for 0, '-' for none). */
static void assert_window(const struct data *d, int64_t index, const char *input,
	const char *labels, const char *starts, const char *positions)
{
	int32_t x[WINDOW], y[WINDOW], start[WINDOW], position[WINDOW];
	char text[4][WINDOW + 1] = { { 0 } };
	struct data_batch b = {
		.samples = 1, .input = x, .labels = y, .starts = start, .positions = position
	};
	data_read(d, index, 0, 0, &b);
	int valid = 0;
	for (int i = 0; i < WINDOW; i++) {
		text[0][i] = x[i] ? (char)x[i] : '.';
		text[1][i] = y[i] == 0 ? '$' : y[i] < 0 ? '-' : (char)y[i];
		text[2][i] = (char)('a' + start[i]);
		text[3][i] = (char)('a' + position[i]);
		valid += y[i] >= 0;
	}
	assert_string_equal(text[0], input);
	assert_string_equal(text[1], labels);
	assert_string_equal(text[2], starts);
	assert_string_equal(text[3], positions);
	assert_int_equal(data_valid_rows(d, index), valid);
}

static void test_text_packed(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_LANGUAGE_MODEL);
	struct data *d = open_ok(&s,
		"{\"text\": \"abcde\"}\n\n  {\"id\": [1, {}], \"text\": \"xy\"}\r\n"
		"{\"text\":\"0123456789\"}\n{\"text\":\"qr\"}\n \t\r\n");
	const struct data_info *i = data_info(d);
	assert_true(i->documents == 4 && i->samples == 2 && i->truncated == 0 && i->tokens == 19);
	assert_true(i->vocabulary == 256 && i->bytes_per_token == 1);
	assert_int_equal(data_evaluation_samples(d), 2);
	/* Five letters and the end make five places; the second window is full to the last. */
	assert_window(d, 0, "abcdexy.....", "bcde$y$-----", "aaaaaffhijkl", "abcdeabaaaaa");
	assert_window(d, 1, "0123456789qr", "123456789$r$", "aaaaaaaaaakk", "abcdefghijab");
	data_close(d);
	s.data.packing = false;
	d = open_ok(&s, "{\"text\":\"abcde\"}\n{\"text\":\"xy\"}");
	assert_int_equal(data_info(d)->samples, 2);
	assert_window(d, 1, "xy..........", "y$----------", "aacdefghijkl", "abaaaaaaaaaa");
	data_close(d);
}

static void test_pairs(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	const char text[] = "{\"prompt\":\"2+2=\",\"completion\":\"4!\"}\n"
						"{\"completion\":\"no\",\"prompt\":\"\"}\n";
	struct data *d = open_ok(&s, text);
	assert_int_equal(data_info(d)->tokens, 3 + 2);
	assert_window(d, 0, "2+2=4!no....", "---4!$o$----", "aaaaaaggijkl", "abcdefabaaaa");
	data_close(d);
	s.task = SPEC_LANGUAGE_MODEL;
	d = open_ok(&s, text);
	assert_window(d, 0, "2+2=4!no....", "+2=4!$o$----", "aaaaaaggijkl", "abcdefabaaaa");
	data_close(d);
}

/* The template of conversations, token by token. */
static void test_messages(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	s.data.sequence_length = 400;
	struct data *d = open_ok(&s,
		"{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\","
		"\"content\":\"Hi\"},{\"content\":\"Hello!\",\"role\":\"assistant\"},{\"role\":\"user\","
		"\"content\":\"Bye\"},{\"role\":\"assistant\",\"content\":\"Ciao\"}]}");
	const char want[] =
		"<|system|>\nBe kind.\n<|user|>\nHi\n<|assistant|>\nHello!$\n<|user|>\nBye\n"
		"<|assistant|>\nCiao$";
	size_t first = (size_t)(strstr(want, "Hello!$") - want);
	size_t second = (size_t)(strstr(want, "Ciao$") - want);
	int32_t x[400], y[400];
	data_read(d, 0, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	for (size_t i = 0; i + 2 < sizeof(want); i++) {
		bool said = (i + 1 >= first && i + 1 < first + 7) || i + 1 >= second;
		assert_int_equal(x[i] ? x[i] : '$', want[i]);
		assert_int_equal(y[i] ? y[i] : '$', said ? want[i + 1] : -1);
	}
	assert_int_equal(data_info(d)->tokens, 7 + 5);
	assert_int_equal(data_valid_rows(d, 0), 12);
	data_close(d);
	/* Everything counts in language modelling; turns may end with the user's. */
	s.task = SPEC_LANGUAGE_MODEL;
	d = open_ok(&s,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\","
		"\"content\":\"A\"},{\"role\":\"user\",\"content\":\"B\"}]}");
	assert_int_equal(
		data_info(d)->tokens, strlen("<|user|>\n\n<|assistant|>\nA$\n<|user|>\nB\n") - 1);
	data_close(d);
}

static void test_cut(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	/* 13 tokens fit: 12 places. The second line keeps two of its tokens with loss, the third none.
	 */
	struct data *d = open_ok(&s,
		"{\"prompt\":\"abcdefgh\",\"completion\":\"1234\"}\n"
		"{\"prompt\":\"abcdefghijk\",\"completion\":\"1234\"}\n"
		"{\"prompt\":\"abcdefghijklm\",\"completion\":\"1234\"}\n");
	const struct data_info *i = data_info(d);
	assert_true(i->documents == 3 && i->truncated == 2 && i->samples == 2);
	assert_window(d, 0, "abcdefgh1234", "-------1234$", "aaaaaaaaaaaa", "abcdefghijkl");
	assert_window(d, 1, "abcdefghijk1", "----------12", "aaaaaaaaaaaa", "abcdefghijkl");
	data_close(d);
	d = NULL;
	const char none[] = "{\"prompt\":\"abcdefghijklm\",\"completion\":\"1234\"}";
	assert_int_equal(fixture_data(&s, none, strlen(none), NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "no document keeps a token");
}

static void test_blank(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	struct data *d = open_ok(&s, "{\"text\":\"ab\"}");
	int32_t x[2 * WINDOW], y[2 * WINDOW], starts[2 * WINDOW], positions[2 * WINDOW];
	memset(x, 1, sizeof(x));
	data_blank(d, 1,
		&(struct data_batch){
			.samples = 2, .input = x, .labels = y, .starts = starts, .positions = positions });
	for (int i = 0; i < WINDOW; i++)
		assert_true(x[WINDOW + i] == 0 && y[WINDOW + i] == -1 && starts[WINDOW + i] == i &&
			positions[WINDOW + i] == 0);
	assert_true(x[0] == 0x01010101);
	data_close(d);
}

/* Byte-level BPE: begin tokens in front, the end token behind, each segment by itself. */
static void test_tokenizer(void **state)
{
	char path[FILE_PATH_MAX];
	assert_ok(file_join(path, golden_dir, "llama3.json", &err));
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	struct data_options o = { .tokenizer_path = path };
	struct data *d = NULL;
	s.data.tokenizer = SPEC_TOKENIZER_FILE;
	s.model.vocab_size = 759;
	const char text[] = "{\"prompt\":\"A\",\"completion\":\"dam\"}";
	assert_ok(fixture_data(&s, text, strlen(text), &o, &d, &err));
	int32_t x[WINDOW], y[WINDOW];
	data_read(d, 0, 0, 0, &(struct data_batch){ .input = x, .labels = y });
	/* "Adam" as a whole would be 32 67 325; 325 is "am". */
	const int32_t want_x[] = { 756, 32, 67, 325, 0 }, want_y[] = { -1, 67, 325, 757, -1 };
	assert_memory_equal(x, want_x, sizeof(want_x));
	assert_memory_equal(y, want_y, sizeof(want_y));
	assert_true(fabs(data_info(d)->bytes_per_token - 1) < 1e-12); /* d, am, end: 3 bytes by 3 */
	assert_int_equal(data_info(d)->vocabulary, 759);
	data_close(d);
	/* Without a begin token nothing predicts the first: `, ~, end: 2 bytes by 3. */
	const char all[] = "{\"text\":\"~`~\"}";
	assert_ok(file_join(path, golden_dir, "gpt2.json", &err));
	s.task = SPEC_LANGUAGE_MODEL;
	assert_ok(fixture_data(&s, all, strlen(all), &o, &d, &err));
	assert_int_equal(data_info(d)->tokens, 3);
	assert_true(fabs(data_info(d)->bytes_per_token - 2.0 / 3) < 1e-12);
	data_close(d);
}

/* Many blocks on many threads: every document, and the same windows as on one thread. */
static void test_threads(void **state)
{
	enum { LONG = 60 };
	struct buf text;
	uint64_t random = 8;
	int64_t documents = 0, truncated = 0, tokens = 0;
	buf_init(&text, 1 << 26);
	buf_str(&text, "\n\n");
	for (; text.len < 9 << 20; documents++) {
		int letters = (int)((1 + fixture_random(&random)) * 40) + 1;
		buf_str(&text, "{\"text\":\"");
		for (int i = 0; i < letters; i++)
			buf_char(&text, (char)('a' + (int)((1 + fixture_random(&random)) * 13)));
		buf_str(&text, "\"}\n");
		truncated += letters > LONG;
		tokens += letters > LONG ? LONG : letters;
	}
	struct job_spec s = jsonl_spec(SPEC_LANGUAGE_MODEL);
	s.data.sequence_length = LONG;
	struct data *d[2] = { NULL, NULL };
	for (int i = 0; i < 2; i++) {
		struct data_options o = { .threads = 1 + 2 * i };
		assert_ok(fixture_data(&s, text.data, text.len, &o, &d[i], &err));
	}
	const struct data_info *info = data_info(d[0]);
	assert_true(info->documents == documents && info->truncated == truncated);
	assert_int_equal(info->tokens, tokens);
	assert_memory_equal(info, data_info(d[1]), sizeof(struct data_info));
	for (int64_t w = 0; w < info->samples; w++) {
		int32_t x[2][LONG], y[2][LONG], starts[2][LONG];
		for (int i = 0; i < 2; i++)
			data_read(d[i], w, 0, 0,
				&(struct data_batch){ .input = x[i], .labels = y[i], .starts = starts[i] });
		assert_memory_equal(x[0], x[1], sizeof(x[0]));
		assert_memory_equal(y[0], y[1], sizeof(y[0]));
		assert_memory_equal(starts[0], starts[1], sizeof(starts[0]));
	}
	data_close(d[0]);
	data_close(d[1]);
	/* An error far behind is told with its line, whoever finds one first. */
	buf_str(&text, "{\"text\": 5}\n{\"text\": 6}\n");
	int64_t lines = 0;
	for (size_t i = 0; i < text.len; i++)
		lines += text.data[i] == '\n';
	char says[32];
	snprintf(says, sizeof(says), "line %lld", (long long)lines - 1);
	struct data_options o = { .threads = 3 };
	d[0] = NULL;
	assert_int_equal(fixture_data(&s, text.data, text.len, &o, &d[0], &err), ERR_INVALID_DATA);
	assert_says(says, "\"text\" is a number");
	buf_finish(&text);
}

static void test_refused(void **state)
{
	const struct {
		const char *text, *says[3];
	} bad[] = {
		{ "\n \n", { "has no lines" } },
		{ "{\"text\":\"a\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n",
			{ "line 2", "\"prompt\" and \"completion\"", "first line of the data \"text\"" } },
		{ "{\"text\":\"a\"}\nnot json\n", { "line 2", "column 1" } },
		{ "{\"text\":\"a\"}\n{\"text\":\"b\"} x\n", { "line 2", "column 14" } },
		{ "{\"text\":\"a\",\"messages\":[]}", { "only one of them" } },
		{ "{\"prompt\":\"a\"}", { "only one of them" } },
		{ "{\"text\":\"a\",\"prompt\":\"b\"}", { "only one of them" } },
		{ "{\"story\":\"a\"}", { "only one of them" } },
		{ "[\"text\"]", { "line 1", "an object" } },
		{ "{\"text\":\"\"}", { "\"text\" is empty" } },
		{ "{\"text\":null}", { "\"text\" is null" } },
		{ "{\"text\":\"a\",\"text\":\"b\"}", { "a second member" } },
		{ "{\"text\":\"a\\u0000b\"}", { "zero byte" } },
		{ "{\"text\":\"\xff\"}", { "line 1, column 10", "not UTF-8" } },
		{ "{\"prompt\":\"a\",\"completion\":\"\"}", { "\"completion\" is empty" } },
		{ "{\"prompt\":[],\"completion\":\"a\"}", { "\"prompt\" is an array" } },
		{ "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}",
			{ "\"chosen\" is not supported" } },
		{ "{\"messages\":[]}", { "nothing to learn" } },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", { "nothing to learn" } },
		{ "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}", { "out of turn" } },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":"
		  "\"b\"}]}",
			{ "out of turn" } },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":"
		  "\"b\"}]}",
			{ "out of turn" } },
		{ "{\"messages\":[{\"role\":\"bot\",\"content\":\"a\"}]}", { "role \"bot\"" } },
		{ "{\"messages\":[{\"role\":\"user\"}]}", { "without" } },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"weight\":0}]}", { "\"weight\"" } },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
		  "\"content\":\"\"}]}",
			{ "says nothing" } },
	};
	struct job_spec s = jsonl_spec(SPEC_FINE_TUNE);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct data *d = NULL;
		assert_int_equal(
			fixture_data(&s, bad[i].text, strlen(bad[i].text), NULL, &d, &err), ERR_INVALID_DATA);
		for (int k = 0; k < 3 && bad[i].says[k]; k++)
			assert_says("the file", bad[i].says[k]);
		assert_string_equal(err.param, "training_file");
		assert_null(d);
	}
}

/* Two segments for each question with its answer. */
static void test_turns_too_many(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_LANGUAGE_MODEL);
	for (int more = 0; more < 2; more++) {
		struct buf text;
		struct data *d = NULL;
		buf_init(&text, 1 << 20);
		buf_str(&text, "{\"messages\":[");
		for (int i = 0; i < JSONL_SEGMENTS_MAX / 2 + more; i++)
			buf_printf(&text,
				"%s{\"role\":\"user\",\"content\":\"?\"},"
				"{\"role\":\"assistant\",\"content\":\"!\"}",
				i ? "," : "");
		buf_str(&text, "]}");
		int rc = fixture_data(&s, text.data, text.len, NULL, &d, &err);
		assert_int_equal(rc, more ? ERR_INVALID_DATA : 0);
		if (more)
			assert_says("the file", "line 1", "more than 4096 turns");
		data_close(d);
		buf_finish(&text);
	}
}

static void test_line_too_long(void **state)
{
	static const char first[] = "{\"text\":\"a\"}\n{", last[] = "\"text\":\"b\"}\n";
	struct job_spec s = jsonl_spec(SPEC_LANGUAGE_MODEL);
	struct data *d = NULL;
	size_t bytes = JSONL_LINE_MAX_BYTES + sizeof(first) + sizeof(last);
	char *text = malloc(bytes);
	memset(text, ' ', bytes);
	memcpy(text, first, sizeof(first) - 1);
	memcpy(text + bytes - sizeof(last) + 1, last, sizeof(last) - 1);
	assert_int_equal(fixture_data(&s, text, bytes, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("the file", "line 2", "at most 67108864");
	free(text);
}

/* Documents of the second file come behind those of the first, in the same windows. */
static void test_files_follow(void **state)
{
	struct job_spec s = jsonl_spec(SPEC_LANGUAGE_MODEL);
	const char a[] = "{\"text\": \"abc\"}\n", b[] = "{\"text\": \"xyz\"}\n{\"text\": \"q\"}\n";
	struct data *d = NULL;
	assert_ok(fixture_data_pair(&s, a, strlen(a), b, strlen(b), &d, &err));
	assert_int_equal(data_info(d)->documents, 3);
	assert_int_equal(data_info(d)->samples, 1);
	assert_window(d, 0, "abcxyzq.....", "bc$yz$$-----", "aaadddghijkl", "abcabcaaaaaa");
	data_close(d);
}

/* Memory that ends while a conversation is put together: no line of segments without text. */
static void test_no_memory(void **state)
{
	const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"why\"},"
						"{\"role\":\"assistant\",\"content\":\"because\"}]}";
	struct jsonl_line *l = calloc(1, sizeof(*l));
	for (size_t most = 0; most < 60; most++) {
		struct json_scan s;
		json_scan_init(&s, text, strlen(text), 1, "the file", "training_file");
		jsonl_line_init(l);
		l->text.max_bytes = most;
		int rc = jsonl_line_read(l, &s, &err);
		assert_int_equal(rc, most < 34 ? ERR_NO_MEMORY : 0);
		jsonl_line_finish(l);
	}
	free(l);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_packed),
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_blank),
		cmocka_unit_test(test_tokenizer),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_turns_too_many),
		cmocka_unit_test(test_line_too_long),
		cmocka_unit_test(test_files_follow),
		cmocka_unit_test(test_no_memory),
	};
	if (argc < 2)
		return 2;
	golden_dir = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
