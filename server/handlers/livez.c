/* SPDX-License-Identifier: Apache-2.0
 * GET /livez: this process answers. Never asks the database: restarting us would not mend it. */
#include "server/handlers/handlers.h"

int livez(struct request *req, struct response *res, struct err *err)
{
	(void)req;
	(void)err;
	json_begin_object(&res->json);
	json_field_str(&res->json, "status", "ok");
	json_field_str(&res->json, "version", TRAINYARD_VERSION);
	json_end_object(&res->json);
	return 0;
}
