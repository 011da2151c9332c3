/* SPDX-License-Identifier: Apache-2.0
 * The only user of libjwt. A token is taken apart and its header is compared with the configured
 * key before the library sees it; its claims are read by our strict JSON reader after. */
#include "server/auth/token.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/model/watch_store.h"

#include <jwt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_PARTS = 3, US_PER_S = 1000000 };

static const int64_t max_time_s = 253402300799; /* year 9999 */

struct key {
	char *kid;
	jwt_alg_t algorithm;
	const char *algorithm_name;
	char *pem;
};

struct token_verifier {
	const struct clock *clock;
	char *issuer;
	char *audience;
	int64_t leeway_s;
	struct key keys[TOKEN_KEYS_MAX];
	int key_count;
};

struct part {
	const char *at;
	size_t len;
};

static const struct {
	const char *name;
	jwt_alg_t algorithm;
} algorithms[] = { { "RS256", JWT_ALG_RS256 }, { "ES256", JWT_ALG_ES256 } };

/* ---------------------------------------------------------------- making */

static int add_key(struct token_verifier *v, const struct token_key *from, struct err *err)
{
	struct key *k = &v->keys[v->key_count];
	for (size_t i = 0; i < ARRAY_LEN(algorithms); i++) {
		if (from->algorithm && strcmp(from->algorithm, algorithms[i].name) == 0) {
			k->algorithm = algorithms[i].algorithm;
			k->algorithm_name = algorithms[i].name;
		}
	}
	if (!k->algorithm_name)
		return err_set(err, ERR_INVALID_VALUE, "jwt_algorithm",
			"a JWT key's algorithm must be RS256 or ES256");
	/* Without a key the library would accept everything. */
	if (!from->pem || !strstr(from->pem, "-----BEGIN PUBLIC KEY-----"))
		return err_set(
			err, ERR_INVALID_VALUE, "jwt_key_file", "a JWT key must be a PEM public key");
	for (int i = 0; i < v->key_count; i++) {
		if (strcmp(v->keys[i].kid, from->kid ? from->kid : "") == 0)
			return err_set(err, ERR_INVALID_VALUE, "jwt_key_id", "two JWT keys have the same id");
	}
	k->kid = strdup(from->kid ? from->kid : "");
	k->pem = strdup(from->pem);
	v->key_count++;
	return k->kid && k->pem ? 0 : err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
}

int token_verifier_create(const struct token_config *config, const struct clock *clock,
	struct token_verifier **ret, struct err *err)
{
	if (!config->issuer || !config->issuer[0] || !config->audience || !config->audience[0])
		return err_set(err, ERR_INVALID_VALUE, "jwt_issuer", "JWTs need an issuer and an audience");
	if (config->leeway_s < 0 || config->leeway_s > TOKEN_LEEWAY_MAX_S || config->key_count < 1 ||
		config->key_count > TOKEN_KEYS_MAX)
		return err_set(
			err, ERR_INVALID_VALUE, "jwt_leeway_s", "the JWT leeway or key count is out of range");
	struct token_verifier *v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	v->clock = clock;
	v->leeway_s = config->leeway_s;
	v->issuer = strdup(config->issuer);
	v->audience = strdup(config->audience);
	int r = v->issuer && v->audience ? 0 : err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	for (int i = 0; r == 0 && i < config->key_count; i++)
		r = add_key(v, &config->keys[i], err);
	if (r < 0) {
		token_verifier_destroy(v);
		return r;
	}
	*ret = v;
	return 0;
}

void token_verifier_destroy(struct token_verifier *v)
{
	if (!v)
		return;
	for (int i = 0; i < v->key_count; i++) {
		free(v->keys[i].kid);
		free(v->keys[i].pem);
	}
	free(v->issuer);
	free(v->audience);
	free(v);
}

int token_read_key_file(const char *path, char **ret_pem, struct err *err)
{
	size_t bytes = 0;
	return file_read(path, TOKEN_KEY_FILE_MAX, ret_pem, &bytes, err);
}

/* ---------------------------------------------------------------- verifying */

static int refuse(struct err *err, const char *why)
{
	return err_set(err, ERR_UNAUTHENTICATED, "Authorization", "The token is not valid: %s", why);
}

static bool split(const char *token, struct part ret[static TOKEN_PARTS])
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	for (int i = 0; i < TOKEN_PARTS; i++) {
		ret[i].at = token;
		ret[i].len = strspn(token, allowed);
		token += ret[i].len;
		if (ret[i].len == 0 || *token != (i + 1 < TOKEN_PARTS ? '.' : '\0'))
			return false;
		token++;
	}
	return true;
}

static int base64url_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '-' ? 62 : 63;
}

/* Parses one part as a JSON object. */
static int part_json(const struct part *p, struct json_doc **ret, struct err *err)
{
	cleanup(freep) char *text = malloc(p->len + 1);
	if (!text)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	size_t len = 0;
	unsigned int bits = 0;
	int held = 0;
	for (size_t i = 0; i < p->len; i++) {
		bits = (bits << 6) | (unsigned int)base64url_value(p->at[i]);
		held += 6;
		if (held >= 8) {
			held -= 8;
			text[len++] = (char)((bits >> held) & 0xffu);
		}
	}
	struct err detail = { 0 };
	int r = json_doc_parse(text, len, TOKEN_BYTES_MAX, ret, &detail);
	if (r == ERR_NO_MEMORY)
		return err_set(err, r, NULL, "Out of memory");
	if (r < 0 || json_kind(json_doc_root(*ret)) != JSON_OBJECT)
		return refuse(err, "it is not made of JSON objects");
	return 0;
}

