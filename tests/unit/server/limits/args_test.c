/* SPDX-License-Identifier: Apache-2.0
 * Tests server/limits/args.c on requests that a client could send. */
#include "server/limits/args.h"
#include "tests/unit/server/limits/request_fixture.h"

static const char job[] = "job_01HZY3V9Q4T5W6X7Y8Z9A0B1C2";

static void an_id_is_told_or_is_unknown(void **state)
{
	static const char *const bad[] = { "", "job_", "job_01HZY3V9Q4T5W6X7Y8Z9A0B1C",
		"file_01HZY3V9Q4T5W6X7Y8Z9A0B1C2", "job_01HZY3V9Q4T5W6X7Y8Z9A0B1C2x",
		"job_01HZY3V9Q4T5W6X7Y8Z9A0B1C'" };
	struct request_fixture f;
	struct err err = { 0 };
	const char *id = NULL;
	request_open(&f, "/v1/jobs/x");
	assert_int_equal(args_id(&f.req, "id", "job", "job", &id, &err), ERR_NOT_FOUND);
	f.req.path_param_count = 1;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		f.req.path_params[0] = (struct path_param){ "id", bad[i] };
		assert_int_equal(args_id(&f.req, "id", "job", "job", &id, &err), ERR_NOT_FOUND);
		assert_string_equal(err.message, "There is no such job");
		assert_null(id);
	}
	f.req.path_params[0].value = job;
	assert_int_equal(args_id(&f.req, "id", "job", "job", &id, &err), 0);
	assert_ptr_equal(id, job);
	request_close(&f);
}

static int page_of(const char *target, struct page *ret, struct err *err)
{
	struct request_fixture f;
	request_open(&f, target);
	int rc = args_page(&f.req, "job", ret, err);
	request_close(&f);
	return rc;
}

static void a_page_is_bounded(void **state)
{
	static const struct {
		const char *target, *param;
	} bad[] = {
		{ "/v1/jobs?limit=0", "limit" },
		{ "/v1/jobs?limit=101", "limit" },
		{ "/v1/jobs?limit=", "limit" },
		{ "/v1/jobs?limit=2x", "limit" },
		{ "/v1/jobs?limit=99999999999999999999", "limit" },
		{ "/v1/jobs?after=", "after" },
		{ "/v1/jobs?after=file_01HZY3V9Q4T5W6X7Y8Z9A0B1C2", "after" },
		{ "/v1/jobs?before=job_01", "before" },
	};
	struct page page;
	struct err err = { 0 };
	assert_int_equal(page_of("/v1/jobs", &page, &err), 0);
	assert_int_equal(page.limit, PAGE_LIMIT_DEFAULT);
	assert_string_equal(page.after, "");
	assert_string_equal(page.before, "");
	assert_int_equal(
		page_of("/v1/jobs?limit=100&after=job_01HZY3V9Q4T5W6X7Y8Z9A0B1C2", &page, &err), 0);
	assert_int_equal(page.limit, PAGE_LIMIT_MAX);
	assert_string_equal(page.after, job);
	page.limit = -1;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(page_of(bad[i].target, &page, &err), ERR_INVALID_VALUE);
		assert_string_equal(err.param, bad[i].param);
		assert_int_equal(page.limit, -1);
	}
}

static int only(const char *target, struct err *err)
{
	static const char *const known[] = { "status", "metadata[", NULL };
	struct request_fixture f;
	request_open(&f, target);
	int rc = args_only(&f.req, known, err);
	request_close(&f);
	return rc;
}

