/* SPDX-License-Identifier: Apache-2.0
 * CSV: quoting, columns by name, categorical ids, missing values, and refusals with their place. */
#include "tests/unit/workers/engine/data_fixture.h"

static struct err err;

static struct job_spec table_spec(enum spec_task task)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.task = task;
	s.data.format = SPEC_FORMAT_CSV;
	s.model.in_channels = s.model.in_height = s.model.in_width = s.model.n_classes = 0;
	return s;
}

static struct job_spec click_spec(void)
{
	struct job_spec s = fixture_spec(SPEC_DLRM);
	s.task = SPEC_CLICK_THROUGH;
	s.data.format = SPEC_FORMAT_CSV;
	s.model.dense_features = 2;
	s.model.lookups = 3;
	s.model.table_count = 2;
	s.model.table_rows[0] = 10;
	s.model.table_rows[1] = 1000;
	s.data.categorical_count = 2;
	snprintf(s.data.categorical[0], SPEC_COLUMN_MAX, "shop");
	snprintf(s.data.categorical[1], SPEC_COLUMN_MAX, "item");
	return s;
}

static struct data *open_ok(const struct job_spec *s, const char *text)
{
	struct data *d = NULL;
	assert_ok(fixture_data(s, text, strlen(text), NULL, &d, &err));
	return d;
}

static void test_regression(void **state)
{
	struct job_spec s = table_spec(SPEC_REGRESSION);
	const char text[] = "\xef\xbb\xbf"
						"a,\"b, \"\"quoted\"\"\",y\r\n1,\t2.5 ,3\r\n-1e-3,\"4\",-0.5\n0,1,2";
	struct data *d = open_ok(&s, text);
	const struct data_info *i = data_info(d);
	assert_true(i->samples == 3 && i->width == 2 && i->height == 1 && i->channels == 1);
	assert_true(i->classes == 1 && i->tokens == 0);
	float x[4], y[2];
	struct data_batch b = { .samples = 2, .input = x, .labels = y };
	data_read(d, 0, 1, 0, &b);
	data_read(d, 1, 0, 0, &b);
	assert_true(x[2] == 1 && x[3] == 2.5f && y[1] == 3);
	assert_true(x[0] == -1e-3f && x[1] == 4 && y[0] == -0.5f);
	data_blank(d, 0, &b);
	assert_true(x[0] == 0 && isnan(y[0]));
	data_close(d);
	/* Names without the byte order mark, and with the quotes that are theirs. */
	const char *const names[3] = { "a", "b, \"quoted\"", "y" };
	const float row[3] = { 1, 2.5f, 3 };
	for (int k = 0; k < 3; k++) {
		snprintf(s.data.label_column, SPEC_COLUMN_MAX, "%s", names[k]);
		d = open_ok(&s, text);
		data_read(d, 0, 0, 0, &b);
		assert_true(x[0] == row[k == 0] && x[1] == row[k == 2 ? 1 : 2] && y[0] == row[k]);
		data_close(d);
	}
}

static void test_classes(void **state)
{
	struct job_spec s = table_spec(SPEC_CLASSIFICATION);
	struct data *d = open_ok(&s, "x,y\n0.5,0\n1.5,7\n2.5, 3\n");
	float x[1];
	int32_t y[1];
	struct data_batch b = { .samples = 1, .input = x, .labels = y };
	assert_int_equal(data_info(d)->classes, 8);
	data_read(d, 1, 0, 0, &b);
	assert_true(x[0] == 1.5f && y[0] == 7);
	data_blank(d, 0, &b);
	assert_int_equal(y[0], -1);
	data_close(d);
}

static void test_clicks(void **state)
{
	struct job_spec s = click_spec();
	/* A missing number is 0, a missing bag empty; numbers wrap around the table, texts hash. */
	struct data *d = open_ok(&s,
		"shop,age,label,item,price\n"
		"3,20,1,17|-1|1000,0.5\n"
		"-13,,0,,2\n"
		"123456789012,1,0,red shoes|red shoes|9223372036854775807,1\n");
	enum { S = 4 };
	float x[S * 2], y[S];
	int32_t bags[2 * S * 3];
	memset(bags, 0x55, sizeof(bags));
	struct data_batch b = { .samples = S, .input = x, .labels = y, .bags = bags };
	for (int i = 0; i < 3; i++)
		data_read(d, i, i, 0, &b);
	data_blank(d, 3, &b);
	assert_true(x[0] == 20 && x[1] == 0.5f && x[2] == 0 && x[3] == 2 && x[6] == 0);
	assert_true(y[0] == 1 && y[1] == 0 && isnan(y[3]));
	const int32_t shop[S * 3] = { 3, -1, -1, 7, -1, -1, 2, -1, -1, -1, -1, -1 };
	assert_memory_equal(bags, shop, sizeof(shop));
	const int32_t item[6] = { 17, 999, 0, -1, -1, -1 };
	assert_memory_equal(bags + S * 3, item, sizeof(item));
	const int32_t *shoes = bags + S * 3 + 6;
	/* Stable over versions: this number is part of what a trained table means. */
	assert_int_equal(shoes[0], 601);
	assert_true(shoes[1] == shoes[0] && shoes[2] == 807);
	assert_true(shoes[3] == -1 && shoes[4] == -1 && shoes[5] == -1);
	assert_true(data_info(d)->classes == 0 && data_info(d)->width == 2);
	assert_int_equal(data_valid_rows(d, 0), 1);
	data_close(d);
}

