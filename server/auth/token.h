/* SPDX-License-Identifier: Apache-2.0
 * Verifies JWTs. The library checks signatures only; everything else is checked here, because it
 * accepts HMACs made with a public key, expired tokens, and anything at all without a key. Keys are
 * read once; verifying is thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/clock.h"
#include "core/base/err.h"
#include "server/auth/principal.h"

#include <stdint.h>

enum {
	TOKEN_BYTES_MAX = 8 * 1024,
	TOKEN_KEYS_MAX = 8,
	TOKEN_KEY_FILE_MAX = 16 * 1024,
	TOKEN_LEEWAY_MAX_S = 60,
	TOKEN_TEXT_MAX = 256,
};

struct token_verifier;

/* One key, one algorithm. */
struct token_key {
	const char *kid;       /* "" = tokens without `kid` */
	const char *algorithm; /* "RS256" or "ES256" */
	const char *pem;       /* public key */
};

struct token_config {
	const char *issuer;
	const char *audience;
	int64_t leeway_s;
	const struct token_key *keys;
	int key_count;
};

/* Copies what it needs. INVALID_VALUE when something is missing or not a public key. */
int token_verifier_create(const struct token_config *config, const struct clock *clock,
	struct token_verifier **ret, struct err *err) must_check;
void token_verifier_destroy(struct token_verifier *v);
/* Reads a PEM file into malloc'ed text. */
int token_read_key_file(const char *path, char **ret_pem, struct err *err) must_check;

/* UNAUTHENTICATED unless every check holds: known kid, that key's algorithm, signature, exp, iss,
 * aud, nbf and iat when present, sub, role (owner, member, operator) and, for the first two,
 * tenant_id. */
int token_verify(const struct token_verifier *v, const char *token, struct principal *ret,
	struct err *err) must_check;
