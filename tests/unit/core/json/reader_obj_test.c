/* SPDX-License-Identifier: Apache-2.0
 * Tests core/json/reader_obj.c: checked reading with paths. */
#include "core/json/reader.h"
#include "tests/support/check.h"

struct fixture {
	struct json_doc *doc;
	struct json_obj o;
	struct err err;
};

static void open_text(struct fixture *f, const char *text)
{
	memset(f, 0, sizeof(*f));
	if (json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &f->doc, &f->err) < 0)
		fail_msg("%s", f->err.message);
	json_obj_open(&f->o, json_doc_root(f->doc), "$.model", &f->err);
}

static void expect_failure(struct fixture *f, int code, const char *param, const char *words)
{
	assert_int_equal(json_obj_close(&f->o), code);
	assert_int_equal(f->err.code, code);
	assert_string_equal(f->err.param, param);
	if (!strstr(f->err.message, words))
		fail_msg("\"%s\" lacks \"%s\"", f->err.message, words);
	json_doc_free(f->doc);
}

static void right_fields_are_read(void **state)
{
	static const char *const words[] = { "red", "green", NULL };
	struct fixture f;
	open_text(&f,
		"{\"s\":\"abc\",\"w\":\"green\",\"i\":-5,\"f\":2,\"b\":true,\"o\":{},\"a\":[1],"
		"\"n\":null,\"x\":0}");
	const char *s = NULL, *absent = "default", *null_field = "default";
	int w = -1;
	int64_t i = 0;
	double d = 0;
	bool b = false;
	const struct json_val *object = NULL, *array = NULL, *any = NULL;
	json_obj_need(&f.o, "s");
	json_obj_str(&f.o, "s", 3, 3, &s);
	json_obj_word(&f.o, "w", words, &w);
	json_obj_i64(&f.o, "i", -5, -5, &i);
	json_obj_f64(&f.o, "f", 2, 2, &d);
	json_obj_bool(&f.o, "b", &b);
	json_obj_object(&f.o, "o", &object);
	json_obj_array(&f.o, "a", 1, &array);
	json_obj_any(&f.o, "x", &any);
	json_obj_str(&f.o, "n", 1, 2, &null_field);
	json_obj_str(&f.o, "absent", 1, 2, &absent);
	assert_false(json_obj_has(&f.o, "n"));
	assert_true(json_obj_has(&f.o, "x"));
	assert_int_equal(json_obj_close(&f.o), 0);
	assert_string_equal(s, "abc");
	assert_int_equal(w, 1);
	assert_int_equal(i, -5);
	assert_true(d == 2 && b && object && any);
	assert_int_equal(json_array_len(array), 1);
	assert_string_equal(absent, "default");
	assert_string_equal(null_field, "default");
	json_doc_free(f.doc);
}

static void wrong_fields_are_named(void **state)
{
	struct fixture f;
	const char *s = "untouched";
	int64_t i = 7;
	double d = 7;
	bool b = true;
	int w = 7;
	static const char *const words[] = { "red", "green", NULL };
	const struct json_val *v = NULL;

	open_text(&f, "{\"a\":1}");
	json_obj_str(&f.o, "a", 0, 9, &s);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "$.model.a must be a string, not a whole");
	open_text(&f, "{\"a\":\"1234\"}");
	json_obj_str(&f.o, "a", 1, 3, &s);
	expect_failure(&f, ERR_INVALID_VALUE, "$.model.a", "1 to 3 bytes; it has 4");
	open_text(&f, "{\"a\":\"blue\"}");
	json_obj_word(&f.o, "a", words, &w);
	expect_failure(&f, ERR_INVALID_VALUE, "$.model.a", "one of red, green, not \"blue\"");
	open_text(&f, "{\"a\":1.0}");
	json_obj_i64(&f.o, "a", 0, 9, &i);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "whole number");
	open_text(&f, "{\"a\":10}");
	json_obj_i64(&f.o, "a", 0, 9, &i);
	expect_failure(&f, ERR_INVALID_VALUE, "$.model.a", "from 0 to 9, not 10");
	open_text(&f, "{\"a\":\"1\"}");
	json_obj_f64(&f.o, "a", 0, 9, &d);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "a number, not a string");
	open_text(&f, "{\"a\":9.5}");
	json_obj_f64(&f.o, "a", 0, 9, &d);
	expect_failure(&f, ERR_INVALID_VALUE, "$.model.a", "from 0 to 9, not 9.5");
	open_text(&f, "{\"a\":1}");
	json_obj_bool(&f.o, "a", &b);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "true or false");
	open_text(&f, "{\"a\":[]}");
	json_obj_object(&f.o, "a", &v);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "an object, not an array");
	open_text(&f, "{\"a\":[1,2,3]}");
	json_obj_array(&f.o, "a", 2, &v);
	expect_failure(&f, ERR_INVALID_VALUE, "$.model.a", "at most 2 items; it has 3");
	open_text(&f, "{\"a\":null}");
	json_obj_need(&f.o, "a");
	expect_failure(&f, ERR_MISSING_FIELD, "$.model.a", "is required");
	assert_string_equal(s, "untouched");
	assert_true(i == 7 && d == 7 && b && w == 7 && !v);
}

