/* SPDX-License-Identifier: Apache-2.0
 * Makes one API key. The key is shown here and never again: only its hash is stored. */
#include "server/create_key.h"

#include "core/base/ident.h"
#include "core/base/utf8.h"
#include "core/model/api_key_store.h"
#include "core/spec/region.h"
#include "server/app.h"
#include "server/auth/api_key.h"

#include <stdio.h>
#include <string.h>

struct options {
	const char *role;
	const char *name;
	const char *tenant;
	const char *region;
};

static int read_options(int argc, char **argv, struct options *ret, struct err *err)
{
	struct options o = { .name = NULL };
	const struct {
		const char *prefix;
		const char **value;
	} known[] = { { "--role=", &o.role }, { "--name=", &o.name }, { "--tenant=", &o.tenant },
		{ "--region=", &o.region } };
	for (int i = 0; i < argc; i++) {
		bool found = false;
		for (size_t k = 0; k < ARRAY_LEN(known) && !found; k++) {
			size_t len = strlen(known[k].prefix);
			found = strncmp(argv[i], known[k].prefix, len) == 0;
			if (found)
				*known[k].value = argv[i] + len;
		}
		if (!found)
			return err_set(err, ERR_INVALID_VALUE, NULL, "create-key: unknown option %s", argv[i]);
	}
	*ret = o;
	return 0;
}

static int read_role(const struct options *o, enum api_key_role *ret, struct err *err)
{
	static const enum api_key_role roles[] = { API_KEY_OWNER, API_KEY_MEMBER, API_KEY_OPERATOR,
		API_KEY_AGENT };
	for (size_t i = 0; o->role && i < ARRAY_LEN(roles); i++) {
		if (strcmp(o->role, api_key_role_word(roles[i])) == 0) {
			*ret = roles[i];
			return 0;
		}
	}
	return err_set(err, ERR_INVALID_VALUE, "role",
		"create-key: --role= must be operator, agent, owner or member");
}

static int make_record(const struct options *o, struct api_key *ret, struct err *err)
{
	struct api_key k = { .tenant_active = true };
	int r = read_role(o, &k.role, err);
	if (r < 0)
		return r;
	bool tenant_role = k.role == API_KEY_OWNER || k.role == API_KEY_MEMBER;
	if (!o->name || !o->name[0] || strlen(o->name) >= API_KEY_NAME_MAX ||
		!utf8_is_valid(o->name, strlen(o->name)))
		return err_set(err, ERR_INVALID_VALUE, "name",
			"create-key: --name= must have 1 to %d characters", API_KEY_NAME_MAX - 1);
	if (tenant_role != (o->tenant != NULL) ||
		(o->tenant && strlen(o->tenant) >= sizeof(k.tenant_id)))
		return err_set(err, ERR_INVALID_VALUE, "tenant",
			"create-key: --tenant= belongs to the roles owner and member, and to them only");
	if ((k.role == API_KEY_AGENT) != (o->region != NULL))
		return err_set(err, ERR_INVALID_VALUE, "region",
			"create-key: --region= belongs to the role agent, and to it only");
	if (o->region &&
		(!region_known(o->region) || strcmp(o->region, "any") == 0 ||
			strlen(o->region) >= sizeof(k.agent_region)))
		return err_set(err, ERR_INVALID_VALUE, "region",
			"create-key: \"%s\" is not the region of a machine", o->region);
	memcpy(k.name, o->name, strlen(o->name) + 1);
	if (o->tenant)
		memcpy(k.tenant_id, o->tenant, strlen(o->tenant) + 1);
	if (o->region)
		memcpy(k.agent_region, o->region, strlen(o->region) + 1);
	*ret = k;
	return 0;
}

static int store(const struct settings_server *s, const struct api_key *key,
	const unsigned char hash[static DIGEST_BYTES], struct err *err)
{
	struct db_config config;
	app_db_config(s, &config);
	config.application_name = "trainyard-create-key";
	config.size = 1;
	struct db_pool *pool = NULL;
	struct db_conn *conn = NULL;
	int r = db_pool_create(&config, &pool, err);
	if (r == 0)
		r = db_pool_get(pool, APP_DB_WAIT_MS, &conn, err);
	if (r == 0)
		r = api_key_store_insert(conn, key, hash, err);
	if (pool) {
		db_pool_put(pool, conn);
		db_pool_destroy(pool);
	}
	return r;
}

int create_key_run(const struct settings_server *s, int argc, char **argv, struct err *err)
{
	struct options o = { .name = NULL };
	struct api_key record = { .tenant_active = true };
	char text[API_KEY_MAX];
	char shown[API_KEY_SHOWN_MAX];
	unsigned char hash[DIGEST_BYTES];
	int r = read_options(argc, argv, &o, err);
	if (r == 0)
		r = make_record(&o, &record, err);
	if (r < 0)
		return r;
	r = api_key_make(text, hash, shown);
	if (r < 0)
		return err_set(err, r, NULL, "making a key failed");
	ident_new(clock_system(), "key", record.id);
	memcpy(record.redacted, shown, sizeof(shown));
	r = store(s, &record, hash, err);
	if (r == 0 && (printf("%s\n", text) < 0 || fflush(stdout) != 0))
		r = err_set(err, ERR_IO, NULL, "writing the key failed");
	explicit_bzero(text, sizeof(text));
	return r;
}
