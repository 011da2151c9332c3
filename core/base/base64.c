/* SPDX-License-Identifier: Apache-2.0
 * Three bytes are four characters. */
#include "core/base/base64.h"

#include "core/base/err.h"

#include <stdint.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_encode(struct buf *out, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	for (size_t i = 0; i < bytes; i += 3) {
		size_t left = bytes - i;
		uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
			(left > 2 ? p[i + 2] : 0);
		char four[4] = { alphabet[v >> 18], alphabet[v >> 12 & 63], alphabet[v >> 6 & 63],
			alphabet[v & 63] };
		if (left < 3)
			four[3] = '=';
		if (left < 2)
			four[2] = '=';
		(void)buf_append(out, four, sizeof(four));
	}
	return out->failed;
}

int base64_decode(struct buf *out, const char *text)
{
	size_t n = strlen(text);
	if (n % 4 != 0)
		return ERR_INVALID_VALUE;
	for (size_t i = 0; i < n; i += 4) {
		bool last = i + 4 == n;
		int padding = last ? (text[i + 3] == '=') + (text[i + 2] == '=' && text[i + 3] == '=') : 0;
		uint32_t v = 0;
		for (int k = 0; k < 4 - padding; k++) {
			const char *at = strchr(alphabet, text[i + (size_t)k]);
			if (at == NULL)
				return ERR_INVALID_VALUE;
			v |= (uint32_t)(at - alphabet) << (18 - 6 * k);
		}
		if ((padding == 1 && (v & 0xFF) != 0) || (padding == 2 && (v & 0xFFFF) != 0))
			return ERR_INVALID_VALUE;
		char three[3] = { (char)(v >> 16), (char)(v >> 8), (char)v };
		(void)buf_append(out, three, (size_t)(3 - padding));
	}
	return out->failed;
}
