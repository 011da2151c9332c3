/* SPDX-License-Identifier: Apache-2.0
 * The multipart parser: every body in every slicing gives the same parts, every malformed one is
 * refused in every slicing. */
#include "core/base/buf.h"
#include "server/http/multipart_parser.h"
#include "tests/support/check.h"

#include <string.h>

enum { LOG_MAX = 64 * 1024 };

struct record {
	struct buf log; /* "[name|filename|" data "]" for each part */
};

static int on_begin(void *ctx, const struct multipart_part *part, struct err *err)
{
	struct record *r = ctx;
	(void)err;
	return buf_printf(&r->log, "[%s|%s|", part->name, part->has_filename ? part->filename : "-");
}

static int on_data(void *ctx, const char *data, size_t bytes, struct err *err)
{
	struct record *r = ctx;
	(void)err;
	assert_true(bytes > 0);
	return buf_append(&r->log, data, bytes);
}

static int on_end(void *ctx, struct err *err)
{
	struct record *r = ctx;
	(void)err;
	return buf_char(&r->log, ']');
}

static const struct multipart_sink sink = { on_begin, on_data, on_end };

/* Feeds body cut at the given places (ascending; 0 = no cut). */
static int parse(const char *body, size_t len, size_t cut1, size_t cut2, struct record *r)
{
	struct multipart_parser p;
	struct err err = { 0 };
	buf_reset(&r->log);
	multipart_parser_init(&p, "XbX", &sink, r);
	const size_t cuts[] = { 0, cut1, cut2, len };
	for (int i = 0; i < 3; i++) {
		if (cuts[i + 1] <= cuts[i])
			continue;
		int rc = multipart_parser_feed(&p, body + cuts[i], cuts[i + 1] - cuts[i], &err);
		if (rc < 0)
			return rc;
	}
	return multipart_parser_end(&p, &err);
}

/* One byte at a time. */
static int parse_bytes(const char *body, size_t len, struct record *r)
{
	struct multipart_parser p;
	struct err err = { 0 };
	buf_reset(&r->log);
	multipart_parser_init(&p, "XbX", &sink, r);
	for (size_t i = 0; i < len; i++) {
		int rc = multipart_parser_feed(&p, body + i, 1, &err);
		if (rc < 0)
			return rc;
	}
	return multipart_parser_end(&p, &err);
}

static void check_all_splits(const char *body, size_t len, const char *want, size_t want_len)
{
	struct record r;
	buf_init(&r.log, LOG_MAX);
	assert_int_equal(parse_bytes(body, len, &r), 0);
	assert_int_equal(r.log.len, want_len);
	assert_memory_equal(buf_cstr(&r.log), want, want_len);
	for (size_t i = 0; i < len; i++) {
		for (size_t j = i; j < len; j++) {
			assert_int_equal(parse(body, len, i, j, &r), 0);
			assert_int_equal(r.log.len, want_len);
			assert_memory_equal(buf_cstr(&r.log), want, want_len);
		}
	}
	buf_finish(&r.log);
}

#define SPLITS(body, want) check_all_splits(body, sizeof(body) - 1, want, sizeof(want) - 1)

static void any_slicing_gives_the_same(void **state)
{
	(void)state;
	SPLITS("--XbX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n"
		   "Content-Type: application/octet-stream\r\n\r\nhello\r\n--XbX\r\n"
		   "Content-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--XbX--\r\n",
		"[file|a.bin|hello][purpose|-|fine-tune]");
}

static void content_may_look_like_a_delimiter(void **state)
{
	(void)state;
	SPLITS("--XbX\r\nContent-Disposition: form-data; name=f; filename=a\r\n\r\n"
		   "\r\n--Xb\r\n--XbY\r\r\n--X\r\n\r\n--\r\n--XbX--",
		"[f|a|\r\n--Xb\r\n--XbY\r\r\n--X\r\n\r\n--]");
	SPLITS("--XbX\r\nContent-Disposition: form-data; name=f; filename=a\r\n\r\n"
		   "--XbX\r\r\n-\0\r\n--XbX--",
		"[f|a|--XbX\r\r\n-\0]");
}