static void test_files_follow(void **state)
{
	struct job_spec s = table_spec(SPEC_REGRESSION);
	struct data *d = NULL;
	assert_ok(fixture_data_pair(&s, "a,y\n1,2\n", 8, "a,y\n3,4", 7, &d, &err));
	float x[1], y[1];
	data_read(d, 1, 0, 0, &(struct data_batch){ .samples = 1, .input = x, .labels = y });
	assert_true(x[0] == 3 && y[0] == 4);
	data_close(d);
	assert_int_equal(
		fixture_data_pair(&s, "a,y\n1,2\n", 8, "b,y\n3,4", 7, &d, &err), ERR_INVALID_DATA);
	assert_says("the second", "line 1", "the first");
}

struct refusal {
	const char *text, *says[3];
};

static void refuse_all(const struct job_spec *s, const struct refusal *bad, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct data *d = NULL;
		int rc = fixture_data(s, bad[i].text, strlen(bad[i].text), NULL, &d, &err);
		if (rc != ERR_INVALID_DATA)
			fail_msg("%s: %d", bad[i].text, rc);
		for (int k = 0; k < 3 && bad[i].says[k]; k++)
			assert_says("the file", bad[i].says[k]);
		assert_string_equal(err.param, "training_file");
	}
}

static void test_refused(void **state)
{
	const struct refusal bad[] = {
		{ "a,y\n", { "no rows" } },
		{ "y\n1\n", { "line 1", "0 columns are features" } },
		{ "a,y\n1,2\n3\n", { "line 3", "1 fields, the header 2" } },
		{ "a,y\n1,2\n\n3,4\n", { "line 3", "1 fields" } },
		{ "a,y\n1,2,3\n", { "line 2", "3 fields" } },
		{ "a,y\n1,x\n", { "line 2", "column \"y\"", "\"x\" is no number" } },
		{ "a,y\n1,\n", { "line 2", "column \"y\"", "is missing" } },
		{ "a,y\n,1\n", { "line 2", "column \"a\"", "is missing" } },
		{ "a,y\nnan,1\n", { "column \"a\"", "not finite" } },
		{ "a,y\n1,-inf\n", { "column \"y\"", "not finite" } },
		{ "a,y\n1e39,1\n", { "column \"a\"", "not finite" } },
		{ "a,y\n0x10,1\n", { "is no number" } },
		{ "a,y\n1 2,1\n", { "is no number" } },
		{ "a,y\n\"x\ny\",1\n\"z\",2\n", { "line 2", "is no number" } },
		{ "a,y\n\"1\n\n\n\",2,3\n", { "line 2", "3 fields" } },
		{ "a,y\n1,\"2\n", { "a quoted field without end" } },
		{ "a,y\n1,\"2\"3\n", { "line 2, field 2", "behind the closing quote" } },
		{ "a,y\n1,2\"3\n", { "line 2, field 2", "a quote inside" } },
		{ "a,y\n1,\xff\n", { "not UTF-8", "line 2" } },
		{ "a,y\n\"1\"\r2,3\n", { "line 2, field 1", "a carriage return alone" } },
		{ "\"a\n\nb\",y\n1,x\n", { "line 4", "column \"y\"", "is no number" } },
	};
	struct job_spec s = table_spec(SPEC_REGRESSION);
	refuse_all(&s, bad, ARRAY_LEN(bad));
	const struct refusal classes[] = {
		{ "a,y\n1,1.5\n", { "is no class" } },
		{ "a,y\n1,-1\n", { "a class that the model does not have" } },
		{ "a,y\n1,5\n", { "line 2", "a class that the model does not have" } },
		{ "a,y\n1,cat\n", { "is no class" } },
	};
	s = table_spec(SPEC_CLASSIFICATION);
	s.model.n_classes = 5;
	refuse_all(&s, classes, ARRAY_LEN(classes));
	s.model.in_width = 3;
	const struct refusal width[] = { { "a,b,y\n1,2,3\n",
		{ "2 columns are features", "takes 3" } } };
	refuse_all(&s, width, 1);
	snprintf(s.data.label_column, SPEC_COLUMN_MAX, "target");
	const struct refusal label[] = { { "a,b,y\n1,2,3\n", { "no column is called \"target\"" } },
		{ "a,target,target\n1,2,3\n", { "two columns are called \"target\"" } } };
	refuse_all(&s, label, 2);
}

