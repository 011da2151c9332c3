/* SPDX-License-Identifier: Apache-2.0
 * GET /openapi.json: the API's own description, made from api-spec/openapi.yaml at build time. */
#include "server/handlers/handlers.h"

int openapi(struct request *req, struct response *res, struct err *err)
{
	if (!req->app->openapi_json)
		return err_set(err, ERR_NOT_FOUND, NULL, "This build carries no description of the API");
	(void)buf_str(&res->body, req->app->openapi_json);
	return 0;
}
