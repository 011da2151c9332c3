/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/http.c against a server that answers each connection with a given text. */
#include "tests/unit/workers/agent/agent_fixture.h"
#include "tests/unit/workers/agent/server_fixture.h"

#include "core/crypto/digest.h"
#include "workers/agent/http.h"

enum { TIMEOUT_MS = 10000 };

static struct http *client(const struct server *s, const atomic_bool *abandon)
{
	struct http *h = NULL;
	struct err err = { 0 };
	assert_int_equal(http_create(s->url, "ty_key", "", abandon, &h, &err), 0);
	return h;
}

static void a_call_carries_the_key_and_brings_the_reply(void **state)
{
	struct server *s = server_start();
	cleanup(http_destroyp) struct http *h = client(s, NULL);
	struct err err = { 0 };
	cleanup(buf_finish) struct buf reply;
	(void)state;
	buf_init(&reply, 4096);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			http_post(h, "/agent/v1/poll", "{\"a\":1}", 7, TIMEOUT_MS, &reply, &err), 0);
		assert_string_equal(buf_cstr(&reply), "{}");
	}
	assert_non_null(strstr(s->request, "POST /agent/v1/poll HTTP/1.1\r\n"));
	assert_non_null(strstr(s->request, "\r\nAuthorization: Bearer ty_key\r\n"));
	assert_non_null(strstr(s->request, "\r\nContent-Type: application/json\r\n"));
	assert_null(strstr(s->request, "Expect"));
	assert_non_null(strstr(s->request, "\r\n\r\n{\"a\":1}"));
	server_stop(s);
}

static void refusals_keep_their_code(void **state)
{
	static const struct {
		const char *reply;
		int code;
	} cases[] = {
		{ "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n"
		  "{\"error\":{\"code\":\"lease_lost\",\"message\":\"it is gone\"}}",
			ERR_LEASE_LOST },
		{ "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n"
		  "{\"error\":{\"code\":\"residency_refused\"}}  ",
			ERR_RESIDENCY },
		{ "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ERR_NOT_FOUND },
		{ "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>", ERR_UNAVAILABLE },
		{ "HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n", ERR_INVALID_REQUEST },
		{ "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
			ERR_INVALID_REQUEST },
		{ "garbage\r\n\r\n", ERR_NETWORK },
		{ "", ERR_NETWORK },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", ERR_NETWORK },
	};
	struct server *s = server_start();
	cleanup(http_destroyp) struct http *h = client(s, NULL);
	cleanup(buf_finish) struct buf reply;
	(void)state;
	buf_init(&reply, 4096);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err err = { 0 };
		reply_with(s, cases[i].reply);
		int rc = http_post(h, "/x", "{}", 2, TIMEOUT_MS, &reply, &err);
		if (rc != cases[i].code)
			fail_msg("case %zu: %d %s", i, rc, err.message);
	}
	server_stop(s);
}

static void a_reply_beyond_its_limit_is_refused(void **state)
{
	struct server *s = server_start();
	cleanup(http_destroyp) struct http *h = client(s, NULL);
	struct err err = { 0 };
	cleanup(buf_finish) struct buf reply;
	(void)state;
	buf_init(&reply, 8);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789");
	assert_int_equal(http_post(h, "/x", "{}", 2, TIMEOUT_MS, &reply, &err), ERR_NETWORK);
	server_stop(s);
}

static void a_blob_is_taken_only_with_its_hash_and_length(void **state)
{
	struct server *s = server_start();
	cleanup(http_destroyp) struct http *h = client(s, NULL);
	struct err err = { 0 };
	char hex[DIGEST_HEX_MAX];
	const struct http_grant g = { "att_1", 41, "token" };
	const char *path = fixture_path(state, "blob");
	assert_int_equal(digest_hex_of("hello", 5, hex), 0);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
	assert_int_equal(http_fetch(h, &g, hex, 5, path, &err), 0);
	assert_non_null(strstr(s->request, "\r\nX-Attempt-Id: att_1\r\n"));
	assert_non_null(strstr(s->request, "\r\nX-Attempt-Epoch: 41\r\n"));
	assert_non_null(strstr(s->request, "\r\nX-Attempt-Token: token\r\n"));
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO");
	assert_int_equal(http_fetch(h, &g, hex, 5, path, &err), ERR_INVALID_DATA);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell");
	assert_int_equal(http_fetch(h, &g, hex, 5, path, &err), ERR_INVALID_DATA);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!");
	assert_true(http_fetch(h, &g, hex, 5, path, &err) < 0);
	reply_with(s,
		"HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n"
		"{\"error\":{\"code\":\"lease_lost\"}}  ");
	assert_int_equal(http_fetch(h, &g, hex, 5, path, &err), ERR_LEASE_LOST);
	server_stop(s);
}

static void a_blob_is_sent_whole(void **state)
{
	struct server *s = server_start();
	cleanup(http_destroyp) struct http *h = client(s, NULL);
	struct err err = { 0 };
	char hex[DIGEST_HEX_MAX];
	const struct http_grant g = { "att_1", 41, "token" };
	const char *path = fixture_path(state, "out");
	fixture_write(path, "content", 7);
	assert_int_equal(digest_hex_of("content", 7, hex), 0);
	reply_with(s, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}");
	assert_int_equal(http_store(h, &g, hex, 7, path, &err), 0);
	assert_non_null(strstr(s->request, "PUT /agent/v1/blobs/"));
	assert_non_null(strstr(s->request, "\r\nContent-Length: 7\r\n"));
	assert_non_null(strstr(s->request, "\r\n\r\ncontent"));
	assert_int_equal(symlink(path, fixture_path(state, "link")), 0);
	assert_int_equal(http_store(h, &g, hex, 7, fixture_path(state, "link"), &err), ERR_IO);
	server_stop(s);
}

static void an_abandoned_call_ends(void **state)
{
	struct server *s = server_start();
	atomic_bool abandon = true;
	cleanup(http_destroyp) struct http *h = client(s, &abandon);
	struct err err = { 0 };
	cleanup(buf_finish) struct buf reply;
	(void)state;
	buf_init(&reply, 4096);
	reply_with(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
	assert_int_equal(http_post(h, "/x", "{}", 2, TIMEOUT_MS, &reply, &err), ERR_CANCELLED);
	server_stop(s);
}

int main(void)
{
	struct err err = { 0 };
	if (http_global_init(&err) < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_call_carries_the_key_and_brings_the_reply),
		cmocka_unit_test(refusals_keep_their_code),
		cmocka_unit_test(a_reply_beyond_its_limit_is_refused),
		cmocka_unit_test(a_blob_is_taken_only_with_its_hash_and_length),
		cmocka_unit_test(a_blob_is_sent_whole),
		cmocka_unit_test(an_abandoned_call_ends),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
