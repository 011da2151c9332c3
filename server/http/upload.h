/* SPDX-License-Identifier: Apache-2.0
 * Receives a body into a temporary file of the blob store while it arrives. Used by exchange.c on
 * event loops; what handlers see of it is multipart.h. One thread at a time. */
#pragma once

#include "core/base/err.h"
#include "server/http/multipart.h"
#include "server/storage/blob.h"

struct upload_receiver;

/* content_type must be multipart/form-data with a boundary; NULL = the body is the file itself. */
int upload_receiver_create(struct blob_store *blobs, const char *content_type,
	int64_t file_max_bytes, struct upload_receiver **ret, struct err *err) must_check;
int upload_receiver_feed(
	struct upload_receiver *u, const char *data, size_t bytes, struct err *err) must_check;
/* The body is over: hashes are final, the file is closed. */
int upload_receiver_end(struct upload_receiver *u, struct err *err) must_check;
/* Valid after upload_receiver_end. */
struct upload *upload_receiver_result(struct upload_receiver *u);
/* Removes the temporary file unless it was published. NULL accepted. */
void upload_receiver_destroy(struct upload_receiver *u);
