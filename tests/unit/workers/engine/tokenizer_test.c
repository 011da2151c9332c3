/* SPDX-License-Identifier: Apache-2.0
 * Tokenizers against the ids of Hugging Face's library (tests/golden/make_tokenizer.js), against
 * themselves cut into parts, and against files that must be refused.
 * usage: tokenizer_test FOLDER_OF_GOLDEN_FILES [GPT2_TOKENIZER_JSON] */
#include "core/base/file.h"
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/data/json_scan.h"
#include "workers/engine/tokenizer/tokenizer.h"

static struct err err;
static const char *golden_dir, *published_path;

enum { IDS_MAX = 1 << 16, NAMES = 7 };
static const char *const names[NAMES] = { "gpt2", "llama3", "qwen2", "gpt4o", "odd", "digits",
	"published" };

struct ids {
	int32_t id[IDS_MAX];
	size_t count;
};

static int collect(void *ctx, const int32_t *ids, size_t count, struct err *e)
{
	struct ids *into = ctx;
	assert_true(into->count + count <= IDS_MAX);
	memcpy(into->id + into->count, ids, count * sizeof(*ids));
	into->count += count;
	return 0;
}

static bool open_golden(const char *name, struct tokenizer **ret)
{
	char path[FILE_PATH_MAX], leaf[64];
	if (strcmp(name, "published") == 0) {
		snprintf(path, sizeof(path), "%s", published_path ? published_path : "");
		if (!file_exists(path))
			return false;
	} else {
		snprintf(leaf, sizeof(leaf), "%s.json", name);
		assert_ok(file_join(path, golden_dir, leaf, &err));
	}
	assert_ok(tokenizer_open(path, name, "data.tokenizer", ret, &err));
	return true;
}

static char *read_golden(const char *leaf, size_t *ret_bytes)
{
	char path[FILE_PATH_MAX], *text = NULL;
	assert_ok(file_join(path, golden_dir, leaf, &err));
	assert_ok(file_read(path, 1 << 24, &text, ret_bytes, &err));
	return text;
}

static void read_ids(struct json_scan *s, struct ids *ret)
{
	bool more;
	ret->count = 0;
	assert_ok(json_scan_enter(s, '[', &err));
	for (;;) {
		int64_t id;
		assert_ok(json_scan_item(s, &more, &err));
		if (!more)
			return;
		assert_ok(json_scan_i64(s, &id, &err));
		ret->id[ret->count++] = (int32_t)id;
	}
}

/* Walks {"text": ..., name: [ids], ...}: the text, and the ids of one name. */
static void read_case(
	const char *line, size_t bytes, const char *name, struct buf *text, struct ids *ids)
{
	struct json_scan s;
	struct buf key;
	bool more;
	buf_init(&key, 100);
	json_scan_init(&s, line, bytes, 1, "cases", NULL);
	assert_ok(json_scan_enter(&s, '{', &err));
	for (;;) {
		assert_ok(json_scan_key(&s, &key, &more, &err));
		if (!more)
			break;
		if (strcmp(key.data, "text") == 0) {
			buf_reset(text);
			assert_ok(json_scan_string(&s, text, &err));
		} else if (strcmp(key.data, name) == 0) {
			read_ids(&s, ids);
		} else {
			assert_ok(json_scan_skip(&s, &err));
		}
	}
	buf_finish(&key);
}

