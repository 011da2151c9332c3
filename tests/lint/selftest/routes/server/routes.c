/* SPDX-License-Identifier: Apache-2.0
 * Planted: one route that is not described, one with another name. */
const struct route routes_api[] = {
	{ "GET", "/livez", "livez", SCOPE_PUBLIC, BODY_NONE, 0, 0, livez },
	{ "GET", "/v1/jobs/{id}", "jobs_get", SCOPE_TENANT_READ, BODY_NONE, 0, 0, jobs_get },
	{ "POST", "/v1/jobs", "jobs_create", SCOPE_TENANT_WRITE, BODY_JSON, 1, 0, jobs_create },
};
