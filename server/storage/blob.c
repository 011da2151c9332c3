/* SPDX-License-Identifier: Apache-2.0
 * The blob store on a local folder. Names below the root are made of a tenant id and a hash, both
 * checked, so nothing that a client sends becomes part of a path. Thread-safe: no state but the
 * root. */
#include "server/storage/blob.h"

#include "core/base/ident.h"
#include "core/crypto/digest.h"
#include "core/crypto/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	BLOB_TEMP_RANDOM_BYTES = 16,
	BLOB_TEMP_NAME_MAX = 2 * BLOB_TEMP_RANDOM_BYTES + 1,
	BLOB_TEMP_KEEP_S = 24 * 3600,
	BLOB_SHARD_LEN = 2,
	BLOB_DIR_MODE = 0700,
	BLOB_FILE_MODE = 0600,
};

#define TEMP_DIR "tmp"

struct blob_store {
	char root[PATH_MAX];
	int root_fd;
};

static int make_dir(int at, const char *name, struct err *err)
{
	if (mkdirat(at, name, BLOB_DIR_MODE) < 0 && errno != EEXIST)
		return err_errno(err, ERR_IO, errno, "blob store: creating folder %s", name);
	return 0;
}

/* mkdir -p */
static int make_root(const char *root, struct err *err)
{
	char path[PATH_MAX];
	size_t len = strlen(root);
	if (len == 0 || len >= sizeof(path) - 64)
		return err_set(err, ERR_INVALID_VALUE, "data_dir", "data_dir: not a usable path");
	memcpy(path, root, len + 1);
	for (size_t i = 1; i <= len; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		char kept = path[i];
		path[i] = '\0';
		int r = make_dir(AT_FDCWD, path, err);
		if (r < 0)
			return r;
		path[i] = kept;
	}
	return 0;
}

/* Temporary files of servers that were killed. Another server may write its own right now, so only
 * old ones go. */
static void remove_leftovers(int root_fd)
{
	int fd = openat(root_fd, TEMP_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		closep(&fd);
		return;
	}
	time_t old = time(NULL) - BLOB_TEMP_KEEP_S;
	const struct dirent *entry;
	while ((entry = readdir(dir))) {
		struct stat st;
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
			st.st_mtime < old)
			(void)unlinkat(fd, entry->d_name, 0);
	}
	(void)closedir(dir);
}

int blob_store_create(const char *root, struct blob_store **ret, struct err *err)
{
	int r = make_root(root, err);
	if (r < 0)
		return r;
	cleanup(closep) int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "blob store: opening folder %s", root);
	r = make_dir(fd, TEMP_DIR, err);
	if (r < 0)
		return r;
	cleanup(freep) struct blob_store *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(err, ERR_NO_MEMORY, NULL, "blob store: out of memory");
	if (!realpath(root, s->root))
		return err_errno(err, ERR_IO, errno, "blob store: resolving %s", root);
	remove_leftovers(fd);
	s->root_fd = fd;
	fd = -1;
	*ret = take_ptr(s);
	return 0;
}

void blob_store_destroy(struct blob_store *s)
{
	if (!s)
		return;
	(void)close(s->root_fd);
	free(s);
}

int blob_store_temp(
	struct blob_store *s, char *ret_path, size_t path_max, int *ret_fd, struct err *err)
{
	unsigned char raw[BLOB_TEMP_RANDOM_BYTES];
	int r = random_bytes(raw, sizeof(raw));
	if (r < 0)
		return err_set(err, r, NULL, "blob store: no random name");
	char name[BLOB_TEMP_NAME_MAX];
	for (size_t i = 0; i < sizeof(raw); i++)
		(void)snprintf(name + 2 * i, sizeof(name) - 2 * i, "%02x", raw[i]);
	int len = snprintf(ret_path, path_max, "%s/" TEMP_DIR "/%s", s->root, name);
	if (len < 0 || (size_t)len >= path_max)
		return err_set(err, ERR_IO, NULL, "blob store: the root's path is too long");
	int fd = open(ret_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, BLOB_FILE_MODE);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "blob store: creating a temporary file");
	*ret_fd = fd;
	return 0;
}

