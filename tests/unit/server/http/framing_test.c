/* SPDX-License-Identifier: Apache-2.0
 * Framing rules on header lists, and the check that the library's pointers cover the block. */
#include "server/http/framing.h"
#include "tests/support/check.h"

#include <string.h>

enum { HEADERS_MAX = 8 };

#define NV(n, v) ((struct name_value){ .name = (n), .value = (v) })

static int check(const char *version, struct name_value a, struct name_value b, struct framing *ret)
{
	struct name_value list[3] = { NV("Host", "yard:8080") };
	int count = 1;
	struct err err = { 0 };
	if (a.name)
		list[count++] = a;
	if (b.name)
		list[count++] = b;
	return framing_check("POST", version, list, count, ret, &err);
}

#define NONE NV(NULL, NULL)

static void lengths(void **state)
{
	(void)state;
	struct framing f;
	assert_int_equal(check("HTTP/1.1", NONE, NONE, &f), 0);
	assert_int_equal(f.content_length, -1);
	assert_false(f.chunked);
	assert_int_equal(check("HTTP/1.1", NV("content-length", "12"), NONE, &f), 0);
	assert_int_equal(f.content_length, 12);
	assert_int_equal(check("HTTP/1.1", NV("Transfer-Encoding", "Chunked"), NONE, &f), 0);
	assert_true(f.chunked);
	assert_int_equal(check("HTTP/1.1", NV("Expect", "100-Continue"), NONE, &f), 0);
	assert_true(f.expects_continue);
	static const char *const bad[] = { "", "+1", "-1", " 1", "1 ", "0x1", "1,1", "1, 1",
		"9223372036854775808", "1.0" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(
			check("HTTP/1.1", NV("Content-Length", bad[i]), NONE, &f), ERR_BAD_FRAMING);
}

static void two_readings_are_refused(void **state)
{
	(void)state;
	struct framing f;
	static const char *const single[] = { "Host", "Content-Length", "Transfer-Encoding",
		"Authorization", "authorization", "Content-Type", "Expect", "Idempotency-Key" };
	for (size_t i = 0; i < ARRAY_LEN(single); i++)
		assert_int_equal(
			check("HTTP/1.1", NV(single[i], "1"), NV(single[i], "1"), &f), ERR_BAD_FRAMING);
	assert_int_equal(
		check("HTTP/1.1", NV("Content-Length", "1"), NV("Transfer-Encoding", "chunked"), &f),
		ERR_BAD_FRAMING);
	static const char *const codings[] = { "gzip", "identity", "gzip, chunked", "chunked, chunked",
		"xchunked", "chunked;x", "" };
	for (size_t i = 0; i < ARRAY_LEN(codings); i++)
		assert_int_equal(
			check("HTTP/1.1", NV("Transfer-Encoding", codings[i]), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(
		check("HTTP/1.0", NV("Transfer-Encoding", "chunked"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.2", NONE, NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("Expect", "200-ok"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("X y", "1"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("X ", "1"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("X", "a\rb"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("X", "a\x7f"), NONE, &f), ERR_BAD_FRAMING);
	assert_int_equal(check("HTTP/1.1", NV("X", "a\tb \xc3\xa4"), NONE, &f), 0);
}

static void host_is_required_and_plain(void **state)
{
	(void)state;
	struct framing f;
	struct err err = { 0 };
	struct name_value bad = NV("Host", "a b");
	assert_int_equal(framing_check("GET", "HTTP/1.1", NULL, 0, &f, &err), ERR_BAD_FRAMING);
	assert_int_equal(framing_check("GET", "HTTP/1.0", NULL, 0, &f, &err), 0);
	assert_int_equal(framing_check("GET", "HTTP/1.1", &bad, 1, &f, &err), ERR_BAD_FRAMING);
	bad.value = "a/../b";
	assert_int_equal(framing_check("GET", "HTTP/1.1", &bad, 1, &f, &err), ERR_BAD_FRAMING);
	bad.value = "[::1]:80";
	assert_int_equal(framing_check("GET", "HTTP/1.1", &bad, 1, &f, &err), 0);
}

/* Parses a block as the library does (NULs in place of separators and line ends, leading blanks of
 * values skipped) and checks it. */
static int check_block(const char *text, size_t bytes)
{
	char block[512];
	struct name_value headers[HEADERS_MAX];
	int count = 0;
	struct err err = { 0 };
	assert_true(bytes < sizeof(block));
	memcpy(block, text, bytes);
	char *end = block + bytes;
	char *line = block;
	struct framing_block b = { .bytes = bytes };
	for (int n = 0; line < end; n++) {
		char *lf = memchr(line, '\n', (size_t)(end - line));
		assert_non_null(lf);
		char *stop = lf > line && lf[-1] == '\r' ? lf - 1 : lf;
		for (char *p = stop; p <= lf; p++)
			*p = '\0';
		if (n == 0) {
			char *space = memchr(line, ' ', (size_t)(lf - line));
			*space = '\0';
			b.method = line;
			b.target = space + 1;
			char *last = memrchr(space + 1, ' ', (size_t)(stop - space - 1));
			*last = '\0';
			b.target_len = strlen(b.target);
			b.version = last + 1;
		} else if (stop > line) {
			char *colon = memchr(line, ':', (size_t)(stop - line));
			assert_non_null(colon);
			*colon = '\0';
			char *value = colon + 1;
			while (*value == ' ' || *value == '\t')
				value++;
			assert_true(count < HEADERS_MAX);
			headers[count++] = NV(line, value);
		}
		line = lf + 1;
	}
	return framing_check_block(&b, headers, count, &err);
}

#define BLOCK(text) check_block(text, sizeof(text) - 1)

static void the_block_is_covered(void **state)
{
	(void)state;
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\n\r\n"), 0);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost:a \t\r\nX: \t \r\nY:\r\n\r\n"), 0);
	assert_int_equal(BLOCK("GET /\0x HTTP/1.1\r\nHost: a\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GE\0T / HTTP/1.1\r\nHost: a\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\0x\r\nHost: a\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHo\0st: a\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\nHost: a\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost: a\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"), ERR_BAD_FRAMING);
	assert_int_equal(BLOCK("GET / HTTP/1.1\r\nHost: a\r\n\n"), ERR_BAD_FRAMING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lengths),
		cmocka_unit_test(two_readings_are_refused),
		cmocka_unit_test(host_is_required_and_plain),
		cmocka_unit_test(the_block_is_covered),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
