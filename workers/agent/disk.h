/* SPDX-License-Identifier: Apache-2.0
 * What the agent does with files beyond core/base/file.h: names that others send, the tail of a
 * log. No state; any thread. */
#pragma once

#include "core/json/writer.h"

#include <stdbool.h>

/* A plain name inside a folder: no slash, not hidden, not empty. */
bool disk_name_ok(const char *name);
/* Appends the last lines of a text file to the open JSON array; a file that cannot be read has
 * none. */
void disk_tail(const char *path, int lines, struct json_writer *w);
