/* SPDX-License-Identifier: Apache-2.0
 * JWTs: each line of token_cases.txt, made by make_token_cases.py, and what a verifier refuses to
 * be made of. Argument: the folder of the cases. */
#include "server/auth/token.h"
#include "tests/support/check.h"

#include <string.h>

enum { LINE_MAX_BYTES = 16 * 1024, LEEWAY_S = 30, CASES_MIN = 50 };

static const int64_t now_us = 1800000000LL * 1000000;
static const char *folder;

static char *read_pem(const char *name)
{
	char path[1024];
	char *pem = NULL;
	struct err err = { 0 };
	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	assert_int_equal(token_read_key_file(path, &pem, &err), 0);
	return pem;
}

static void each_case(void **state)
{
	(void)state;
	struct clock_manual clock;
	struct token_verifier *v = NULL;
	struct err err = { 0 };
	char *rsa = read_pem("rsa.pub.pem");
	char *ec = read_pem("ec.pub.pem");
	const struct token_key keys[] = { { "rsa-1", "RS256", rsa }, { "ec-1", "ES256", ec } };
	const struct token_config config = { "https://issuer", "trainyard", LEEWAY_S, keys, 2 };
	clock_manual_init(&clock, now_us);
	assert_int_equal(token_verifier_create(&config, &clock.base, &v, &err), 0);
	char path[1024];
	(void)snprintf(path, sizeof(path), "%s/token_cases.txt", folder);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	char *line = malloc(LINE_MAX_BYTES);
	int cases = 0;
	while (fgets(line, LINE_MAX_BYTES, f)) {
		line[strcspn(line, "\n")] = '\0';
		char *what = strchr(line, '|');
		if (line[0] == '#' || !what)
			continue;
		char *token = strchr(what + 1, '|') + 1;
		struct principal p = { .role = ROLE_NONE };
		int want = strncmp(line, "ok|", 3) == 0 ? 0 : ERR_UNAUTHENTICATED;
		int got = token_verify(v, token, &p, &err);
		if (got != want)
			print_error("%.80s: %s\n", line, err.message);
		assert_int_equal(got, want);
		assert_true((p.role != ROLE_NONE) == (want == 0));
		cases++;
	}
	assert_true(cases >= CASES_MIN);
	(void)fclose(f);
	free(line);
	free(rsa);
	free(ec);
	token_verifier_destroy(v);
}

static void a_verifier_without_a_key_is_not_made(void **state)
{
	(void)state;
	char *rsa = read_pem("rsa.pub.pem");
	const struct token_key good = { "k", "RS256", rsa };
	const struct token_key none = { "k", "RS256", NULL };
	const struct token_key empty = { "k", "RS256", "" };
	const struct token_key hs = { "k", "HS256", rsa };
	const struct token_key no_alg = { "k", NULL, rsa };
	const struct token_key twice[] = { good, good };
	const struct token_config bad[] = {
		{ "i", "a", 30, &none, 1 },
		{ "i", "a", 30, &empty, 1 },
		{ "i", "a", 30, &hs, 1 },
		{ "i", "a", 30, &no_alg, 1 },
		{ "i", "a", 30, twice, 2 },
		{ "i", "a", 30, &good, 0 },
		{ "i", "a", 61, &good, 1 },
		{ "", "a", 30, &good, 1 },
		{ "i", "", 30, &good, 1 },
		{ NULL, "a", 30, &good, 1 },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct token_verifier *v = NULL;
		struct err err = { 0 };
		assert_int_equal(
			token_verifier_create(&bad[i], clock_system(), &v, &err), ERR_INVALID_VALUE);
		assert_null(v);
	}
	free(rsa);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_case),
		cmocka_unit_test(a_verifier_without_a_key_is_not_made),
	};
	if (argc != 2)
		return EXIT_FAILURE;
	folder = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