static void unknown_fields_are_refused(void **state)
{
	struct fixture f;
	int64_t i = 0;
	open_text(&f, "{\"a\":1,\"b\":2}");
	json_obj_i64(&f.o, "a", 0, 9, &i);
	expect_failure(&f, ERR_UNKNOWN_FIELD, "$.model.b", "no field \"b\"; its fields are: a");
	open_text(&f, "{\"odd key\\\"\":2}");
	expect_failure(&f, ERR_UNKNOWN_FIELD, "$.model[\"odd key\"\"]", "odd key");
	/* Unknown even when it is null. */
	open_text(&f, "{\"b\":null}");
	expect_failure(&f, ERR_UNKNOWN_FIELD, "$.model.b", "");
}

static void the_first_error_sticks(void **state)
{
	struct fixture f;
	int64_t i = 7;
	open_text(&f, "{\"a\":\"x\",\"b\":3,\"unknown\":1}");
	json_obj_i64(&f.o, "a", 0, 9, &i);
	json_obj_i64(&f.o, "b", 0, 9, &i);
	json_obj_need(&f.o, "c");
	json_obj_fail(&f.o, ERR_CONFLICT, "d", "later");
	json_obj_adopt(&f.o, ERR_CONFLICT);
	expect_failure(&f, ERR_INVALID_TYPE, "$.model.a", "$.model.a");
	assert_int_equal(i, 7);

	open_text(&f, "[]");
	assert_false(json_obj_has(&f.o, "a"));
	expect_failure(&f, ERR_INVALID_TYPE, "$.model", "an object, not an array");
	open_text(&f, "{}");
	json_obj_adopt(&f.o, 0);
	json_obj_fail(&f.o, ERR_CONFLICT, NULL, "%s", "said by the caller");
	expect_failure(&f, ERR_CONFLICT, "$.model", "said by the caller");
}

static void long_paths_are_cut(void **state)
{
	struct fixture f;
	char key[300];
	memset(key, 'k', sizeof(key) - 1);
	key[sizeof(key) - 1] = '\0';
	char text[400];
	(void)snprintf(text, sizeof(text), "{\"%s\":1}", key);
	open_text(&f, text);
	assert_int_equal(json_obj_close(&f.o), ERR_UNKNOWN_FIELD);
	assert_int_equal(strlen(f.err.param), JSON_PATH_MAX - 1);
	json_doc_free(f.doc);
	/* No err to fill is no reason to stop. */
	struct json_obj o;
	json_obj_open(&o, NULL, "$", NULL);
	assert_int_equal(json_obj_close(&o), ERR_INVALID_TYPE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_fields_are_read),
		cmocka_unit_test(wrong_fields_are_named),
		cmocka_unit_test(unknown_fields_are_refused),
		cmocka_unit_test(the_first_error_sticks),
		cmocka_unit_test(long_paths_are_cut),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
