/* SPDX-License-Identifier: Apache-2.0
 * Inputs of jobs by hash. */
#include "workers/agent/cache.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/crypto/digest.h"
#include "workers/agent/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int cache_init(const char *work_dir, struct err *err)
{
	char path[FILE_PATH_MAX];
	int rc = file_join(path, work_dir, "cache", err);
	return rc < 0 ? rc : file_mkdir(path, err);
}

static int job_dir(
	const char *work_dir, const char *job_id, char ret[static FILE_PATH_MAX], struct err *err)
{
	char parent[FILE_PATH_MAX];
	if (!disk_name_ok(job_id))
		return err_set(err, ERR_INVALID_VALUE, NULL, "the job id is not a name");
	int rc = file_join(parent, work_dir, "cache", err);
	return rc < 0 ? rc : file_join(ret, parent, job_id, err);
}

int cache_path(const char *work_dir, const char *job_id, const char *sha256,
	char ret_path[static FILE_PATH_MAX], struct err *err)
{
	char dir[FILE_PATH_MAX];
	int rc = cache_init(work_dir, err); /* a cache may be deleted at any time */
	if (rc == 0)
		rc = job_dir(work_dir, job_id, dir, err);
	if (rc == 0)
		rc = file_mkdir(dir, err);
	return rc < 0 ? rc : file_join(ret_path, dir, sha256, err);
}

bool cache_good(const char *path, const char *sha256, int64_t bytes)
{
	char hex[DIGEST_HEX_MAX];
	int64_t found = 0;
	struct stat st;
	return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == bytes &&
		digest_file(path, hex, &found, NULL) == 0 && found == bytes && strcmp(hex, sha256) == 0;
}

void cache_touch(const char *work_dir, const char *job_id)
{
	char dir[FILE_PATH_MAX];
	if (job_dir(work_dir, job_id, dir, NULL) == 0)
		(void)utimensat(AT_FDCWD, dir, NULL, AT_SYMLINK_NOFOLLOW);
}

void cache_sweep(
	const char *work_dir, int64_t keep_s, bool (*in_use)(void *ctx, const char *job_id), void *ctx)
{
	char parent[FILE_PATH_MAX], dir[FILE_PATH_MAX];
	struct dirent *e;
	struct stat st;
	if (file_join(parent, work_dir, "cache", NULL) < 0)
		return;
	DIR *d = opendir(parent);
	while (d != NULL && (e = readdir(d)) != NULL) {
		struct err err = { 0 };
		if (!disk_name_ok(e->d_name) || in_use(ctx, e->d_name) ||
			job_dir(work_dir, e->d_name, dir, NULL) < 0 || lstat(dir, &st) < 0 ||
			time(NULL) - st.st_mtime < keep_s)
			continue;
		if (file_remove_tree(dir, &err) < 0)
			log_error("cache.not_deleted", LOG_ERR(&err));
	}
	if (d != NULL)
		closedir(d);
}
