/* SPDX-License-Identifier: Apache-2.0
 * Error bodies carry both shapes, and nothing of ours that is not for strangers. */
#include "core/json/reader.h"
#include "server/http/error_body.h"
#include "tests/support/check.h"

static struct json_doc *body_of(
	int code, const char *param, const char *message, const char *sqlstate)
{
	struct buf out;
	struct err err = { 0 };
	struct json_doc *doc = NULL;
	buf_init(&out, 8192);
	(void)err_set(&err, code, param, "%s", message);
	(void)snprintf(err.sqlstate, sizeof(err.sqlstate), "%s", sqlstate);
	assert_int_equal(error_body_write(&out, &err, "https://yard", "req_1"), 0);
	assert_int_equal(json_doc_parse(out.data, out.len, out.len, &doc, &err), 0);
	buf_finish(&out);
	return doc;
}

static const char *text_of(const struct json_val *v, const char *key)
{
	return json_str_or(json_get(v, key), NULL);
}

static void both_shapes(void **state)
{
	(void)state;
	struct json_doc *doc = body_of(ERR_UNKNOWN_FIELD, "$.modle", "There is no field \"modle\"", "");
	const struct json_val *root = json_doc_root(doc);
	const struct json_val *error = json_get(root, "error");
	assert_string_equal(text_of(root, "type"), "https://yard/errors/unknown_field");
	assert_int_equal(json_i64_or(json_get(root, "status"), 0), 400);
	assert_string_equal(text_of(root, "detail"), "There is no field \"modle\"");
	assert_string_equal(text_of(root, "instance"), "urn:trainyard:request:req_1");
	assert_non_null(text_of(root, "title"));
	assert_string_equal(text_of(error, "message"), "There is no field \"modle\"");
	assert_string_equal(text_of(error, "type"), "invalid_request_error");
	assert_string_equal(text_of(error, "param"), "$.modle");
	assert_string_equal(text_of(error, "code"), "unknown_field");
	json_doc_free(doc);
}

static void our_own_faults_stay_ours(void **state)
{
	(void)state;
	static const struct {
		int code;
		const char *sqlstate;
	} faults[] = { { ERR_INTERNAL, "" }, { ERR_IO, "" }, { ERR_DATABASE, "" }, { ERR_NETWORK, "" },
		{ ERR_DB_CONFLICT, "" }, { ERR_DB_UNIQUE, "23505" }, { ERR_INVALID_VALUE, "22021" } };
	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		struct json_doc *doc = body_of(
			faults[i].code, "secret-host", "secret-host: select * from x", faults[i].sqlstate);
		char *text = json_dump(json_doc_root(doc));
		assert_null(strstr(text, "secret"));
		assert_non_null(strstr(text, "\"param\":null"));
		free(text);
		json_doc_free(doc);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_shapes),
		cmocka_unit_test(our_own_faults_stay_ours),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