static bool is_tenant(const char *id)
{
	size_t len = strnlen(id, IDENT_MAX);
	if (len == 0 || len >= IDENT_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = id[i];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
				c == '_'))
			return false;
	}
	return strcmp(id, TEMP_DIR) != 0;
}

/* "tenant/ab/abcdef…", below the root. */
static int relative_path(
	const char *tenant_id, const char *sha256, char *ret_path, size_t path_max, struct err *err)
{
	if (!is_tenant(tenant_id) || !digest_is_hex(sha256))
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such content");
	int len = snprintf(ret_path, path_max, "%s/%.*s/%s", tenant_id, BLOB_SHARD_LEN, sha256, sha256);
	return len > 0 && (size_t)len < path_max
		? 0
		: err_set(err, ERR_INTERNAL, NULL, "blob store: path too long");
}

static int sync_path(int at, const char *path, int flags, struct err *err)
{
	cleanup(closep) int fd = openat(at, path, flags | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "blob store: opening what was written");
	if (fsync(fd) < 0)
		return err_errno(err, ERR_IO, errno, "blob store: writing to stable storage");
	return 0;
}

/* The tenant's folder and its shard; both are durable before anything is put there. */
static int make_folders(struct blob_store *s, const char *tenant_id, const char *sha256,
	char *ret_shard, size_t shard_max, struct err *err)
{
	(void)snprintf(ret_shard, shard_max, "%s/%.*s", tenant_id, BLOB_SHARD_LEN, sha256);
	int r = make_dir(s->root_fd, tenant_id, err);
	if (r == 0)
		r = make_dir(s->root_fd, ret_shard, err);
	if (r == 0)
		r = sync_path(s->root_fd, tenant_id, O_RDONLY | O_DIRECTORY, err);
	if (r == 0 && fsync(s->root_fd) < 0)
		r = err_errno(err, ERR_IO, errno, "blob store: writing to stable storage");
	return r;
}

int blob_store_sync(const char *temp_path, struct err *err)
{
	return sync_path(AT_FDCWD, temp_path, O_RDONLY, err);
}

int blob_store_publish(struct blob_store *s, const char *temp_path, const char *tenant_id,
	const char *sha256, struct err *err)
{
	char path[PATH_MAX];
	char shard[IDENT_MAX + 8];
	int r = relative_path(tenant_id, sha256, path, sizeof(path), err);
	if (r == 0)
		r = make_folders(s, tenant_id, sha256, shard, sizeof(shard), err);
	if (r == 0)
		r = blob_store_sync(temp_path, err);
	if (r < 0)
		return r;
	/* Renaming over equal content is harmless: readers of the old file keep it. */
	if (renameat(AT_FDCWD, temp_path, s->root_fd, path) < 0)
		return err_errno(err, ERR_IO, errno, "blob store: publishing");
	return sync_path(s->root_fd, shard, O_RDONLY | O_DIRECTORY, err);
}

int blob_store_open(struct blob_store *s, const char *tenant_id, const char *sha256, int *ret_fd,
	int64_t *ret_bytes, struct err *err)
{
	char path[PATH_MAX];
	int r = relative_path(tenant_id, sha256, path, sizeof(path), err);
	if (r < 0)
		return r;
	cleanup(closep) int fd = openat(s->root_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return err_set(err, ERR_NOT_FOUND, NULL, "There is no such content");
	if (fd < 0)
		return err_errno(err, ERR_IO, errno, "blob store: opening content");
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_errno(err, ERR_IO, errno, "blob store: reading content");
	*ret_bytes = st.st_size;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

int blob_store_remove(
	struct blob_store *s, const char *tenant_id, const char *sha256, struct err *err)
{
	char path[PATH_MAX];
	int r = relative_path(tenant_id, sha256, path, sizeof(path), err);
	if (r < 0)
		return r;
	if (unlinkat(s->root_fd, path, 0) < 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "blob store: removing content");
	return 0;
}
