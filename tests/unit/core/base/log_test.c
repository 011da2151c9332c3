/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/log.c by reading what reaches standard error; the lines are read back with our
 * own JSON reader. */
#include "core/base/log.h"
#include "core/json/reader.h"
#include "tests/support/check.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { CAPTURE_MAX = 4 * 1024 * 1024 };

/* Runs fn with standard error in a file and returns what was written (malloc'ed). */
static char *capture(void (*fn)(void))
{
	char path[] = "/tmp/trainyard-log-test.XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	(void)unlink(path);
	int saved = dup(STDERR_FILENO);
	assert_true(dup2(fd, STDERR_FILENO) >= 0);
	fn();
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	(void)close(saved);
	char *text = calloc(1, CAPTURE_MAX);
	assert_non_null(text);
	assert_true(pread(fd, text, CAPTURE_MAX - 1, 0) >= 0);
	(void)close(fd);
	return text;
}

static struct json_doc *parse_line(const char *line, size_t len)
{
	struct json_doc *doc = NULL;
	struct err err = { 0 };
	if (json_doc_parse(line, len, 1 << 20, &doc, &err) < 0)
		fail_msg("%s in: %.*s", err.message, (int)len, line);
	return doc;
}

static void emit_all_kinds(void)
{
	log_setup("trainyard-test", LOG_INFO);
	log_debug("not.written");
	log_set_request_id("req_1");
	log_warn("job.odd", LOG_STR("text", "a\"b\\c\n\x01\xFF\xC3\xA9"), LOG_STR("none", NULL),
		LOG_INT("i", INT64_MIN), LOG_F64("f", 0.25), LOG_F64("nan", NAN), LOG_BOOL("yes", true));
	log_set_request_id(NULL);
	log_info("plain");
}

static void lines_are_json(void **state)
{
	cleanup(freep) char *text = capture(emit_all_kinds);
	char *end = strchr(text, '\n');
	assert_non_null(end);
	cleanup(json_doc_freep) struct json_doc *doc = parse_line(text, (size_t)(end - text));
	const struct json_val *root = json_doc_root(doc);
	assert_string_equal(json_str_or(json_get(root, "level"), ""), "warn");
	assert_string_equal(json_str_or(json_get(root, "program"), ""), "trainyard-test");
	assert_string_equal(json_str_or(json_get(root, "event"), ""), "job.odd");
	assert_string_equal(json_str_or(json_get(root, "request_id"), ""), "req_1");
	assert_string_equal(
		json_str_or(json_get(root, "text"), ""), "a\"b\\c\n\x01\xEF\xBF\xBD\xC3\xA9");
	assert_null(json_get(root, "none"));
	assert_true(json_i64_or(json_get(root, "i"), 0) == INT64_MIN);
	assert_true(json_f64_or(json_get(root, "f"), 0) == 0.25);
	assert_null(json_get(root, "nan"));
	assert_true(json_bool_or(json_get(root, "yes"), false));
	assert_int_equal(strlen(json_str_or(json_get(root, "time"), "")), 24);

	cleanup(json_doc_freep) struct json_doc *second =
		parse_line(end + 1, (size_t)(strchr(end + 1, '\n') - end - 1));
	assert_null(json_get(json_doc_root(second), "request_id"));
	assert_null(strchr(strchr(end + 1, '\n') + 1, '\n'));
}

static char long_text[20000];

static void emit_too_much(void)
{
	memset(long_text, '\x01', sizeof(long_text) - 1);
	log_info("long", LOG_STR("a", long_text), LOG_STR("b", "x"));
	memset(long_text, 'x', sizeof(long_text) - 1);
	log_info("cut", LOG_STR("a", long_text), LOG_STR("b", "x"));
}

static void too_long_lines_stay_json(void **state)
{
	cleanup(freep) char *text = capture(emit_too_much);
	char *end = strchr(text, '\n');
	assert_true(end - text < 4096);
	cleanup(json_doc_freep) struct json_doc *doc = parse_line(text, (size_t)(end - text));
	assert_true(json_bool_or(json_get(json_doc_root(doc), "truncated"), false));
	cleanup(json_doc_freep) struct json_doc *second =
		parse_line(end + 1, (size_t)(strchr(end + 1, '\n') - end - 1));
	assert_string_equal(json_str_or(json_get(json_doc_root(second), "b"), ""), "x");
	assert_int_equal(strlen(json_str_or(json_get(json_doc_root(second), "a"), "")), 1024 + 3);
}

enum { THREADS = 4, LINES = 500 };

static void *emit_many(void *arg)
{
	log_set_request_id(arg);
	for (int i = 0; i < LINES; i++)
		log_info("from.thread", LOG_STR("id", arg), LOG_INT("i", i));
	return NULL;
}

static void emit_from_threads(void)
{
	static char names[THREADS][8];
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "req_%d", i);
		assert_int_equal(pthread_create(&threads[i], NULL, emit_many, names[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		(void)pthread_join(threads[i], NULL);
}

static void threads_do_not_mix(void **state)
{
	cleanup(freep) char *text = capture(emit_from_threads);
	int lines = 0;
	for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
		cleanup(json_doc_freep) struct json_doc *doc = parse_line(line, (size_t)(end - line));
		const struct json_val *root = json_doc_root(doc);
		assert_string_equal(
			json_str_or(json_get(root, "id"), ""), json_str_or(json_get(root, "request_id"), "-"));
	}
	assert_int_equal(lines, THREADS * LINES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_are_json),
		cmocka_unit_test(too_long_lines_stay_json),
		cmocka_unit_test(threads_do_not_mix),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
