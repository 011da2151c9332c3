/* SPDX-License-Identifier: Apache-2.0
 * The messages that agents report about an attempt (docs/protocol.md): read, checked and applied to
 * a locked attempt. One file per kind would be nine; they share their small readers, so they live
 * together. Called by the agent_report handler. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/json/reader.h"
#include "core/model/attempt.h"

enum {
	ATTEMPT_MESSAGE_FILES_MAX = 320,
	ATTEMPT_MESSAGE_FILE_NAME_MAX = 200,
	ATTEMPT_MESSAGE_LINES_MAX = 256,
	ATTEMPT_MESSAGE_LINE_MAX = 4096,
	ATTEMPT_MESSAGE_TEXT_MAX = 2000,
	ATTEMPT_MESSAGE_DATA_MAX = 512 * 1024, /* an event's data */
};

/* Applies one message, whatever its seq, and sets a->report_seq to it. a->status is ENDED after an
 * `end`. Errors of the message itself (INVALID_…, MISSING_FIELD, CONFLICT) name it by path; the
 * transaction must then be rolled back. */
int attempt_message_apply(struct db_conn *conn, struct attempt *a, const struct json_val *message,
	int64_t seq, const char *path, struct err *err) must_check;
