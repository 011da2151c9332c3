/* SPDX-License-Identifier: Apache-2.0
 * The JSON scanner: what is JSON is read, what is not is refused with line and column. */
#include "tests/unit/workers/engine/data_fixture.h"
#include "workers/engine/data/json_scan.h"

static struct err err;

static int scan(const char *text)
{
	struct json_scan s;
	json_scan_init(&s, text, strlen(text), 1, "x.json", "training_file");
	err = (struct err){ 0 };
	int rc = json_scan_skip(&s, &err);
	return rc ? rc : json_scan_end(&s, &err);
}

static void test_good(void **state)
{
	const char *const good[] = { "null", " true ", "[]", "{}", "[1,2,[3,{\"a\":[]}]]", "-0.5e+10",
		"0", "\"\"", "\"\\u00e9\\ud83d\\ude00\\n\\\"\"", "{\"a\":1,\"b\":{\"c\":[null,false]}}\r\n",
		"[1 , 2\n,3]", "\"\xc3\xa9\"" };
	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_ok(scan(good[i]));
}

static void test_bad(void **state)
{
	const struct {
		const char *text, *says;
	} bad[] = { { "", "line 1, column 1: the text ends where a value" }, { "[1,]", "column 4" },
		{ "[1 2]", "column 4: '2' where ',' or ']'" }, { "{\"a\" 1}", "':'" },
		{ "{\"a\":1,}", "the name of a member" }, { "{a:1}", "the name of a member" },
		{ "[\n\n  nul]", "line 3, column 3" }, { "01", "leading zero" }, { "1.", "a digit" },
		{ "-", "a digit" }, { "1e", "a digit" }, { "\"abc", "ends inside a string" },
		{ "\"a\nb\"", "control character 0x0a" }, { "\"\\x\"", "escape" },
		{ "\"\\ud83d\"", "half a surrogate" }, { "\"\\ude00\"", "half a surrogate" },
		{ "\"\\ud83d\\u0041\"", "no second half" }, { "\"\\u12g4\"", "hexadecimal" },
		{ "\"\xff\"", "not UTF-8: byte 0xff" }, { "\"\xed\xa0\x80\"", "not UTF-8" },
		{ "true false", "the end" }, { "[}", "a value" }, { "{]", "column 2" }, { "+1", "a value" },
		{ "NaN", "a value" }, { "'a'", "a value" }, { "//", "a value" } };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(scan(bad[i].text), ERR_INVALID_DATA);
		assert_says("x.json", bad[i].says);
		assert_string_equal(err.param, "training_file");
	}
}

static void test_depth(void **state)
{
	char text[2 * 100 + 1] = { 0 };
	for (int depth = 1; depth < 100; depth++) {
		memset(text, '[', (size_t)depth);
		memset(text + depth, ']', (size_t)depth);
		text[2 * depth] = 0;
		assert_int_equal(scan(text), depth <= JSON_SCAN_DEPTH_MAX ? 0 : ERR_INVALID_DATA);
	}
	assert_says("more than 64 levels");
}

static void test_values(void **state)
{
	const char text[] =
		"{\"n\": -12, \"s\": \"a\\tb\", \"l\": [true, 9223372036854775807], \"z\": null}";
	struct json_scan s;
	struct buf key, value;
	bool more, flag = false;
	int64_t n = 0;
	buf_init(&key, 100);
	buf_init(&value, 100);
	json_scan_init(&s, text, strlen(text), 7, "x.json", NULL);
	assert_ok(json_scan_enter(&s, '{', &err));
	assert_ok(json_scan_key(&s, &key, &more, &err));
	assert_string_equal(key.data, "n");
	assert_ok(json_scan_i64(&s, &n, &err));
	assert_int_equal(n, -12);
	assert_ok(json_scan_key(&s, &key, &more, &err));
	assert_ok(json_scan_string(&s, &value, &err));
	assert_string_equal(value.data, "a\tb");
	assert_ok(json_scan_key(&s, &key, &more, &err));
	assert_ok(json_scan_enter(&s, '[', &err));
	assert_ok(json_scan_item(&s, &more, &err));
	assert_ok(json_scan_bool(&s, &flag, &err));
	assert_true(flag);
	assert_ok(json_scan_item(&s, &more, &err));
	assert_ok(json_scan_i64(&s, &n, &err));
	assert_true(n == INT64_MAX);
	assert_ok(json_scan_item(&s, &more, &err));
	assert_false(more);
	assert_ok(json_scan_key(&s, &key, &more, &err));
	assert_int_equal(json_scan_peek(&s), JSON_SCAN_NULL);
	assert_ok(json_scan_null(&s, &err));
	assert_ok(json_scan_key(&s, &key, &more, &err));
	assert_false(more);
	assert_ok(json_scan_end(&s, &err));
	buf_finish(&key);
	buf_finish(&value);
}

static void test_limits(void **state)
{
	struct json_scan s;
	struct buf small;
	int64_t n;
	buf_init(&small, 4);
	json_scan_init(&s, "\"12345678\"", 10, 3, "x.json", NULL);
	assert_int_equal(json_scan_string(&s, &small, &err), ERR_INVALID_DATA);
	assert_says("line 3", "more than 4 bytes");
	const char *const numbers[] = { "9223372036854775808", "-9223372036854775809", "1.5", "1e3" };
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		json_scan_init(&s, numbers[i], strlen(numbers[i]), 1, "x.json", NULL);
		assert_int_equal(json_scan_i64(&s, &n, &err), ERR_INVALID_DATA);
		assert_says("whole number");
	}
	buf_finish(&small);
}

/* Bytes at random, and good text with bytes changed: read or refused, within the text. */
static void test_noise(void **state)
{
	const uint64_t seed = 4711;
	uint64_t random = seed;
	print_message("seed %llu\n", (unsigned long long)seed);
	const char good[] = "{\"a\": [1, 2.5e3, \"x\\u00e9y\", {\"b\": null, \"c\": [true, false]}]}";
	for (int i = 0; i < 20000; i++) {
		size_t count = sizeof(good) - 1;
		char *text = malloc(count); /* of the exact size, for the sanitizer */
		memcpy(text, good, count);
		for (int k = 0; k < 1 + i % 4; k++)
			text[(size_t)((1 + fixture_random(&random)) / 2 * (double)count)] =
				(char)(int)(fixture_random(&random) * 128);
		struct json_scan s;
		json_scan_init(&s, text, count - (size_t)(i % 7), 1, "x.json", NULL);
		int rc = json_scan_skip(&s, &err);
		assert_true(rc == 0 || rc == ERR_INVALID_DATA);
		assert_true(s.at <= s.end);
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_noise),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
