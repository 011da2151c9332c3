/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/options.c: both spellings, every kind, and what is refused. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/options.h"

struct values {
	const char *spec, *text, *optional;
	bool flag;
	int64_t count;
	double number;
	struct session_inputs inputs;
};

static int parse(struct values *v, struct err *err, int argc, const char **argv)
{
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &v->spec, 0, 0 },
		{ "--text", OPTIONS_TEXT, &v->text, 0, 0 },
		{ "--optional", OPTIONS_OPTIONAL, &v->optional, 0, 0 },
		{ "--flag", OPTIONS_FLAG, &v->flag, 0, 0 },
		{ "--count", OPTIONS_COUNT, &v->count, 1, 10 },
		{ "--number", OPTIONS_NUMBER, &v->number, 0, 1e18 },
		{ "--data", OPTIONS_DATA, &v->inputs, 0, 0 },
	};
	memset(v, 0, sizeof(*v));
	return options_parse(rows, ARRAY_LEN(rows), argc, (char **)argv, err);
}

#define PARSE(v, err, ...) \
	parse(v, err, ARRAY_LEN(((const char *[]){ __VA_ARGS__ })), (const char *[]){ __VA_ARGS__ })

static void both_spellings_are_read(void **state)
{
	struct values v;
	struct err err = { 0 };
	(void)state;
	assert_int_equal(PARSE(&v, &err, "x", "--text", "a", "spec.json", "--flag", "--count=7",
						 "--number", "1e3", "--optional", "--data", "training_file=/a/b.txt",
						 "--data=validation_file=c", "--data", "training_file=d"),
		0);
	assert_string_equal(v.text, "a");
	assert_string_equal(v.spec, "spec.json");
	assert_string_equal(v.optional, "");
	assert_true(v.flag);
	assert_int_equal(v.count, 7);
	assert_true(v.number == 1000);
	assert_int_equal(v.inputs.training_count, 2);
	assert_string_equal(v.inputs.training[0].path, "/a/b.txt");
	assert_string_equal(v.inputs.training[0].label, "b.txt");
	assert_int_equal(v.inputs.validation_count, 1);
	assert_int_equal(PARSE(&v, &err, "x", "--optional=dir", "--text="), 0);
	assert_string_equal(v.optional, "dir");
	assert_string_equal(v.text, "");
	assert_int_equal(PARSE(&v, &err, "x", "--count", "99", "--help"), OPTIONS_HELP);
}

static void what_is_wrong_is_named(void **state)
{
	struct values v;
	struct err err = { 0 };
	(void)state;
	assert_int_equal(PARSE(&v, &err, "x", "--nothing"), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "--nothing");
	assert_int_equal(PARSE(&v, &err, "x", "--text"), ERR_MISSING_FIELD);
	assert_string_equal(err.param, "--text");
	assert_int_equal(PARSE(&v, &err, "x", "--count", "11"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--count", "0"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--count", "7x"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--number", "nan"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--number", "-1"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--number", ""), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "--number");
	assert_int_equal(PARSE(&v, &err, "x", "--number", " 1"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--number", "0x10"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--flag=no"), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "--flag");
	assert_int_equal(PARSE(&v, &err, "x", "--flag="), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "a", "b"), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "b");
	assert_int_equal(PARSE(&v, &err, "x", "--data", "file=a"), ERR_INVALID_VALUE);
	assert_int_equal(PARSE(&v, &err, "x", "--counter", "1"), ERR_INVALID_VALUE);
	const char *many[2 * SPEC_FILES_MAX + 3] = { "x" };
	for (int i = 0; i <= SPEC_FILES_MAX; i++) {
		many[1 + 2 * i] = "--data";
		many[2 + 2 * i] = "training_file=a";
	}
	assert_int_equal(parse(&v, &err, ARRAY_LEN(many), many), ERR_INVALID_VALUE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_spellings_are_read),
		cmocka_unit_test(what_is_wrong_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
