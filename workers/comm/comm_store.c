/* SPDX-License-Identifier: Apache-2.0
 * What every store has in common: its keys and limits. */
#include "workers/comm/comm_store.h"

#include <string.h>

bool comm_store_key_is_valid(const char *key)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
	size_t length = strnlen(key, COMM_STORE_KEY_MAX);
	return length > 0 && length < COMM_STORE_KEY_MAX && key[0] != '.' &&
		strspn(key, allowed) == length;
}

static int check_key(const char *key, struct err *err)
{
	if (!comm_store_key_is_valid(key))
		return err_set(err, ERR_INVALID_VALUE, NULL, "\"%.40s\" is not a key of a store", key);
	return 0;
}

int comm_store_put(
	struct comm_store *s, const char *key, const void *value, size_t bytes, struct err *err)
{
	int rc = check_key(key, err);
	if (rc == 0 && bytes > COMM_STORE_VALUE_MAX)
		rc = err_set(err, ERR_TOO_LARGE, NULL, "the value of %s has more than %d bytes", key,
			COMM_STORE_VALUE_MAX);
	return rc < 0 ? rc : s->ops->put(s, key, value, bytes, err);
}

int comm_store_get(struct comm_store *s, const char *key, int64_t wait_ms, char **ret_value,
	size_t *ret_bytes, struct err *err)
{
	int rc = check_key(key, err);
	return rc < 0 ? rc : s->ops->get(s, key, wait_ms, ret_value, ret_bytes, err);
}

void comm_store_destroy(struct comm_store *s)
{
	if (s != NULL)
		s->ops->destroy(s);
}

void comm_store_destroyp(struct comm_store **s)
{
	comm_store_destroy(*s);
}
