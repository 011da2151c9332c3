/* SPDX-License-Identifier: Apache-2.0
 * The blob store on a local folder: content by tenant and SHA-256 (ROOT/tenant/ab/abcdef…).
 * Published by fsync and rename; names are made by the server only. Thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdint.h>

struct blob_store;

int blob_store_create(const char *root, struct blob_store **ret, struct err *err) must_check;
void blob_store_destroy(struct blob_store *s);

/* A new temporary file inside the store's file system. */
int blob_store_temp(
	struct blob_store *s, char *ret_path, size_t path_max, int *ret_fd, struct err *err) must_check;
/* Makes a temporary file's bytes durable: before the transaction that publishes it, which must not
 * wait for a disk. */
int blob_store_sync(const char *temp_path, struct err *err) must_check;
/* Moves a complete, hashed temporary file into place (fsync of file and folder). Known content is
 * fine. */
int blob_store_publish(struct blob_store *s, const char *temp_path, const char *tenant_id,
	const char *sha256, struct err *err) must_check;
/* Read-only descriptor. NOT_FOUND when it is not there. */
int blob_store_open(struct blob_store *s, const char *tenant_id, const char *sha256, int *ret_fd,
	int64_t *ret_bytes, struct err *err) must_check;
int blob_store_remove(
	struct blob_store *s, const char *tenant_id, const char *sha256, struct err *err) must_check;
