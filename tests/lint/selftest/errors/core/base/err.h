/* SPDX-License-Identifier: Apache-2.0
 * Planted: the second row's status is told differently, the third is not told. */
#define ERR_LIST(X)                                                                                \
	X(INVALID_JSON, 2, 400, "invalid_json", "invalid_request_error", "The body is not valid JSON") \
	X(FORBIDDEN, 21, 403, "forbidden", "permission_error",                                         \
		"The credential does not allow this")                                                      \
	X(IO, 55, 500, "io", "server_error", "Reading or writing a file failed")

enum err_code { ERR_OK };
