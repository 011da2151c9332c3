/* SPDX-License-Identifier: Apache-2.0
 * The catalogue of named models: what `model.preset` may be and GET /v1/models lists. Read-only
 * data; thread-safe. */
#pragma once

#include "core/base/attr.h"
#include "core/spec/spec.h"

struct preset {
	const char *name;
	const char *summary; /* one sentence for people */
	enum spec_task task; /* what it is meant for */
	int64_t parameters;  /* a tied head counted once, running statistics not at all */
	struct spec_model model;
};

/* NULL when there is none of that name. */
const struct preset *preset_find(const char *name);
/* All of them, in the order they are listed. */
const struct preset *preset_all(size_t *ret_count);