static void unknown_arguments_are_named(void **state)
{
	struct err err = { 0 };
	assert_int_equal(only("/v1/jobs", &err), 0);
	assert_int_equal(only("/v1/jobs?status=x&metadata[a]=b&metadata[c]=d&tenant_id=t", &err), 0);
	assert_int_equal(only("/v1/jobs?status=x&stat=y&other=z", &err), ERR_UNKNOWN_FIELD);
	assert_string_equal(err.param, "stat");
	assert_int_equal(only("/v1/jobs?metadata=x", &err), ERR_UNKNOWN_FIELD);
	assert_int_equal(only("/v1/jobs?status[=x", &err), ERR_UNKNOWN_FIELD);
	assert_int_equal(only("/v1/jobs?=x", &err), ERR_UNKNOWN_FIELD);
	assert_string_equal(err.param, "(unreadable)");
	assert_int_equal(only("/v1/jobs?a%20b=x", &err), ERR_UNKNOWN_FIELD);
	assert_string_equal(err.param, "(unreadable)");
}

static void words_and_names_are_checked(void **state)
{
	static const char *const words[] = { "queued", "running", NULL };
	static const char *const bad[] = { "/x?kind=", "/x?kind=a%20b", "/x?kind=a;b", "/x?kind=abcdef",
		"/x?kind=%C3%A4" };
	struct request_fixture f;
	struct err err = { 0 };
	const char *value = "kept";
	request_open(&f, "/x?status=running&kind=a.b-_");
	assert_int_equal(args_word(&f.req, "status", words, &value, &err), 0);
	assert_ptr_equal(value, words[1]);
	assert_int_equal(args_word(&f.req, "absent", words, &value, &err), 0);
	assert_null(value);
	assert_int_equal(args_word(&f.req, "kind", words, &value, &err), ERR_INVALID_VALUE);
	assert_non_null(strstr(err.message, "queued, running"));
	assert_string_equal(err.param, "kind");
	assert_int_equal(args_name(&f.req, "kind", 5, &value, &err), 0);
	assert_string_equal(value, "a.b-_");
	assert_int_equal(args_name(&f.req, "absent", 5, &value, &err), 0);
	assert_null(value);
	request_close(&f);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		request_open(&f, bad[i]);
		assert_int_equal(args_name(&f.req, "kind", 5, &value, &err), ERR_INVALID_VALUE);
		request_close(&f);
	}
}

