/* SPDX-License-Identifier: Apache-2.0
 * Writes error bodies. Called wherever a reply is made of an error. */
#include "server/http/error_body.h"

#include "core/json/writer.h"

#include <stdio.h>

enum { ERROR_URI_MAX = 700, STATUS_INTERNAL = 500 };

/* What an outsider may read. */
static const char *public_message(const struct err *err, const struct err_info *info)
{
	if (err->sqlstate[0]) /* the database's words, about our tables */
		return info->title;
	switch (err->code) {
	case ERR_INTERNAL:
	case ERR_IO:
	case ERR_DATABASE:
	case ERR_NETWORK:
	case ERR_DB_CONFLICT: return info->title;
	default: return err->message[0] ? err->message : info->title;
	}
}

int error_body_write(
	struct buf *out, const struct err *err, const char *base, const char *request_id)
{
	const struct err_info *info = err_info(err->code);
	const char *message = public_message(err, info);
	bool tell = err->param[0] && !err->sqlstate[0] && info->http_status < STATUS_INTERNAL;
	const char *param = tell ? err->param : NULL;
	char type[ERROR_URI_MAX];
	char instance[ERROR_URI_MAX];
	(void)snprintf(type, sizeof(type), "%s/errors/%s", base, info->slug);
	(void)snprintf(instance, sizeof(instance), "urn:trainyard:request:%s", request_id);
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "type", type);
	json_field_str(&w, "title", info->title);
	json_field_i64(&w, "status", info->http_status);
	json_field_str(&w, "detail", message);
	json_field_str(&w, "instance", instance);
	json_key(&w, "error");
	json_begin_object(&w);
	json_field_str(&w, "message", message);
	json_field_str(&w, "type", info->type);
	json_field_str(&w, "param", param);
	json_field_str(&w, "code", info->slug);
	json_end_object(&w);
	json_end_object(&w);
	return out->failed;
}
