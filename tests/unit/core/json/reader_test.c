/* SPDX-License-Identifier: Apache-2.0
 * Tests core/json/reader.c: parsing, its limits, unchecked access, dumping. */
#include "core/base/buf.h"
#include "core/json/reader.h"
#include "tests/support/check.h"

static int parse(const char *text, size_t bytes, struct json_doc **doc, struct err *err)
{
	return json_doc_parse(text, bytes, JSON_BYTES_MAX, doc, err);
}

static void good_texts_are_read(void **state)
{
	static const char text[] =
		" {\"s\":\"a\\u00e9\\n\\\"\",\"i\":9223372036854775807,\"m\":-9223372036854775808,"
		"\"f\":1.5e3,\"t\":true,\"n\":null,\"a\":[1,[],{}],\"o\":{\"x\":false}} \n";
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err err = { 0 };
	assert_int_equal(parse(text, strlen(text), &doc, &err), 0);
	const struct json_val *root = json_doc_root(doc);
	assert_int_equal(json_kind(root), JSON_OBJECT);
	assert_string_equal(json_str_or(json_get(root, "s"), ""), "a\xC3\xA9\n\"");
	assert_true(json_i64_or(json_get(root, "i"), 0) == INT64_MAX);
	assert_true(json_i64_or(json_get(root, "m"), 0) == INT64_MIN);
	assert_true(json_f64_or(json_get(root, "f"), 0) == 1500);
	assert_true(json_f64_or(json_get(root, "i"), 0) == (double)INT64_MAX);
	assert_true(json_bool_or(json_get(root, "t"), false));
	assert_null(json_get(root, "n"));
	assert_null(json_get(root, "missing"));
	const struct json_val *a = json_get(root, "a");
	assert_int_equal(json_array_len(a), 3);
	assert_int_equal(json_kind(json_array_at(a, 2)), JSON_OBJECT);
	assert_null(json_array_at(a, 3));
	assert_false(json_bool_or(json_get(json_get(root, "o"), "x"), true));

	/* The wrong kind reads as the default, whatever is asked. */
	assert_int_equal(json_i64_or(json_get(root, "f"), 7), 7);
	assert_string_equal(json_str_or(json_get(root, "i"), "def"), "def");
	assert_int_equal(json_array_len(root), 0);
	assert_int_equal(json_kind(NULL), JSON_NULL);
	assert_null(json_get(a, "x"));
	assert_null(json_get(NULL, "x"));
}

static void any_root_is_a_value(void **state)
{
	static const struct {
		const char *text;
		enum json_kind kind;
	} cases[] = { { "null", JSON_NULL }, { "true", JSON_BOOL }, { "1", JSON_INT },
		{ "-0.5", JSON_REAL }, { "\"x\"", JSON_STR }, { "[]", JSON_ARRAY } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		assert_int_equal(parse(cases[i].text, strlen(cases[i].text), &doc, NULL), 0);
		assert_int_equal(json_kind(json_doc_root(doc)), cases[i].kind);
	}
}

