/* SPDX-License-Identifier: Apache-2.0
 * Making and ending responses: exchange.c's side of response.h (and of unit tests). */
#pragma once

#include "server/http/response.h"
#include "server/http/sse.h"

void response_init(struct response *r);
/* Frees what is still the response's own: body, file, stream. */
void response_finish(struct response *r);
