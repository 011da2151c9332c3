/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/attempt.c: what the agent writes is found where it lies. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/attempt.h"

#define SHA "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SPEC                                                                                     \
	"{\"task\":\"language_model\",\"model\":{\"preset\":\"gpt2-tiny\"},\"training_file\":\"a\"," \
	"\"resources\":{\"instance_type\":\"cpu-dev\"}}"

static int read_text(const char *members, struct attempt **ret, struct err *err)
{
	char dir[] = "/tmp/attempt_test_XXXXXX", text[2000];
	assert_non_null(mkdtemp(dir));
	size_t n = (size_t)snprintf(
		text, sizeof(text), "{\"threads\":2,\"first_seq\":2,\"spec\":" SPEC "%s}", members);
	assert_int_equal(file_write_atomic(dir, "attempt.json", text, n, err), 0);
	int rc = attempt_read(dir, ret, err);
	struct err ignored = { 0 };
	assert_int_equal(file_remove_tree(dir, &ignored), 0);
	return rc;
}

static bool ends_with(const char *text, const char *tail)
{
	size_t n = text == NULL ? 0 : strlen(text), m = strlen(tail);
	return n >= m && strcmp(text + n - m, tail) == 0;
}

static void every_input_has_its_place(void **state)
{
	struct err err = { 0 };
	cleanup(attempt_freep) struct attempt *a = NULL;
	(void)state;
	int rc = read_text(",\"peak_flops\":5e10,\"device\":\"cuda\","
					   "\"files\":[{\"role\":\"training_file\",\"sha256\":\"" SHA "\","
					   "\"filename\":\"t.txt\"},{\"role\":\"tokenizer\",\"sha256\":\"" SHA "\"},"
					   "{\"role\":\"validation_file\",\"sha256\":\"" SHA "\"}],"
					   "\"init\":{\"files\":[]},\"resume\":{\"files\":[]}",
		&a, &err);
	if (rc < 0)
		fail_msg("%s", err.message);
	assert_int_equal(a->spec_code, 0);
	assert_int_equal(a->inputs.training_count, 1);
	assert_string_equal(a->inputs.training[0].label, "t.txt");
	assert_int_equal(a->inputs.validation_count, 1);
	assert_true(ends_with(a->inputs.training[0].path, "/files/" SHA));
	assert_true(ends_with(a->inputs.tokenizer_path, "/files/" SHA));
	assert_true(ends_with(a->inputs.init_dir, "/init"));
	assert_true(ends_with(a->inputs.resume_dir, "/resume"));
	assert_non_null(a->inputs.scratch_dir);
	assert_true(a->inputs.peak_flops == 5e10);
	assert_int_equal(a->inputs.device, DEVICE_CUDA);
}

static void what_is_not_there_is_not_named(void **state)
{
	struct err err = { 0 };
	cleanup(attempt_freep) struct attempt *a = NULL;
	(void)state;
	assert_int_equal(read_text(",\"init\":null,\"resume\":null,\"tokenizer\":null", &a, &err), 0);
	assert_null(a->inputs.init_dir);
	assert_null(a->inputs.resume_dir);
	assert_null(a->inputs.tokenizer_path);
	assert_true(a->inputs.peak_flops == 0);
	assert_int_equal(a->inputs.device, DEVICE_AUTO);
	attempt_freep(&a);
	assert_int_equal(read_text(",\"tokenizer\":\"files/gpt2.json\"", &a, &err), 0);
	assert_true(ends_with(a->inputs.tokenizer_path, "/files/gpt2.json"));
}

static void wrong_lists_are_refused(void **state)
{
	static const char *const wrong[] = {
		",\"files\":[{\"role\":\"poem\",\"sha256\":\"" SHA "\"}]",
		",\"files\":[{\"role\":\"tokenizer\",\"sha256\":\"../../etc/passwd\"}]",
		",\"peak_flops\":-1",
		",\"device\":\"gpu\"",
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = { 0 };
		cleanup(attempt_freep) struct attempt *a = NULL;
		assert_int_equal(read_text(wrong[i], &a, &err), ERR_INTERNAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_input_has_its_place),
		cmocka_unit_test(what_is_not_there_is_not_named),
		cmocka_unit_test(wrong_lists_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