static void bad_texts_are_refused(void **state)
{
	static const struct {
		const char *text;
		size_t bytes; /* 0: up to the NUL */
		const char *words;
	} cases[] = {
		{ "", 0, "line 1" },
		{ " ", 0, "line 1" },
		{ "{", 0, "line 1" },
		{ "{\"a\":1,}", 0, "column" },
		{ "[1,2", 0, "line 1" },
		{ "{\"a\":1}x", 0, "column" },
		{ "{\"a\":1}{\"a\":1}", 0, "column" },
		{ "{\"a\":1,\n\"b\":2,\n \"a\":3}", 0, "line 3" },
		{ "{\"a\":{\"b\":1,\"b\":1}}", 0, "duplicate" },
		{ "[9223372036854775808]", 0, "too large" },
		{ "[-9223372036854775809]", 0, "too large" },
		{ "[1e999]", 0, "too large" },
		{ "[01]", 0, "column" },
		{ "[+1]", 0, "column" },
		{ "[NaN]", 0, "column" },
		{ "[Infinity]", 0, "column" },
		{ "['a']", 0, "column" },
		{ "[\"\t\"]", 0, "column" },
		{ "[\"\\x\"]", 0, "column" },
		{ "[\"\\ud800\"]", 0, "column" },
		{ "[\"\\u0000\"]", 0, "not allowed" },
		{ "{\"\\u0000\":1}", 0, "not allowed" },
		{ "[\"a\0b\"]", 7, "NUL byte at line 1, column 4 (byte 3)" },
		{ "[1]\0", 4, "NUL byte" },
		{ "[\n\"\xC3(\"]", 0, "not UTF-8 at line 2, column 2 (byte 3)" },
		{ "[\"\xED\xA0\x80\"]", 0, "not UTF-8" },
		{ "[\"\xC0\x80\"]", 0, "not UTF-8" },
		{ "[\"\\\xFF\"]", 0, "not UTF-8" },
		{ "\xEF\xBB\xBF[]", 0, "unexpected byte" },
		{ "[tru\xC3\xA9]", 0, "unexpected byte" },
		{ "[1] // c", 0, "column" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct json_doc *doc = NULL;
		struct err err = { 0 };
		size_t bytes = cases[i].bytes ? cases[i].bytes : strlen(cases[i].text);
		int r = parse(cases[i].text, bytes, &doc, &err);
		if (r != ERR_INVALID_JSON || doc || !strstr(err.message, cases[i].words))
			fail_msg("case %zu (%s): %d %s", i, cases[i].text, r, err.message);
	}
}

static void nested(char *text, int depth)
{
	memset(text, '[', (size_t)depth);
	memset(text + depth, ']', (size_t)depth);
	text[2 * depth] = '\0';
}

static void the_limits_are_exact(void **state)
{
	struct json_doc *doc = NULL;
	struct err err = { 0 };
	static char text[JSON_VALUES_MAX * 2 + 16];
	nested(text, JSON_DEPTH_MAX);
	assert_int_equal(parse(text, strlen(text), &doc, &err), 0);
	json_doc_freep(&doc);
	nested(text, JSON_DEPTH_MAX + 1);
	assert_int_equal(parse(text, strlen(text), &doc, &err), ERR_INVALID_JSON);
	assert_non_null(strstr(err.message, "too deep"));
	/* Brackets inside strings do not count. */
	(void)snprintf(text, sizeof(text), "[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[\"]");
	assert_int_equal(parse(text, strlen(text), &doc, &err), 0);
	json_doc_freep(&doc);

	assert_int_equal(json_doc_parse("[1]", 3, 3, &doc, &err), 0);
	json_doc_freep(&doc);
	assert_int_equal(json_doc_parse("[1] ", 4, 3, &doc, &err), ERR_TOO_LARGE);

	size_t len = 0;
	text[len++] = '[';
	for (int i = 0; i < JSON_VALUES_MAX - 1; i++) {
		text[len++] = '1';
		text[len++] = ',';
	}
	text[len - 1] = ']';
	assert_int_equal(json_doc_parse(text, len, sizeof(text), &doc, &err), 0);
	json_doc_freep(&doc);
	text[len - 1] = ',';
	text[len++] = '1';
	text[len++] = ',';
	text[len++] = '1';
	text[len++] = ']';
	assert_int_equal(json_doc_parse(text, len, sizeof(text), &doc, &err), ERR_TOO_LARGE);
	assert_null(doc);
}

static void objects_iterate_in_order_and_dump(void **state)
{
	static const char text[] =
		"{\"z\":[1,-2.5,\"\xC3\xA9\\u0001\"],\"a\":{},\"m\":null,\"b\":true}";
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(parse(text, strlen(text), &doc, NULL), 0);
	void *iter = NULL;
	const char *key;
	const struct json_val *value;
	char keys[16] = "";
	while (json_object_next(json_doc_root(doc), &iter, &key, &value))
		(void)strncat(keys, key, sizeof(keys) - strlen(keys) - 1);
	assert_string_equal(keys, "zamb");
	iter = NULL;
	assert_false(json_object_next(NULL, &iter, &key, &value));
	cleanup(freep) char *dumped = json_dump(json_doc_root(doc));
	assert_string_equal(dumped, text);
}

/* Random bytes, and good texts with random damage, never do more than be refused. */
static void damage_is_survived(void **state)
{
	static const char good[] =
		"{\"task\":\"language_model\",\"model\":{\"config\":{\"n\":[1,2.5e-3,-7,true,null]}},"
		"\"u\":\"\\u00e9\\ud83d\\ude00 \xF0\x9F\x98\x80\"}";
	struct check_random random = check_random_start();
	int accepted = 0;
	for (int i = 0; i < 30000; i++) {
		char text[sizeof(good)];
		memcpy(text, good, sizeof(good));
		size_t bytes = sizeof(good) - 1;
		int flips = (int)check_random_range(&random, 0, 3);
		for (int k = 0; k < flips; k++)
			text[check_random_range(&random, 0, (int64_t)bytes - 1)] =
				(char)check_random_bits(&random);
		if (i % 3 == 0)
			bytes = (size_t)check_random_range(&random, 0, (int64_t)bytes);
		/* An exact copy, so that a read behind the end is one behind malloc's memory. */
		char *exact = malloc(bytes ? bytes : 1);
		assert_non_null(exact);
		memcpy(exact, text, bytes);
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		struct err err = { 0 };
		int r = parse(exact, bytes, &doc, &err);
		free(exact);
		assert_true(r == 0 || r == ERR_INVALID_JSON);
		if (r == 0) {
			/* What is accepted dumps to something that reads back as the same dump. */
			accepted++;
			cleanup(freep) char *once = json_dump(json_doc_root(doc));
			cleanup(json_doc_freep) struct json_doc *again = NULL;
			assert_int_equal(parse(once, strlen(once), &again, &err), 0);
			cleanup(freep) char *twice = json_dump(json_doc_root(again));
			assert_string_equal(once, twice);
		}
	}
	assert_true(accepted > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_texts_are_read),
		cmocka_unit_test(any_root_is_a_value),
		cmocka_unit_test(bad_texts_are_refused),
		cmocka_unit_test(the_limits_are_exact),
		cmocka_unit_test(objects_iterate_in_order_and_dump),
		cmocka_unit_test(damage_is_survived),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