static void check_name(const char *name, const char *cases, size_t bytes)
{
	static struct ids want, got;
	struct tokenizer *t;
	if (!open_golden(name, &t)) {
		print_message(
			"without GPT-2's vocabulary (./run deps fetches it): %s not compared\n", name);
		return;
	}
	struct tokenizer_encoder *e;
	struct buf text, back;
	int count = 0;
	buf_init(&text, 1 << 20);
	buf_init(&back, 1 << 20);
	assert_ok(tokenizer_encoder_create(t, &e, &err));
	/* The normal form, the removed letters and the spaces in front do not come back. */
	bool exact = strcmp(name, "qwen2") && strcmp(name, "odd") && strcmp(name, "digits");
	for (const char *p = cases, *end; p < cases + bytes; p = end + 1, count++) {
		end = strchr(p, '\n');
		read_case(p, (size_t)(end - p), name, &text, &want);
		for (int again = 0; again < 2; again++) {
			got.count = 0;
			assert_ok(tokenizer_encode(e, buf_cstr(&text), text.len, collect, &got, &err));
			if (got.count != want.count ||
				memcmp(got.id, want.id, got.count * sizeof(int32_t)) != 0)
				fail_msg("%s, case %d: %zu ids, expected %zu", name, count, got.count, want.count);
		}
		buf_reset(&back);
		tokenizer_decode(t, got.id, got.count, false, &back);
		if (exact && (back.len != text.len || memcmp(buf_cstr(&back), buf_cstr(&text), text.len)))
			fail_msg("%s, case %d does not come back", name, count);
	}
	assert_true(count > 200);
	tokenizer_encoder_destroy(e);
	tokenizer_close(t);
	buf_finish(&text);
	buf_finish(&back);
}

static void test_golden(void **state)
{
	size_t bytes;
	char *cases = read_golden("cases.jsonl", &bytes);
	for (int i = 0; i < NAMES; i++)
		check_name(names[i], cases, bytes);
	free(cases);
}

/* What goes in front and behind. */
static void test_special(void **state)
{
	static struct ids want, got;
	size_t bytes, before, behind;
	char *line = read_golden("special.json", &bytes);
	struct buf text;
	buf_init(&text, 1000);
	for (int i = 0; i < NAMES; i++) {
		struct tokenizer *t;
		struct tokenizer_encoder *e;
		if (!open_golden(names[i], &t))
			continue;
		read_case(line, bytes, names[i], &text, &want);
		assert_ok(tokenizer_encoder_create(t, &e, &err));
		const int32_t *prefix = tokenizer_prefix(t, &before);
		const int32_t *suffix = tokenizer_suffix(t, &behind);
		got.count = 0;
		(void)collect(&got, prefix, before, NULL);
		assert_ok(tokenizer_encode(e, text.data, text.len, collect, &got, &err));
		(void)collect(&got, suffix, behind, NULL);
		assert_int_equal(got.count, want.count);
		assert_memory_equal(got.id, want.id, got.count * sizeof(int32_t));
		tokenizer_encoder_destroy(e);
		tokenizer_close(t);
	}
	buf_finish(&text);
	free(line);
}

static void test_ids(void **state)
{
	struct tokenizer *t;
	assert_true(open_golden("llama3", &t));
	assert_int_equal(tokenizer_vocabulary(t), 759);
	assert_int_equal(tokenizer_end_id(t), 757);
	assert_int_equal(tokenizer_added_id(t, "<|eot_id|>"), 758);
	assert_int_equal(tokenizer_added_id(t, "<|im_end|>"), -1);
	assert_int_equal(tokenizer_token_bytes(t, 756), strlen("<|begin_of_text|>"));
	struct buf out;
	buf_init(&out, 100);
	const int32_t ids[] = { 756, 32, -1, 100000, 757 };
	tokenizer_decode(t, ids, ARRAY_LEN(ids), true, &out);
	assert_string_equal(out.data, "A");
	buf_finish(&out);
	tokenizer_close(t);
	assert_ok(tokenizer_open_bytes(&t, &err));
	assert_true(tokenizer_vocabulary(t) == 256 && tokenizer_end_id(t) == 0);
	struct tokenizer_encoder *e;
	static struct ids got;
	assert_ok(tokenizer_encoder_create(t, &e, &err));
	got.count = 0;
	assert_ok(tokenizer_encode(e, "h\xc3\xa9", 3, collect, &got, &err));
	assert_true(got.count == 3 && got.id[1] == 0xc3 && got.id[2] == 0xa9);
	tokenizer_encoder_destroy(e);
	tokenizer_close(t);
}

