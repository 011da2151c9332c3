/* SPDX-License-Identifier: Apache-2.0 */
int jobs_get(struct request *req, struct response *res, struct err *err);
