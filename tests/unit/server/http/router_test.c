/* SPDX-License-Identifier: Apache-2.0
 * From a request target to a route's row and its parameters. */
#include "server/http/router.h"
#include "server/http/target.h"
#include "tests/support/check.h"

#include <string.h>

static const struct route routes[] = {
	{ "GET", "/v1/jobs", "list", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
	{ "POST", "/v1/jobs", "create", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
	{ "GET", "/v1/jobs/{id}", "get", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
	{ "GET", "/v1/jobs/last", "last", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
	{ "POST", "/v1/jobs/{id}/cancel", "cancel", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
	{ "GET", "/v1/models/{id}/files/{name}", "file", SCOPE_PUBLIC, BODY_NONE, 0, 0, NULL },
};

struct found {
	struct arena arena;
	struct request_data data;
	struct request req;
	char allow[ROUTER_ALLOW_MAX];
	struct err err;
};

static int find(struct found *f, const char *method, const char *target)
{
	memset(f, 0, sizeof(*f));
	arena_init(&f->arena, 64 * 1024);
	f->req.daemon_private = &f->data;
	int r = target_parse(&f->arena, target, &f->data, &f->req.path, &f->err);
	if (r == 0)
		r = router_match(
			routes, ARRAY_LEN(routes), method, &f->data, &f->arena, &f->req, f->allow, &f->err);
	return r;
}

static void finds_rows_and_parameters(void **state)
{
	(void)state;
	static const struct {
		const char *method, *target, *operation;
	} cases[] = {
		{ "GET", "/v1/jobs", "list" },
		{ "HEAD", "/v1/jobs?limit=2", "list" },
		{ "POST", "/v1/jobs", "create" },
		{ "GET", "/v1/jobs/job_1", "get" },
		{ "GET", "/v1/jobs/last", "last" },
		{ "POST", "/v1/jobs/last/cancel", "cancel" },
		{ "GET", "/%76%31/jobs", "list" },
	};
	struct found f;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(find(&f, cases[i].method, cases[i].target), 0);
		assert_string_equal(f.req.route->operation_id, cases[i].operation);
		arena_finish(&f.arena);
	}
	assert_int_equal(find(&f, "GET", "/v1/models/m_1/files/a%2Fb%20c.safetensors"), 0);
	assert_string_equal(request_param(&f.req, "id"), "m_1");
	assert_string_equal(request_param(&f.req, "name"), "a/b c.safetensors");
	assert_null(request_param(&f.req, "other"));
	arena_finish(&f.arena);
}

static void an_encoded_slash_separates_nothing(void **state)
{
	(void)state;
	struct found f;
	assert_int_equal(find(&f, "GET", "/v1%2fjobs"), ERR_NOT_FOUND);
	arena_finish(&f.arena);
	assert_int_equal(find(&f, "GET", "/v1/jobs%2Fjob_1"), ERR_NOT_FOUND);
	arena_finish(&f.arena);
}

static void misses(void **state)
{
	(void)state;
	static const struct {
		const char *method, *target;
		int code;
	} cases[] = {
		{ "GET", "/", ERR_NOT_FOUND },
		{ "GET", "/v1/jobs/", ERR_NOT_FOUND },
		{ "GET", "/v1//jobs", ERR_NOT_FOUND },
		{ "GET", "/v1/jobs/..", ERR_NOT_FOUND },
		{ "GET", "/v1/jobs/%2e%2E", ERR_NOT_FOUND },
		{ "GET", "/v1/jobs/.", ERR_NOT_FOUND },
		{ "GET", "/V1/jobs", ERR_NOT_FOUND },
		{ "GET", "/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q", ERR_NOT_FOUND },
		{ "DELETE", "/v1/jobs", ERR_METHOD },
		{ "get", "/v1/jobs", ERR_METHOD },
		{ "GET", "/v1/jobs/a/cancel", ERR_METHOD },
		{ "GET", "v1/jobs", ERR_INVALID_REQUEST },
		{ "GET", "http://a/v1/jobs", ERR_INVALID_REQUEST },
		{ "GET", "*", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs%00", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/a%0d%0a", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/a%7f", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/%ff", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/%", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/%4", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/%4/", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/%zz", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/\x01", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs/a b", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs#x", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs?a=%00", ERR_INVALID_REQUEST },
		{ "GET", "/v1/jobs?a=1&a=2", ERR_INVALID_VALUE },
	};
	struct found f;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int code = find(&f, cases[i].method, cases[i].target);
		if (code != cases[i].code)
			print_error("%s %s\n", cases[i].method, cases[i].target);
		assert_int_equal(code, cases[i].code);
		arena_finish(&f.arena);
	}
	assert_int_equal(find(&f, "DELETE", "/v1/jobs"), ERR_METHOD);
	assert_string_equal(f.allow, "GET, HEAD, POST");
	arena_finish(&f.arena);
}

static void queries(void **state)
{
	(void)state;
	struct found f;
	int64_t limit = 0;
	assert_int_equal(
		find(&f, "GET", "/v1/jobs?metadata%5Bteam%5D=n+l%2Bp&limit=20&x[]=1&x[]=2&flag&&e="), 0);
	assert_string_equal(request_query(&f.req, "metadata[team]"), "n l+p");
	assert_string_equal(request_query(&f.req, "flag"), "");
	assert_string_equal(request_query(&f.req, "e"), "");
	assert_null(request_query(&f.req, "none"));
	assert_int_equal(f.data.query_count, 6);
	assert_int_equal(request_query_i64(&f.req, "limit", 1, 100, 7, &limit, &f.err), 0);
	assert_int_equal(limit, 20);
	assert_int_equal(request_query_i64(&f.req, "none", 1, 100, 7, &limit, &f.err), 0);
	assert_int_equal(limit, 7);
	assert_int_equal(
		request_query_i64(&f.req, "limit", 1, 10, 7, &limit, &f.err), ERR_INVALID_VALUE);
	assert_string_equal(f.err.param, "limit");
	arena_finish(&f.arena);
}

static bool wants_stream(const char *accept)
{
	struct request_data d = { .headers = { { "ACCEPT", accept } }, .header_count = 1 };
	struct request r = { .daemon_private = &d };
	return request_wants_stream(&r);
}

static void accepts(void **state)
{
	(void)state;
	assert_true(wants_stream("text/event-stream"));
	assert_true(wants_stream("application/json, Text/Event-Stream;q=0.5"));
	assert_false(wants_stream("application/json"));
	assert_false(wants_stream("text/event-streams"));
	assert_false(wants_stream("*/*"));
	assert_false(wants_stream(""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_rows_and_parameters),
		cmocka_unit_test(an_encoded_slash_separates_nothing),
		cmocka_unit_test(misses),
		cmocka_unit_test(queries),
		cmocka_unit_test(accepts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
