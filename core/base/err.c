/* SPDX-License-Identifier: Apache-2.0
 * The error list and the filling of struct err. Thread-safe; allocates nothing. */
#include "core/base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct err_info INFOS[] = {
#define X(name, number, status, slug, type, title) { ERR_##name, status, #name, slug, type, title },
	ERR_LIST(X)
#undef X
};

const struct err_info *err_all(size_t *ret_count)
{
	*ret_count = ARRAY_LEN(INFOS);
	return INFOS;
}

const struct err_info *err_info(int code)
{
	const struct err_info *internal = &INFOS[0];
	for (size_t i = 0; i < ARRAY_LEN(INFOS); i++) {
		if (INFOS[i].code == code)
			return &INFOS[i];
		if (INFOS[i].code == ERR_INTERNAL)
			internal = &INFOS[i];
	}
	return internal;
}

/* A cut may fall inside a UTF-8 sequence: drops the piece that is left of it. */
static void trim_partial_utf8(char *text)
{
	size_t len = strlen(text);
	size_t tail = 0;
	while (tail < len && tail < 3 && ((unsigned char)text[len - 1 - tail] & 0xC0) == 0x80)
		tail++;
	if (tail == len)
		return;
	unsigned char lead = (unsigned char)text[len - 1 - tail];
	size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
	if (want > tail)
		text[len - 1 - tail] = '\0';
}

static void set_message(struct err *err, int code, const char *param, const char *fmt, va_list args)
{
	/* The message is built aside: an argument may be err->message itself. */
	char message[ERR_MESSAGE_MAX];
	int len = vsnprintf(message, sizeof(message), fmt, args);
	if (len < 0)
		message[0] = '\0';
	if (len >= (int)sizeof(message))
		trim_partial_utf8(message);
	char name[ERR_PARAM_MAX] = "";
	if (param && snprintf(name, sizeof(name), "%s", param) >= (int)sizeof(name))
		trim_partial_utf8(name);

	*err = (struct err){ .code = code };
	memcpy(err->message, message, sizeof(message));
	memcpy(err->param, name, sizeof(name));
}

int err_set(struct err *err, int code, const char *param, const char *fmt, ...)
{
	assert(code < 0);
	if (err) {
		va_list args;
		va_start(args, fmt);
		set_message(err, code, param, fmt, args);
		va_end(args);
	}
	return code;
}

int err_errno(struct err *err, int code, int errnum, const char *fmt, ...)
{
	assert(code < 0);
	if (!err)
		return code;
	va_list args;
	va_start(args, fmt);
	set_message(err, code, NULL, fmt, args);
	va_end(args);

	char reason[128];
	const char *text = strerror_r(errnum, reason, sizeof(reason));
	size_t used = strlen(err->message);
	(void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", text);
	return code;
}
