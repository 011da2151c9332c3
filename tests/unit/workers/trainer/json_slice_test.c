/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/json_slice.c: members are found as they lie, and broken texts end the
 * search inside the text. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/json_slice.h"

static bool find(const char *text, const char *key, char *out, size_t out_bytes)
{
	struct json_slice found;
	/* A copy that ends where it ends: a byte read beyond it is seen by the sanitizers. */
	size_t bytes = strlen(text);
	char *copy = malloc(bytes > 0 ? bytes : 1);
	assert_non_null(copy);
	memcpy(copy, text, bytes);
	bool ok = json_slice_member((struct json_slice){ copy, bytes }, key, &found);
	if (ok) {
		assert_true(found.at >= copy && found.at + found.bytes <= copy + bytes);
		snprintf(out, out_bytes, "%.*s", (int)found.bytes, found.at);
	}
	free(copy);
	return ok;
}

static void members_are_found(void **state)
{
	static const struct {
		const char *text, *key, *want; /* NULL: not there */
	} cases[] = {
		{ "{\"a\":1}", "a", "1" },
		{ " { \"a\" : [1,{\"b\":2}] , \"b\" : \"x,}\" } ", "b", "\"x,}\"" },
		{ " { \"a\" : [1,{\"b\":2}] , \"b\" : \"x,}\" } ", "a", "[1,{\"b\":2}]" },
		{ "{\"a\\\"\":1,\"a\":\"\\\\\",\"c\":true}", "c", "true" },
		{ "{\"x\":{\"a\":1}}", "a", NULL },
		{ "{\"ab\":1}", "a", NULL },
		{ "{}", "a", NULL },
		{ "[]", "a", NULL },
		{ "\"a\"", "a", NULL },
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char out[128] = "";
		bool ok = find(cases[i].text, cases[i].key, out, sizeof(out));
		assert_int_equal(ok, cases[i].want != NULL);
		if (ok)
			assert_string_equal(out, cases[i].want);
	}
}

static void every_beginning_of_a_text_is_survived(void **state)
{
	static const char text[] = "{\"version\":\"1.0\",\"list\":[1,[2,{\"k\":\"v\\\"\\\\\"}],null],"
							   "\"model\":{\"vocab\":{\"a\":0}}}";
	char out[128], cut[sizeof(text)];
	(void)state;
	assert_true(find(text, "model", out, sizeof(out)));
	assert_string_equal(out, "{\"vocab\":{\"a\":0}}");
	for (size_t n = 0; n + 2 < sizeof(text); n++) {
		memcpy(cut, text, n);
		cut[n] = '\0';
		assert_false(find(cut, "model", out, sizeof(out)));
		assert_false(find(cut, "absent", out, sizeof(out)));
	}
}

static void noise_is_survived(void **state)
{
	struct check_random random = check_random_start();
	static const char letters[] = "{}[]\":,\\a1 \n";
	char text[64], out[128];
	(void)state;
	for (int round = 0; round < 20000; round++) {
		size_t n = (size_t)check_random_range(&random, 0, (int)sizeof(text) - 1);
		for (size_t i = 0; i < n; i++)
			text[i] = letters[check_random_range(&random, 0, (int)sizeof(letters) - 2)];
		if (n > 0)
			text[0] = '{';
		text[n] = '\0';
		(void)find(text, "a", out, sizeof(out));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_found),
		cmocka_unit_test(every_beginning_of_a_text_is_survived),
		cmocka_unit_test(noise_is_survived),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
