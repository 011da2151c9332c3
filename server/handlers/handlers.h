/* SPDX-License-Identifier: Apache-2.0
 * Every operation of both ports, one prototype a line; the file that defines it has its name.
 * Plain blocking code on a worker thread: 0 with the response filled, or a negative code. */
#pragma once

#include "core/base/err.h"
#include "server/http/request.h"
#include "server/http/response.h"

/* clang-format off */
/* the service itself */
int livez(struct request *req, struct response *res, struct err *err);
int readyz(struct request *req, struct response *res, struct err *err);
int metrics(struct request *req, struct response *res, struct err *err);
int openapi(struct request *req, struct response *res, struct err *err);

/* files */
int files_create(struct request *req, struct response *res, struct err *err);
int files_list(struct request *req, struct response *res, struct err *err);
int files_get(struct request *req, struct response *res, struct err *err);
int files_delete(struct request *req, struct response *res, struct err *err);
int files_content(struct request *req, struct response *res, struct err *err);

/* catalogue and money */
int instance_types_list(struct request *req, struct response *res, struct err *err);
int usage_list(struct request *req, struct response *res, struct err *err);
int invoices_list(struct request *req, struct response *res, struct err *err);
int invoices_get(struct request *req, struct response *res, struct err *err);

/* jobs */
int jobs_create(struct request *req, struct response *res, struct err *err);
int jobs_list(struct request *req, struct response *res, struct err *err);
int jobs_get(struct request *req, struct response *res, struct err *err);
int jobs_cancel(struct request *req, struct response *res, struct err *err);
int job_events(struct request *req, struct response *res, struct err *err);
int job_checkpoints(struct request *req, struct response *res, struct err *err);
int job_usage(struct request *req, struct response *res, struct err *err);

/* models */
int models_list(struct request *req, struct response *res, struct err *err);
int models_get(struct request *req, struct response *res, struct err *err);
int model_files_list(struct request *req, struct response *res, struct err *err);
int model_files_get(struct request *req, struct response *res, struct err *err);

/* operators */
int tenants_create(struct request *req, struct response *res, struct err *err);
int tenants_list(struct request *req, struct response *res, struct err *err);
int tenants_get(struct request *req, struct response *res, struct err *err);
int api_keys_create(struct request *req, struct response *res, struct err *err);
int api_keys_list(struct request *req, struct response *res, struct err *err);
int api_keys_revoke(struct request *req, struct response *res, struct err *err);
int devices_list(struct request *req, struct response *res, struct err *err);
int devices_return(struct request *req, struct response *res, struct err *err);

/* agents' port */
int agent_register(struct request *req, struct response *res, struct err *err);
int agent_poll(struct request *req, struct response *res, struct err *err);
int agent_rendezvous(struct request *req, struct response *res, struct err *err);
int agent_report(struct request *req, struct response *res, struct err *err);
int agent_blob_get(struct request *req, struct response *res, struct err *err);
int agent_blob_put(struct request *req, struct response *res, struct err *err);
/* clang-format on */
