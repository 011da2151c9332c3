/* SPDX-License-Identifier: Apache-2.0
 * Of cmocka what the tests of operations and of the engine use, for machines with a GPU that have
 * nothing else (tests/gpu/meson.build): the same names, groups and printed lines, no mocks. A test
 * that fails leaves it by longjmp. plain_test.c holds it. One thread. */
#pragma once

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
	const char *name;
	void (*test_func)(void **state);
	int (*setup_func)(void **state), (*teardown_func)(void **state);
	void *initial_state;
};

#define cmocka_unit_test(f)     \
	{                           \
#f, f, NULL, NULL, NULL \
	}
#define cmocka_unit_test_setup_teardown(f, setup, teardown) \
	{                                                       \
#f, f, setup, teardown, NULL                        \
	}

enum { PLAIN_RUNS, PLAIN_FAILED, PLAIN_SKIPPED };

static jmp_buf plain_out;

#define PLAIN_FN static __attribute__((unused))

PLAIN_FN __attribute__((format(printf, 1, 2))) void print_message(const char *form, ...)
{
	va_list args;
	va_start(args, form);
	(void)vprintf(form, args);
	va_end(args);
	(void)fflush(stdout);
}

PLAIN_FN __attribute__((format(printf, 1, 2))) void print_error(const char *form, ...)
{
	va_list args;
	va_start(args, form);
	(void)vfprintf(stderr, form, args);
	va_end(args);
}

PLAIN_FN __attribute__((format(printf, 3, 4), noreturn)) void plain_fail(
	const char *file, int line, const char *form, ...)
{
	va_list args;
	va_start(args, form);
	(void)vfprintf(stderr, form, args);
	va_end(args);
	(void)fprintf(stderr, "\n%s:%d: error: Failure!\n", file, line);
	longjmp(plain_out, PLAIN_FAILED);
}

#define fail_msg(...) plain_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail() fail_msg("fail()")
#define skip() longjmp(plain_out, PLAIN_SKIPPED)

#define PLAIN_CHECK(good, ...)     \
	do {                           \
		if (!(good))               \
			fail_msg(__VA_ARGS__); \
	} while (0)
#define assert_true(x) PLAIN_CHECK((x), "%s", #x)
#define assert_false(x) PLAIN_CHECK(!(x), "not: %s", #x)
#define assert_non_null(p) PLAIN_CHECK((const void *)(p) != NULL, "%s is NULL", #p)
#define assert_null(p) PLAIN_CHECK((const void *)(p) == NULL, "%s is not NULL", #p)
#define assert_ptr_equal(a, b) \
	PLAIN_CHECK((const void *)(a) == (const void *)(b), "%s is not %s", #a, #b)

PLAIN_FN void plain_equal(intmax_t a, intmax_t b, bool want, const char *file, int line)
{
	if ((a == b) != want)
		plain_fail(file, line, "%" PRIdMAX " %s %" PRIdMAX, a, want ? "!=" : "==", b);
}
#define assert_int_equal(a, b) plain_equal((intmax_t)(a), (intmax_t)(b), true, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) \
	plain_equal((intmax_t)(a), (intmax_t)(b), false, __FILE__, __LINE__)

PLAIN_FN void plain_in_range(uintmax_t x, uintmax_t min, uintmax_t max, const char *file, int line)
{
	if (x < min || x > max)
		plain_fail(file, line, "%" PRIuMAX " is not within %" PRIuMAX "-%" PRIuMAX, x, min, max);
}
#define assert_in_range(x, min, max) \
	plain_in_range((uintmax_t)(x), (uintmax_t)(min), (uintmax_t)(max), __FILE__, __LINE__)

PLAIN_FN void plain_text(const char *a, const char *b, bool want, const char *file, int line)
{
	if ((strcmp(a, b) == 0) != want)
		plain_fail(file, line, "\"%s\" %s \"%s\"", a, want ? "!=" : "==", b);
}
#define assert_string_equal(a, b) plain_text(a, b, true, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) plain_text(a, b, false, __FILE__, __LINE__)

PLAIN_FN void plain_memory(
	const void *a, const void *b, size_t bytes, bool want, const char *file, int line)
{
	const unsigned char *x = a, *y = b;
	size_t at = 0;
	while (at < bytes && x[at] == y[at])
		at++;
	if (want && at < bytes)
		plain_fail(file, line, "byte %zu of %zu: 0x%02x != 0x%02x", at, bytes, x[at], y[at]);
	if (!want && at == bytes)
		plain_fail(file, line, "%zu bytes are the same", bytes);
}
#define assert_memory_equal(a, b, bytes) plain_memory(a, b, bytes, true, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, bytes) plain_memory(a, b, bytes, false, __FILE__, __LINE__)

PLAIN_FN int plain_run(const struct CMUnitTest *t)
{
	void *state = t->initial_state;
	volatile int outcome = PLAIN_RUNS;
	(void)printf("[ RUN      ] %s\n", t->name);
	(void)fflush(stdout);
	if (t->setup_func && t->setup_func(&state) != 0) {
		print_error("%s: the setup failed\n", t->name);
		outcome = PLAIN_FAILED;
	} else {
		int how = setjmp(plain_out);
		if (how == 0)
			t->test_func(&state);
		else
			outcome = how;
		if (t->teardown_func && t->teardown_func(&state) != 0) {
			print_error("%s: the teardown failed\n", t->name);
			outcome = PLAIN_FAILED;
		}
	}
	(void)printf("[  %s ] %s\n",
		outcome == PLAIN_RUNS         ? "     OK"
			: outcome == PLAIN_FAILED ? "FAILED "
									  : "SKIPPED",
		t->name);
	(void)fflush(stdout);
	return outcome;
}

/* How many failed. */
PLAIN_FN int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests,
	size_t count, int (*setup)(void **state), int (*teardown)(void **state))
{
	int failed = 0, passed = 0;
	void *state = NULL;
	(void)printf("[==========] %s: Running %zu test(s).\n", group, count);
	if (setup && setup(&state) != 0) {
		print_error("%s: the group's setup failed\n", group);
		return (int)count;
	}
	for (size_t i = 0; i < count; i++) {
		struct CMUnitTest one = tests[i];
		if (!one.initial_state)
			one.initial_state = state;
		int outcome = plain_run(&one);
		failed += outcome == PLAIN_FAILED;
		passed += outcome == PLAIN_RUNS;
	}
	if (teardown && teardown(&state) != 0) {
		print_error("%s: the group's teardown failed\n", group);
		failed++;
	}
	(void)printf("[  PASSED  ] %d test(s).\n", passed);
	if (failed > 0)
		(void)printf("[  FAILED  ] %s: %d test(s)\n", group, failed);
	(void)fflush(stdout);
	return failed;
}
#define cmocka_run_group_tests(tests, setup, teardown) \
	_cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
