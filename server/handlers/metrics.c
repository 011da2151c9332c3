/* SPDX-License-Identifier: Apache-2.0
 * GET /metrics: counters of this process in Prometheus' text form. Needs an operator's key unless
 * metrics_public is set. */
#include "server/handlers/handlers.h"
#include "server/http/stats.h"

int metrics(struct request *req, struct response *res, struct err *err)
{
	(void)err;
	res->content_type = "text/plain; version=0.0.4; charset=utf-8";
	(void)buf_printf(&res->body,
		"# TYPE trainyard_build_info gauge\ntrainyard_build_info{version=\"%s\"} 1\n",
		TRAINYARD_VERSION);
	(void)http_stats_write(req->app->stats, &res->body);
	return 0;
}
