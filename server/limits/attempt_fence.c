/* SPDX-License-Identifier: Apache-2.0
 * Reads and checks the fence of blob requests. Runs on worker threads; no state. */
#include "server/limits/attempt_fence.h"

#include "core/base/num.h"
#include "core/crypto/digest.h"
#include "core/model/agent_store.h"

#include <string.h>

int attempt_fence_read(const struct request *req, struct blob_fence *ret, struct err *err)
{
	struct blob_fence f = {
		.sha256 = request_param(req, "sha256"),
		.attempt_id = request_header(req, "X-Attempt-Id"),
		.token = request_header(req, "X-Attempt-Token"),
	};
	const char *epoch = request_header(req, "X-Attempt-Epoch");
	if (f.sha256 == NULL || !digest_is_hex(f.sha256))
		return err_set(err, ERR_NOT_FOUND, NULL, "The path names no SHA-256.");
	if (f.attempt_id == NULL || !ident_is(f.attempt_id, "att"))
		return err_set(err, ERR_INVALID_VALUE, "X-Attempt-Id", "An attempt's id is required.");
	if (f.token == NULL || strlen(f.token) >= ATTEMPT_STORE_TOKEN_MAX)
		return err_set(err, ERR_INVALID_VALUE, "X-Attempt-Token", "The token is required.");
	if (epoch == NULL || num_parse_i64(epoch, 1, INT64_MAX, &f.epoch) < 0)
		return err_set(err, ERR_INVALID_VALUE, "X-Attempt-Epoch", "The epoch is required.");
	*ret = f;
	return 0;
}

/* The agent is the one that this credential has registered. */
int attempt_fence_check(struct db_conn *conn, const struct request *req,
	const struct blob_fence *fence, struct attempt_capability *ret, struct err *err)
{
	char agent_id[IDENT_MAX];
	int rc = agent_store_find(conn, req->principal.id, agent_id, err);
	if (rc < 0)
		return rc;
	struct attempt_fence f = {
		.attempt_id = fence->attempt_id,
		.epoch = fence->epoch,
		.agent_id = agent_id,
	};
	return attempt_store_capability(conn, &f, fence->token, fence->sha256, ret, err);
}
