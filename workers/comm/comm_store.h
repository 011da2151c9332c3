/* SPDX-License-Identifier: Apache-2.0
 * Where ranks meet before they are connected: small values by key, put once by one rank and read by
 * the others. comm_store_folder.c keeps them in a folder of files. Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	COMM_STORE_KEY_MAX = 128,          /* bytes of a key with its NUL */
	COMM_STORE_VALUE_MAX = 128 * 1024, /* bytes of a value */
};

struct comm_store;

struct comm_store_ops {
	/* Keeps a copy, and replaces what the key had: a reader sees one value or the other, whole. */
	int (*put)(struct comm_store *s, const char *key, const void *value, size_t bytes,
		struct err *err) must_check;
	/* Waits until the key has a value. malloc'ed, with a NUL behind it. TIMEOUT when it has none
	 * after wait_ms (0: do not wait). */
	int (*get)(struct comm_store *s, const char *key, int64_t wait_ms, char **ret_value,
		size_t *ret_bytes, struct err *err) must_check;
	void (*destroy)(struct comm_store *s);
};

struct comm_store {
	const struct comm_store_ops *ops;
};

/* 1 to COMM_STORE_KEY_MAX - 1 of a-z, 0-9, '-', '_' and '.', the first no '.'. */
bool comm_store_key_is_valid(const char *key);
/* Check the key, then ask the store. INVALID_VALUE, TOO_LARGE, IO, TIMEOUT. */
int comm_store_put(struct comm_store *s, const char *key, const void *value, size_t bytes,
	struct err *err) must_check;
int comm_store_get(struct comm_store *s, const char *key, int64_t wait_ms, char **ret_value,
	size_t *ret_bytes, struct err *err) must_check;
void comm_store_destroy(struct comm_store *s);
void comm_store_destroyp(struct comm_store **s);

/* A store in a folder that exists and is shared by all ranks: a file a key. The folder serves one
 * attempt: what an earlier one left would be believed. It is the caller's to remove. */
int comm_store_folder_open(const char *dir, struct comm_store **ret, struct err *err) must_check;