/* The texts of all cases, one behind the other. */
static void join_cases(struct buf *all)
{
	static struct ids ignored;
	size_t bytes;
	char *cases = read_golden("cases.jsonl", &bytes);
	struct buf text;
	buf_init(&text, 1 << 20);
	for (const char *p = cases, *end; p < cases + bytes; p = end + 1) {
		end = strchr(p, '\n');
		read_case(p, (size_t)(end - p), "none", &text, &ignored);
		buf_append(all, text.data, text.len);
	}
	buf_finish(&text);
	free(cases);
}

/* Parts that begin where the one before ended give what one pass gives. */
static void test_parts(void **state)
{
	static struct ids whole, parts;
	const uint64_t seed = 31;
	uint64_t random = seed;
	print_message("seed %llu\n", (unsigned long long)seed);
	struct buf all;
	buf_init(&all, 1 << 22);
	join_cases(&all);
	for (int i = 0; i < 4; i++) {
		struct tokenizer *t;
		struct tokenizer_encoder *e;
		assert_true(open_golden(names[i], &t));
		assert_ok(tokenizer_encoder_create(t, &e, &err));
		/* The cases have text that is not in normal form C. */
		assert_int_equal(tokenizer_divisible(t, all.data, all.len), i != 2);
		assert_true(tokenizer_divisible(t, "caf\xc3\xa9", 5));
		whole.count = 0;
		assert_ok(tokenizer_encode(e, all.data, all.len, collect, &whole, &err));
		for (int round = 0; round < 20 && i != 2; round++) {
			parts.count = 0;
			for (size_t at = 0, end; at < all.len; at = end) {
				size_t to =
					at + 1 + (size_t)((1 + fixture_random(&random)) * (round < 10 ? 30 : 3000));
				assert_ok(tokenizer_encode_part(
					e, all.data, all.len, at, to, collect, &parts, &end, &err));
				assert_true(end >= to || end == all.len);
			}
			assert_int_equal(parts.count, whole.count);
			assert_memory_equal(parts.id, whole.id, whole.count * sizeof(int32_t));
		}
		tokenizer_encoder_destroy(e);
		tokenizer_close(t);
	}
	struct tokenizer *odd;
	assert_true(open_golden("odd", &odd));
	assert_false(tokenizer_divisible(odd, "abc", 3));
	tokenizer_close(odd);
	buf_finish(&all);
}

/* Longer than what is looked at in one go, with an added token at every place of the joint. */
static void test_long_sections(void **state)
{
	static struct ids got;
	enum { BYTES = 70000 };
	struct tokenizer *t;
	struct tokenizer_encoder *e;
	char *text = malloc(BYTES + 32);
	assert_true(open_golden("odd", &t));
	assert_ok(tokenizer_encoder_create(t, &e, &err));
	for (size_t at = 65536 - 12; at < 65536 + 4; at++) {
		memset(text, ' ', BYTES);
		for (size_t i = 0; i < BYTES; i += 2)
			text[i] = '7';
		memcpy(text + at - 2, "  <mask>7", 9);
		got.count = 0;
		assert_ok(tokenizer_encode(e, text, BYTES, collect, &got, &err));
		int masks = 0;
		for (size_t i = 0; i < got.count; i++) {
			masks += got.id[i] == 757;
			if (got.id[i] == 757)
				assert_true(got.id[i - 1] != 220); /* the spaces before it are its own */
		}
		assert_int_equal(masks, 1);
	}
	free(text);
	tokenizer_encoder_destroy(e);
	tokenizer_close(t);
}

static void test_long_words(void **state)
{
	static struct ids got;
	struct tokenizer *t;
	struct tokenizer_encoder *e;
	size_t bytes = TOKENIZER_WORD_MAX_BYTES + 1;
	char *text = malloc(bytes);
	assert_true(open_golden("gpt2", &t));
	assert_ok(tokenizer_encoder_create(t, &e, &err));
	memset(text, 'z', bytes);
	got.count = 0;
	assert_ok(tokenizer_encode(e, text, 50000, collect, &got, &err));
	assert_int_equal(got.count, 50000);
	assert_int_equal(tokenizer_encode(e, text, bytes, collect, &got, &err), ERR_INVALID_DATA);
	assert_says("1048577 bytes", "1048576");
	free(text);
	tokenizer_encoder_destroy(e);
	tokenizer_close(t);
}

