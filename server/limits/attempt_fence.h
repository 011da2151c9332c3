/* SPDX-License-Identifier: Apache-2.0
 * The fence of a blob request: path, and the headers X-Attempt-Id, X-Attempt-Epoch and
 * X-Attempt-Token, checked against a live attempt of the asking machine. Used by the two blob
 * handlers. */
#pragma once

#include "core/base/err.h"
#include "core/model/attempt_store.h"
#include "server/http/request.h"

struct blob_fence {
	const char *sha256;
	const char *attempt_id;
	const char *token;
	int64_t epoch;
};

int attempt_fence_read(
	const struct request *req, struct blob_fence *ret, struct err *err) must_check;
int attempt_fence_check(struct db_conn *conn, const struct request *req,
	const struct blob_fence *fence, struct attempt_capability *ret, struct err *err) must_check;
