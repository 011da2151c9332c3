/* SPDX-License-Identifier: Apache-2.0
 * Inputs of jobs by hash: work_dir/cache/JOB/SHA256. Never shared between jobs, so not between
 * tenants. Files are linked into attempts and checked again at each use. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"

#include <stdbool.h>
#include <stdint.h>

int cache_init(const char *work_dir, struct err *err) must_check;
/* Makes the job's folder; tells the path of one content in it. */
int cache_path(const char *work_dir, const char *job_id, const char *sha256,
	char ret_path[static FILE_PATH_MAX], struct err *err) must_check;
/* True when the file is there with these bytes and this hash. */
bool cache_good(const char *path, const char *sha256, int64_t bytes);
/* The job was in use until now. */
void cache_touch(const char *work_dir, const char *job_id);
/* Removes the folders of jobs that are not in use and were not for keep_s. */
void cache_sweep(
	const char *work_dir, int64_t keep_s, bool (*in_use)(void *ctx, const char *job_id), void *ctx);