static int open_text(const char *text, size_t bytes, struct tokenizer **ret)
{
	struct fixture_file f = fixture_write(text, bytes);
	int rc = tokenizer_open(f.path, "t.json", "data.tokenizer", ret, &err);
	unlink(f.path);
	return rc;
}

/* The golden file with one piece of text changed. */
static void refuse(const char *name, const char *from, const char *into, const char *says)
{
	struct tokenizer *t = NULL;
	struct buf changed;
	char leaf[64];
	size_t bytes;
	snprintf(leaf, sizeof(leaf), "%s.json", name);
	char *text = read_golden(leaf, &bytes), *place = strstr(text, from);
	if (!place)
		fail_msg("%s has no %s", name, from);
	buf_init(&changed, 1 << 22);
	buf_append(&changed, text, (size_t)(place - text));
	buf_str(&changed, into);
	buf_str(&changed, place + strlen(from));
	int rc = open_text(changed.data, changed.len, &t);
	if (rc != ERR_INVALID_DATA)
		fail_msg("%s: %s was taken for %s", name, into, from);
	assert_says("t.json", says);
	assert_string_equal(err.param, "data.tokenizer");
	assert_null(t);
	buf_finish(&changed);
	free(text);
}

static void test_refused_models(void **state)
{
	refuse("gpt2", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type");
	refuse("gpt2", "\"dropout\":null", "\"dropout\":0.1", "model.dropout");
	refuse("gpt2", "\"continuing_subword_prefix\":\"\"", "\"continuing_subword_prefix\":\"##\"",
		"continuing_subword_prefix");
	refuse("gpt2", "\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"</w>\"", "end_of_word");
	refuse("gpt2", "\"vocab\":", "\"vocabulary\":", "no BPE model");
	refuse("gpt2", "\"model\":", "\"modell\":", "no \"model\"");
	refuse("gpt2", "\"A\":32", "\"A\":33", "two tokens have the id 33");
	refuse("gpt2", "\"A\":32", "\"A\":-1", "id -1");
	refuse("gpt2", "\"A\":32", "\"A\":99999999", "id 99999999");
	refuse("gpt2", "\"A\":32", "\"A\":\"x\"", "column");
	refuse("gpt2", "\"A\":32", "\"QQQ\":32", "byte 0x41");
	refuse("gpt2", "\"h e\"", "\"h  e\"", "not two tokens");
	refuse("gpt2", "\"h e\"", "\"he\"", "not two tokens");
	refuse("gpt2", "\"h e\"", "\"h QQQ\"", "not in the vocabulary");
	refuse("llama3", "[\"h\",\"e\"]", "[\"h\",\"e\",\"e\"]", "not two tokens");
	refuse("llama3", "[\"h\",\"e\"]", "[\"q\",\"q\"]", "makes a token that is not");
}

static void test_refused_parts(void **state)
{
	refuse("gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "Lowercase");
	refuse("gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
		"\"pre_tokenizer\":{\"type\":\"Metaspace\"", "Metaspace");
	refuse("qwen2", ",{\"type\":\"ByteLevel\"", ",{\"type\":\"Digits\"", "no ByteLevel");
	refuse("qwen2", "\"Isolated\"", "\"MergedWithNext\"", "neither Isolated nor Removed");
	refuse("gpt2", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
		"WordPiece");
	refuse("gpt2", "\"post_processor\":{\"type\":\"ByteLevel\"",
		"\"post_processor\":{\"type\":\"Mystery\"", "Mystery");
	refuse("llama3", "\"ids\":[756]", "\"ids\":[7560]", "token 7560");
	refuse("llama3", "\"single\":[{\"SpecialToken\":{\"id\":\"<|begin_of_text|>\"",
		"\"single\":[{\"SpecialToken\":{\"id\":\"<|other|>\"", "<|other|>");
	refuse("gpt2", "\"id\":756", "\"id\":757", "its place in the vocabulary gives it 756");
	refuse("odd", "\"content\":\"<r>\"", "\"content\":\"<mask>\"", "comes twice");
	refuse("odd", "\"content\":\"<r>\"", "\"content\":\"xcaf\xc3\xa9\"", "overlap");
	refuse("odd",
		"\"Sodom\",\"single_word\":true,\"lstrip\":false,\"rstrip\":false,"
		"\"normalized\":false",
		"\"Sodom\",\"single_word\":true,\"lstrip\":false,\"rstrip\":false,\"normalized\":true",
		"single_word and normalized");
}

static void test_refused_patterns(void **state)
{
	const struct {
		const char *pattern, *says;
	} bad[] = { { "\\\\w+", "an escape at character 1" }, { "a\\\\b", "an escape at character 2" },
		{ "^a", "an anchor" }, { "a$", "an anchor" }, { "(?<=a)b", "a kind of group" },
		{ "(?i)a", "a kind of group" }, { "[a[b]]", "a class inside a class" },
		{ "[a&&b]", "an intersection" }, { "[^\\\\S]", "negated" }, { "[]a]", "begins with ]" },
		{ "\\\\p{Han}", "a property" }, { "\\\\p{L", "a property" }, { "a{2}+", "behind a count" },
		{ "a{,3}", "a brace" }, { "(?i:ss)", "fold to one" }, { "(a", "not valid" },
		{ "[a", "a class without end" }, { "a*", "matches nothing at all" },
		{ "a\\\\", "at its end" }, { "\\\\u12", "unfinished" } };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char json[128];
		snprintf(json, sizeof(json), "\"Regex\":\"%s\",\"x\":\"", bad[i].pattern);
		refuse("qwen2", "\"Regex\":\"", json, bad[i].says);
	}
}

/* The file with bytes changed or cut: opened or refused, and then it still encodes. */
static void test_noise(void **state)
{
	const uint64_t seed = 97;
	uint64_t random = seed;
	static struct ids got;
	print_message("seed %llu\n", (unsigned long long)seed);
	size_t bytes;
	char *text = read_golden("odd.json", &bytes);
	int opened = 0;
	for (int i = 0; i < 400; i++) {
		char *changed = malloc(bytes);
		size_t count = i % 5 ? bytes : (size_t)((1 + fixture_random(&random)) / 2 * (double)bytes);
		memcpy(changed, text, bytes);
		for (int k = 0; k < 1 + i % 3; k++) {
			/* Half of them in the parts that say most, before and behind the vocabulary. */
			double place = (1 + fixture_random(&random)) / 2;
			size_t at = k % 2 ? (size_t)(place * (double)bytes) : (size_t)(place * 1500);
			changed[at] =
				"{}[]\",:0123456789truefalsnx\\"[(size_t)((1 + fixture_random(&random)) * 14)];
		}
		struct tokenizer *t = NULL;
		struct tokenizer_encoder *e = NULL;
		int rc = open_text(changed, count, &t);
		assert_true(rc == 0 || rc == ERR_INVALID_DATA);
		if (!rc) {
			opened++;
			got.count = 0;
			assert_ok(tokenizer_encoder_create(t, &e, &err));
			assert_ok(tokenizer_encode(e, "And <mask> it was so.", 21, collect, &got, &err));
			tokenizer_encoder_destroy(e);
			tokenizer_close(t);
		}
		free(changed);
	}
	print_message("%d of 400 could still be opened\n", opened);
	assert_true(opened > 0);
	free(text);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_special),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_long_sections),
		cmocka_unit_test(test_long_words),
		cmocka_unit_test(test_refused_models),
		cmocka_unit_test(test_refused_parts),
		cmocka_unit_test(test_refused_patterns),
		cmocka_unit_test(test_noise),
	};
	if (argc < 2)
		return 2;
	golden_dir = argv[1];
	published_path = argc > 2 ? argv[2] : NULL;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