static void text_is_counted_in_characters(void **state)
{
	struct err err = { 0 };
	assert_int_equal(args_check_text("", "t", 0, &err), 0);
	assert_int_equal(args_check_text("\xc3\xa4\xe2\x82\xac", "t", 2, &err), 0);
	assert_int_equal(args_check_text("\xc3\xa4\xe2\x82\xac", "t", 1, &err), ERR_INVALID_VALUE);
	assert_int_equal(args_check_text("a\xc3", "t", 9, &err), ERR_INVALID_VALUE);
	assert_int_equal(args_check_text("a\xed\xa0\x80", "t", 9, &err), ERR_INVALID_VALUE);
	assert_int_equal(args_check_text("a\nb", "t", 9, &err), ERR_INVALID_VALUE);
	assert_int_equal(args_check_text("a\x7f", "t", 9, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "t");
}

/* The JSON of the filters, "" for none, or the error's name. */
static const char *metadata_of(const char *target)
{
	static char text[4096];
	struct request_fixture f;
	struct err err = { 0 };
	const char *json = NULL;
	request_open(&f, target);
	int rc = args_metadata(&f.req, &json, &err);
	(void)snprintf(text, sizeof(text), "%s", rc < 0 ? err_info(rc)->name : json ? json : "");
	request_close(&f);
	return text;
}

static void filters_by_metadata_become_json(void **state)
{
	assert_string_equal(metadata_of("/x?status=y"), "");
	assert_string_equal(metadata_of("/x?metadata[team]=nlp&a=b&metadata[%22]=%5C"),
		"{\"team\":\"nlp\",\"\\\"\":\"\\\\\"}");
	assert_string_equal(metadata_of("/x?metadata[a]="), "{\"a\":\"\"}");
	assert_string_equal(metadata_of("/x?metadata[]=b"), "INVALID_VALUE");
	assert_string_equal(metadata_of("/x?metadata[a=b"), "INVALID_VALUE");
	assert_string_equal(metadata_of("/x?metadata[a]b=c"), "INVALID_VALUE");
}

static void filters_by_metadata_are_bounded(void **state)
{
	char target[4096] = "/x?status=y";
	for (int i = 0; i < ARGS_METADATA_MAX; i++) {
		size_t n = strlen(target);
		(void)snprintf(target + n, sizeof(target) - n, "&metadata[k%d]=v", i);
	}
	assert_int_equal(metadata_of(target)[0], '{');
	size_t n = strlen(target);
	(void)snprintf(target + n, sizeof(target) - n, "&metadata[more]=v");
	assert_string_equal(metadata_of(target), "INVALID_VALUE");
	for (int more = 0; more < 2; more++) {
		(void)snprintf(
			target, sizeof(target), "/x?metadata[%0*d]=v", ARGS_METADATA_KEY_MAX + more, 0);
		assert_int_equal(metadata_of(target)[0], more ? 'I' : '{');
		(void)snprintf(
			target, sizeof(target), "/x?metadata[k]=%0*d", ARGS_METADATA_VALUE_MAX + more, 0);
		assert_int_equal(metadata_of(target)[0], more ? 'I' : '{');
	}
}

static void regions_are_known_and_separated(void **state)
{
	static const char *const bad[] = { "", ",", "us,", ",us", "us,,eu", "us, eu", "mars",
		"us,a-region-whose-name-is-longer-than-any-of-the-tree" };
	struct residency_set set = { 0 };
	struct err err = { 0 };
	assert_int_equal(args_regions("us,eu-west,us", "residency", &set, &err), 0);
	assert_int_equal(set.count, 2);
	assert_string_equal(set.region[1], "eu-west");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(args_regions(bad[i], "residency", &set, &err), ERR_INVALID_VALUE);
		assert_string_equal(err.param, "residency");
		assert_int_equal(set.count, 2);
	}
}

static int json_regions_of(const char *text, struct residency_set *ret, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct json_obj o;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, err), 0);
	json_obj_open(&o, json_doc_root(doc), "$", err);
	args_json_regions(&o, "residency", ret);
	return json_obj_close(&o);
}

static void a_json_array_of_regions_names_its_bad_element(void **state)
{
	static const struct {
		const char *text;
		int code;
		const char *param;
	} bad[] = {
		{ "{\"residency\":[\"us\",\"mars\"]}", ERR_INVALID_VALUE, "$.residency[1]" },
		{ "{\"residency\":[\"us\",7]}", ERR_INVALID_TYPE, "$.residency[1]" },
		{ "{\"residency\":[]}", ERR_INVALID_VALUE, "$.residency" },
		{ "{\"residency\":\"us\"}", ERR_INVALID_TYPE, "$.residency" },
	};
	struct residency_set set = { 0 };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err err = { 0 };
		assert_int_equal(json_regions_of(bad[i].text, &set, &err), bad[i].code);
		assert_string_equal(err.param, bad[i].param);
		assert_int_equal(set.count, 0);
	}
	struct err err = { 0 };
	assert_int_equal(json_regions_of("{}", &set, &err), 0);
	assert_int_equal(set.count, 0);
	assert_int_equal(json_regions_of("{\"residency\":[\"eu\"]}", &set, &err), 0);
	assert_string_equal(set.region[0], "eu");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_id_is_told_or_is_unknown),
		cmocka_unit_test(a_page_is_bounded),
		cmocka_unit_test(unknown_arguments_are_named),
		cmocka_unit_test(words_and_names_are_checked),
		cmocka_unit_test(text_is_counted_in_characters),
		cmocka_unit_test(filters_by_metadata_become_json),
		cmocka_unit_test(filters_by_metadata_are_bounded),
		cmocka_unit_test(regions_are_known_and_separated),
		cmocka_unit_test(a_json_array_of_regions_names_its_bad_element),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
