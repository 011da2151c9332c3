/* SPDX-License-Identifier: Apache-2.0
 * The routes of both ports, one a row. api-spec/openapi.yaml repeats the API's rows; a lint test
 * compares the two. Read-only. */
#include "server/handlers/handlers.h"
#include "server/http/route.h"

enum {
	JSON_MAX = JSON_BYTES_MAX,
	REPORT_MAX = 4 * 1024 * 1024, /* an agent's batch */
	EMPTY_MAX = 1024,             /* routes that read nothing of the body they tolerate */
};
#define UPLOAD_MAX (8LL * 1024 * 1024 * 1024) /* the setting upload_max_bytes bounds it further */

const struct route routes_api[] = {
	{ "GET", "/livez", "livez", SCOPE_PUBLIC, BODY_NONE, 0, ROUTE_INLINE, livez },
	{ "GET", "/readyz", "readyz", SCOPE_PUBLIC, BODY_NONE, 0, 0, readyz },
	{ "GET", "/metrics", "metrics", SCOPE_PUBLIC, BODY_NONE, 0, 0, metrics },
	{ "GET", "/openapi.json", "openapi", SCOPE_PUBLIC, BODY_NONE, 0, 0, openapi },

	{ "POST", "/v1/files", "files_create", SCOPE_TENANT_WRITE, BODY_MULTIPART, UPLOAD_MAX,
		ROUTE_IDEMPOTENT, files_create },
	{ "GET", "/v1/files", "files_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0, files_list },
	{ "GET", "/v1/files/{id}", "files_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0, files_get },
	{ "DELETE", "/v1/files/{id}", "files_delete", SCOPE_TENANT_WRITE, BODY_NONE, 0, 0,
		files_delete },
	{ "GET", "/v1/files/{id}/content", "files_content", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		files_content },

	{ "GET", "/v1/instance-types", "instance_types_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		instance_types_list },

	{ "POST", "/v1/jobs", "jobs_create", SCOPE_TENANT_WRITE, BODY_JSON, JSON_MAX, ROUTE_IDEMPOTENT,
		jobs_create },
	{ "GET", "/v1/jobs", "jobs_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0, jobs_list },
	{ "GET", "/v1/jobs/{id}", "jobs_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0, jobs_get },
	{ "POST", "/v1/jobs/{id}/cancel", "jobs_cancel", SCOPE_TENANT_WRITE, BODY_JSON, EMPTY_MAX,
		ROUTE_IDEMPOTENT, jobs_cancel },
	{ "GET", "/v1/jobs/{id}/events", "job_events", SCOPE_TENANT_READ, BODY_NONE, 0, ROUTE_STREAM,
		job_events },
	{ "GET", "/v1/jobs/{id}/checkpoints", "job_checkpoints", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		job_checkpoints },
	{ "GET", "/v1/jobs/{id}/usage", "job_usage", SCOPE_TENANT_READ, BODY_NONE, 0, 0, job_usage },

	{ "GET", "/v1/models", "models_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0, models_list },
	{ "GET", "/v1/models/{id}", "models_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0, models_get },
	{ "GET", "/v1/models/{id}/files", "model_files_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		model_files_list },
	{ "GET", "/v1/models/{id}/files/{name}", "model_files_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		model_files_get },

	{ "GET", "/v1/usage", "usage_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0, usage_list },
	{ "GET", "/v1/invoices", "invoices_list", SCOPE_TENANT_READ, BODY_NONE, 0, 0, invoices_list },
	{ "GET", "/v1/invoices/{id}", "invoices_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0,
		invoices_get },

	{ "POST", "/v1/tenants", "tenants_create", SCOPE_OPERATOR, BODY_JSON, JSON_MAX,
		ROUTE_IDEMPOTENT, tenants_create },
	{ "GET", "/v1/tenants", "tenants_list", SCOPE_OPERATOR, BODY_NONE, 0, 0, tenants_list },
	{ "GET", "/v1/tenants/{id}", "tenants_get", SCOPE_OPERATOR, BODY_NONE, 0, 0, tenants_get },
	{ "POST", "/v1/tenants/{id}/api-keys", "api_keys_create", SCOPE_OPERATOR, BODY_JSON, JSON_MAX,
		ROUTE_IDEMPOTENT, api_keys_create },
	{ "GET", "/v1/tenants/{id}/api-keys", "api_keys_list", SCOPE_OPERATOR, BODY_NONE, 0, 0,
		api_keys_list },
	{ "DELETE", "/v1/tenants/{id}/api-keys/{key_id}", "api_keys_revoke", SCOPE_OPERATOR, BODY_NONE,
		0, 0, api_keys_revoke },
	{ "GET", "/v1/devices", "devices_list", SCOPE_OPERATOR, BODY_NONE, 0, 0, devices_list },
	{ "POST", "/v1/devices/{id}/return", "devices_return", SCOPE_OPERATOR, BODY_NONE, 0, 0,
		devices_return },
};
const size_t routes_api_count = ARRAY_LEN(routes_api);

const struct route routes_agent[] = {
	{ "GET", "/livez", "livez", SCOPE_PUBLIC, BODY_NONE, 0, ROUTE_INLINE, livez },
	{ "GET", "/readyz", "readyz", SCOPE_PUBLIC, BODY_NONE, 0, 0, readyz },
	{ "POST", "/agent/v1/register", "agent_register", SCOPE_AGENT, BODY_JSON, JSON_MAX, 0,
		agent_register },
	{ "POST", "/agent/v1/poll", "agent_poll", SCOPE_AGENT, BODY_JSON, JSON_MAX, ROUTE_WAIT,
		agent_poll },
	{ "POST", "/agent/v1/report", "agent_report", SCOPE_AGENT, BODY_JSON, REPORT_MAX, 0,
		agent_report },
	{ "POST", "/agent/v1/rendezvous", "agent_rendezvous", SCOPE_AGENT, BODY_JSON, REPORT_MAX,
		ROUTE_WAIT, agent_rendezvous },
	{ "GET", "/agent/v1/blobs/{sha256}", "agent_blob_get", SCOPE_AGENT, BODY_NONE, 0, 0,
		agent_blob_get },
	{ "PUT", "/agent/v1/blobs/{sha256}", "agent_blob_put", SCOPE_AGENT, BODY_BLOB, UPLOAD_MAX, 0,
		agent_blob_put },
};
const size_t routes_agent_count = ARRAY_LEN(routes_agent);
