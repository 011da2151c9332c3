/* SPDX-License-Identifier: Apache-2.0
 * Tests core/json/reader.c with each allocation failing in turn. */
#include "core/json/reader.h"
#include "tests/support/check.h"
#include "tests/support/fail_malloc.h"

static const char TEXT[] =
	"{\"a\":[1,2.5,\"three\",{\"b\":null,\"c\":[true,false]}],\"d\":{\"e\":\"\\u00e9\",\"f\":{}},"
	"\"long\":"
	"\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}";

static void parsing_survives_each_failure(void **state)
{
	/* jansson seeds its hash once, with memory that does not count. */
	struct json_doc *doc = NULL;
	struct err err = { 0 };
	assert_int_equal(json_doc_parse(TEXT, strlen(TEXT), JSON_BYTES_MAX, &doc, &err), 0);
	json_doc_freep(&doc);

	int failures = 0;
	for (long after = 0;; after++) {
		fail_malloc_after(after);
		int r = json_doc_parse(TEXT, strlen(TEXT), JSON_BYTES_MAX, &doc, &err);
		bool happened = fail_malloc_happened();
		fail_malloc_after(-1);
		if (!happened) {
			assert_int_equal(r, 0);
			json_doc_freep(&doc);
			break;
		}
		failures++;
		/* A parse that went short of memory must not pass, however little is missing. */
		assert_int_equal(r, ERR_NO_MEMORY);
		assert_null(doc);
	}
	assert_true(failures > 30);
}

static void dumping_survives_each_failure(void **state)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err err = { 0 };
	assert_int_equal(json_doc_parse(TEXT, strlen(TEXT), JSON_BYTES_MAX, &doc, &err), 0);
	for (long after = 0;; after++) {
		fail_malloc_after(after);
		char *text = json_dump(json_doc_root(doc));
		bool happened = fail_malloc_happened();
		fail_malloc_after(-1);
		assert_true(happened == !text);
		free(text);
		if (!happened)
			return;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parsing_survives_each_failure),
		cmocka_unit_test(dumping_survives_each_failure),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
