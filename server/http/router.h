/* SPDX-License-Identifier: Apache-2.0
 * Finds the row of a route table for a method and a path. Used by exchange.c. Pure. */
#pragma once

#include "core/base/err.h"
#include "server/http/request_private.h"
#include "server/http/route.h"

enum { ROUTER_ALLOW_MAX = 64 };

/* Fills r->route and r->path_params from d->segments; names of parameters are put into arena. HEAD
 * finds the row of GET. NOT_FOUND, or METHOD with the methods that exist in ret_allow. */
int router_match(const struct route *routes, size_t count, const char *method,
	const struct request_data *d, struct arena *arena, struct request *r,
	char ret_allow[static ROUTER_ALLOW_MAX], struct err *err) must_check;