/* The configured key that the header names; nothing in the header can bring another. */
static int find_key(const struct token_verifier *v, const struct json_val *header,
	const struct key **ret, struct err *err)
{
	const char *alg = json_str_or(json_get(header, "alg"), "");
	const char *kid = json_str_or(json_get(header, "kid"), "");
	if (json_get(header, "crit"))
		return refuse(err, "it has critical extensions");
	for (int i = 0; i < v->key_count; i++) {
		if (strcmp(v->keys[i].kid, kid) != 0)
			continue;
		if (strcmp(v->keys[i].algorithm_name, alg) != 0)
			return refuse(err, "its algorithm is not that of the key");
		*ret = &v->keys[i];
		return 0;
	}
	return refuse(err, "its key is not known");
}

static int check_signature(const struct key *k, const char *token, struct err *err)
{
	jwt_t *jwt = NULL;
	int failed = jwt_decode(&jwt, token, (const unsigned char *)k->pem, (int)strlen(k->pem));
	bool ok = !failed && jwt && jwt_get_alg(jwt) == k->algorithm;
	if (jwt)
		jwt_free(jwt);
	return ok ? 0 : refuse(err, "its signature is wrong");
}

/* A NumericDate; false when present and not one. */
static bool read_time(const struct json_val *claims, const char *name, int64_t def, int64_t *ret)
{
	const struct json_val *v = json_get(claims, name);
	*ret = def;
	if (!v)
		return true;
	if (json_kind(v) == JSON_INT)
		*ret = json_i64_or(v, -1);
	else if (json_kind(v) == JSON_REAL && json_f64_or(v, -1.0) < (double)max_time_s)
		*ret = (int64_t)json_f64_or(v, -1.0);
	else
		return false;
	return *ret >= 0 && *ret <= max_time_s;
}

static int check_times(
	const struct token_verifier *v, const struct json_val *claims, struct err *err)
{
	int64_t now_s = clock_wall_us(v->clock) / US_PER_S;
	int64_t exp_s, nbf_s, iat_s;
	if (!json_get(claims, "exp") || !read_time(claims, "exp", 0, &exp_s))
		return refuse(err, "exp is missing or not a time");
	if (!read_time(claims, "nbf", 0, &nbf_s) || !read_time(claims, "iat", 0, &iat_s))
		return refuse(err, "nbf or iat is not a time");
	if (now_s >= exp_s + v->leeway_s)
		return refuse(err, "it has expired");
	if (now_s + v->leeway_s < nbf_s || now_s + v->leeway_s < iat_s)
		return refuse(err, "it is not valid yet");
	return 0;
}

static bool audience_matches(const struct json_val *aud, const char *want)
{
	if (json_kind(aud) == JSON_STR)
		return strcmp(json_str_or(aud, ""), want) == 0;
	for (size_t i = 0; i < json_array_len(aud); i++) {
		if (strcmp(json_str_or(json_array_at(aud, i), ""), want) == 0)
			return true;
	}
	return false;
}

static int read_principal(const struct json_val *claims, struct principal *ret, struct err *err)
{
	struct principal p = { .role = ROLE_NONE };
	const char *sub = json_str_or(json_get(claims, "sub"), "");
	const char *role = json_str_or(json_get(claims, "role"), "");
	const char *tenant = json_str_or(json_get(claims, "tenant_id"), "");
	if (sub[0] == '\0')
		return refuse(err, "sub is missing");
	if (strcmp(role, "owner") == 0)
		p.role = ROLE_OWNER;
	else if (strcmp(role, "member") == 0)
		p.role = ROLE_MEMBER;
	else if (strcmp(role, "operator") == 0)
		p.role = ROLE_OPERATOR;
	else
		return refuse(err, "role is missing or not known");
	if (p.role == ROLE_OPERATOR ? tenant[0] != '\0' : !watch_store_id_ok(tenant))
		return refuse(err, "tenant_id does not fit the role");
	for (size_t i = 0; i < sizeof(p.id) - 1 && sub[i]; i++)
		p.id[i] = sub[i];
	memcpy(p.tenant_id, tenant, strlen(tenant) + 1);
	*ret = p;
	return 0;
}

int token_verify(
	const struct token_verifier *v, const char *token, struct principal *ret, struct err *err)
{
	struct part parts[TOKEN_PARTS];
	cleanup(json_doc_freep) struct json_doc *header = NULL;
	cleanup(json_doc_freep) struct json_doc *payload = NULL;
	const struct key *key = NULL;
	if (strnlen(token, TOKEN_BYTES_MAX + 1) > TOKEN_BYTES_MAX || !split(token, parts))
		return refuse(err, "it does not have three parts");
	int r = part_json(&parts[0], &header, err);
	if (r == 0)
		r = find_key(v, json_doc_root(header), &key, err);
	if (r == 0)
		r = check_signature(key, token, err);
	if (r == 0)
		r = part_json(&parts[1], &payload, err);
	if (r < 0)
		return r;
	const struct json_val *claims = json_doc_root(payload);
	if (strcmp(json_str_or(json_get(claims, "iss"), ""), v->issuer) != 0)
		return refuse(err, "iss is missing or another");
	if (!audience_matches(json_get(claims, "aud"), v->audience))
		return refuse(err, "aud is missing or another");
	r = check_times(v, claims, err);
	return r < 0 ? r : read_principal(claims, ret, err);
}
