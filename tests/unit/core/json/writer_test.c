/* SPDX-License-Identifier: Apache-2.0
 * Tests core/json/writer.c; what it writes is read back by core/json/reader.c. */
#include "core/base/err.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "tests/support/check.h"

#include <math.h>

static void values_are_written_in_order(void **state)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 10000);
	struct json_writer w;
	json_writer_init(&w, &out);
	json_begin_object(&w);
	json_field_str(&w, "s", "a\"\\\n\t\x01/");
	json_field_str(&w, "null", NULL);
	json_field_i64(&w, "min", INT64_MIN);
	json_field_f64(&w, "f", 0.1);
	json_field_f64(&w, "nan", NAN);
	json_field_f64(&w, "inf", INFINITY);
	json_field_bool(&w, "b", false);
	json_field_raw(&w, "raw", "{\"x\":[1]}");
	json_field_raw(&w, "no_raw", "");
	json_field_null(&w, "n");
	json_key(&w, "a\xFF");
	json_begin_array(&w);
	json_begin_array(&w);
	json_end_array(&w);
	json_put_i64(&w, 1);
	json_begin_object(&w);
	json_end_object(&w);
	json_put_strn(&w, "abc", 2);
	json_put_raw(&w, NULL);
	json_end_array(&w);
	json_end_object(&w);
	assert_int_equal(out.failed, 0);
	assert_string_equal(buf_cstr(&out),
		"{\"s\":\"a\\\"\\\\\\n\\t\\u0001/\",\"null\":null,\"min\":-9223372036854775808,\"f\":0.1,"
		"\"nan\":null,\"inf\":null,\"b\":false,\"raw\":{\"x\":[1]},\"no_raw\":null,\"n\":null,"
		"\"a\xEF\xBF\xBD\":[[],1,{},\"ab\",null]}");
}

/* Any bytes become JSON that reads; those that were UTF-8 without NUL read back the same. */
static void any_string_is_json(void **state)
{
	struct check_random random = check_random_start();
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 10000);
	for (int i = 0; i < 20000; i++) {
		char text[40] = "";
		size_t bytes = (size_t)check_random_range(&random, 0, sizeof(text) - 1);
		for (size_t k = 0; k < bytes; k++)
			text[k] = (char)(i % 2 ? check_random_range(&random, 1, 127)
								   : check_random_range(&random, 1, 255));
		buf_reset(&out);
		struct json_writer w;
		json_writer_init(&w, &out);
		json_put_strn(&w, text, bytes);
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		struct err err = { 0 };
		if (json_doc_parse(out.data, out.len, 10000, &doc, &err) < 0)
			fail_msg("%s: %s", err.message, out.data);
		if (i % 2)
			assert_string_equal(json_str_or(json_doc_root(doc), NULL), text);
	}
}

static void numbers_read_back(void **state)
{
	struct check_random random = check_random_start();
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 1000);
	for (int i = 0; i < 50000; i++) {
		uint64_t bits = check_random_bits(&random);
		double v;
		memcpy(&v, &bits, sizeof(v));
		if (!isfinite(v))
			continue;
		buf_reset(&out);
		struct json_writer w;
		json_writer_init(&w, &out);
		json_begin_array(&w);
		json_put_f64(&w, v);
		json_put_i64(&w, (int64_t)bits);
		json_end_array(&w);
		cleanup(json_doc_freep) struct json_doc *doc = NULL;
		assert_int_equal(json_doc_parse(out.data, out.len, 1000, &doc, NULL), 0);
		assert_true(json_f64_or(json_array_at(json_doc_root(doc), 0), 0) == v);
		assert_true(json_i64_or(json_array_at(json_doc_root(doc), 1), 0) == (int64_t)bits);
	}
}

static void overflow_sticks_in_the_buffer(void **state)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, 20);
	struct json_writer w;
	json_writer_init(&w, &out);
	json_begin_array(&w);
	for (int i = 0; i < 100; i++)
		json_put_str(&w, "xx");
	json_end_array(&w);
	assert_int_equal(out.failed, ERR_TOO_LARGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_written_in_order),
		cmocka_unit_test(any_string_is_json),
		cmocka_unit_test(numbers_read_back),
		cmocka_unit_test(overflow_sticks_in_the_buffer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