static void test_clicks_refused(void **state)
{
	const struct refusal bad[] = {
		{ "shop,age,label,item\n1,2,1,3\n", { "1 columns are features", "takes 2" } },
		{ "shop,age,click,item,price\n1,2,1,3,4\n", { "no column is called \"label\"" } },
		{ "shop,age,label,price,x\n1,2,1,3,4\n", { "no column is called \"item\"" } },
		{ "shop,age,label,item,price\n1,2,2,3,4\n", { "column \"label\"", "no label of clicks" } },
		{ "shop,age,label,item,price\n1,2,,3,4\n", { "column \"label\"", "is missing" } },
		{ "shop,age,label,item,price\n1,2,1,1|2|3|4,4\n", { "column \"item\"", "more ids" } },
		{ "shop,age,label,item,price\n1,2,1,1||3,4\n", { "column \"item\"", "an empty id" } },
		{ "shop,age,label,item,price\n1,2,1,1|,4\n", { "an empty id" } },
		{ "shop,age,label,item,price\n1,x,1,1,4\n", { "column \"age\"", "no number" } },
	};
	struct job_spec s = click_spec();
	refuse_all(&s, bad, ARRAY_LEN(bad));
	s.data.categorical_count = 1;
	struct data *d = NULL;
	assert_int_equal(fixture_data(&s, "a,b\n1,2\n", 8, NULL, &d, &err), ERR_INVALID_DATA);
	s = click_spec();
	snprintf(s.data.categorical[1], SPEC_COLUMN_MAX, "shop");
	const struct refusal twice[] = { { "shop,age,label,item,price\n1,2,1,3,4\n",
		{ "named twice" } } };
	refuse_all(&s, twice, 1);
}

static void test_limits(void **state)
{
	struct job_spec s = table_spec(SPEC_REGRESSION);
	struct data *d = NULL;
	size_t bytes = 80000;
	char *text = malloc(bytes);
	memset(text, 'a', bytes);
	assert_int_equal(fixture_data(&s, text, bytes, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("line 1", "65536 bytes");
	text[0] = text[65538] = '"';
	memcpy(text + 65539, ",y\n1,2\n", 7);
	assert_int_equal(fixture_data(&s, text, 65546, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("line 1, field 1", "65536 bytes");
	text[65537] = '"';
	memcpy(text + 65538, ",y\n1,2\n", 7);
	assert_ok(fixture_data(&s, text, 65545, NULL, &d, &err));
	data_close(d);
	/* A field in two pieces. */
	text[30000] = text[30001] = '"';
	assert_int_equal(fixture_data(&s, text, 65545, NULL, &d, &err), 0);
	data_close(d);
	text[65537] = text[65538] = text[65539] = 'a';
	memcpy(text + 65540, "\",y\n1,2\n", 8);
	assert_int_equal(fixture_data(&s, text, 65548, NULL, &d, &err), ERR_INVALID_DATA);
	assert_says("line 1, field 1", "65536 bytes");
	for (size_t fields = 4096; fields < 4098; fields++) {
		for (size_t i = 0; i < 4 * fields; i++)
			text[i] = i % 2 == 0 ? '1' : i + 1 == 2 * fields || i + 1 == 4 * fields ? '\n' : ',';
		int rc = fixture_data(&s, text, 4 * fields, NULL, &d, &err);
		assert_int_equal(rc, fields == 4096 ? 0 : ERR_INVALID_DATA);
		if (rc)
			assert_says("line 1", "4096 fields");
		else
			data_close(d);
	}
	assert_int_equal(fixture_data(&s,
						 "a,y\n1,\0"
						 "2\n",
						 9, NULL, &d, &err),
		ERR_INVALID_DATA);
	assert_says("a zero byte");
	free(text);
}

/* Training and validation have the same columns in the same order. */
static void test_agree(void **state)
{
	struct job_spec s = table_spec(SPEC_REGRESSION);
	s.model.in_width = 0;
	const char *const texts[] = { "a,b,y\n1,2,3\n", "a,b,y\n4,5,6\n4,5,6\n", "b,a,y\n1,2,3\n",
		"a,b,z\n1,2,3\n", "a,ba,y\n1,2,3\n" };
	struct data *d[ARRAY_LEN(texts)] = { NULL };
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		assert_ok(fixture_data(&s, texts[i], strlen(texts[i]), NULL, &d[i], &err));
	assert_ok(data_agree(d[0], d[1], &err));
	const char *const says[] = { "\"b\" (training: \"a\")", "\"z\" (training: \"y\")",
		"\"ba\" (training: \"b\")" };
	for (size_t i = 2; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(data_agree(d[0], d[i], &err), ERR_INVALID_DATA);
		assert_string_equal(err.param, "validation_file");
		assert_says(says[i - 2]);
	}
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		data_close(d[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_regression),
		cmocka_unit_test(test_agree),
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_clicks),
		cmocka_unit_test(test_files_follow),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_clicks_refused),
		cmocka_unit_test(test_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