static void empty_parts_preamble_and_epilogue(void **state)
{
	(void)state;
	SPLITS(
		"preamble --XbX\r\n--XbX  \r\nContent-Disposition:form-data;name=\"a\"\r\n\r\n\r\n--XbX\r\n"
		"content-disposition: form-data; name=\"b\"; filename=\"\"\r\n\r\n\r\n--XbX--junk",
		"[a|-|][b||]");
}

static void names_are_unquoted(void **state)
{
	(void)state;
	SPLITS("--XbX\r\nContent-Disposition: form-data; name=\"expires_after[anchor]\"\r\n\r\nx\r\n"
		   "--XbX\r\nContent-Disposition: form-data; name=\"q\"; filename=\"a\\\"b;\\\\c\"\r\n"
		   "\r\ny\r\n--XbX--",
		"[expires_after[anchor]|-|x][q|a\"b;\\c|y]");
}

static void malformed_is_refused_in_any_slicing(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		"--XbX",
		"--XbX--x\r\n--XbY",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\n\r\nx",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--XbX",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--XbX-",
		"--XbXx\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--XbX--",
		"--XbX\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nX: y\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=\"a\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b"
		"\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\n folded\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=a\nX: y\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64"
		"\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nno colon\r\n\r\nx\r\n--XbX--",
		"--XbX\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\nx\r\n--XbX--",
	};
	struct record r;
	buf_init(&r.log, LOG_MAX);
	/* The third is complete: what follows the closing delimiter does not count. */
	for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
		size_t len = strlen(bad[b]);
		int want = b == 2 ? 0 : ERR_INVALID_REQUEST;
		for (size_t i = 0; i < len; i++)
			assert_int_equal(parse(bad[b], len, i, i, &r), want);
		assert_int_equal(parse_bytes(bad[b], len, &r), want);
	}
	buf_finish(&r.log);
}

static void limits_hold(void **state)
{
	(void)state;
	struct record r;
	struct buf body;
	buf_init(&r.log, LOG_MAX);
	buf_init(&body, LOG_MAX);
	(void)buf_str(&body, "--XbX\r\nX: ");
	for (int i = 0; i < MULTIPART_HEADERS_MAX; i++)
		(void)buf_char(&body, 'y');
	assert_int_equal(parse(body.data, body.len, 0, 0, &r), ERR_TOO_LARGE);
	buf_reset(&body);
	for (int i = 0; i <= MULTIPART_PARTS_MAX; i++)
		(void)buf_printf(
			&body, "%s--XbX\r\nContent-Disposition: form-data; name=a\r\n\r\n", i ? "\r\n" : "");
	(void)buf_str(&body, "\r\n--XbX--");
	assert_int_equal(parse(body.data, body.len, 0, 0, &r), ERR_TOO_LARGE);
	buf_finish(&body);
	buf_finish(&r.log);
}

static void boundaries(void **state)
{
	(void)state;
	static const struct {
		const char *type;
		int code;
		const char *boundary;
	} cases[] = {
		{ "multipart/form-data; boundary=abc", 0, "abc" },
		{ "Multipart/Form-Data ; charset=utf-8 ; boundary=\"a b'c\"", 0, "a b'c" },
		{ NULL, ERR_MEDIA_TYPE, NULL },
		{ "application/json", ERR_MEDIA_TYPE, NULL },
		{ "multipart/mixed; boundary=abc", ERR_MEDIA_TYPE, NULL },
		{ "multipart/form-data", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary=", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary=a; boundary=b", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary=\"a", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary=\"a \"", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary=a<b", ERR_INVALID_REQUEST, NULL },
		{ "multipart/form-data; boundary="
		  "12345678901234567890123456789012345678901234567890123456789012345678901",
			ERR_INVALID_REQUEST, NULL },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char boundary[MULTIPART_BOUNDARY_MAX + 1] = "";
		struct err err = { 0 };
		assert_int_equal(multipart_boundary(cases[i].type, boundary, &err), cases[i].code);
		if (cases[i].boundary)
			assert_string_equal(boundary, cases[i].boundary);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_slicing_gives_the_same),
		cmocka_unit_test(content_may_look_like_a_delimiter),
		cmocka_unit_test(empty_parts_preamble_and_epilogue),
		cmocka_unit_test(names_are_unquoted),
		cmocka_unit_test(malformed_is_refused_in_any_slicing),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(boundaries),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
