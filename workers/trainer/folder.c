/* SPDX-License-Identifier: Apache-2.0
 * Folders published by rename. */
#include "workers/trainer/folder.h"

#include "workers/trainer/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int folder_place(struct folder *f, const char *parent, const char *hidden, const char *name,
	int64_t step, struct err *err)
{
	memset(f, 0, sizeof(*f));
	f->manifest.step = step;
	int rc = file_join(f->path, parent, name, err);
	if (rc == 0)
		rc = file_join(f->hidden, parent, hidden, err);
	if (rc < 0)
		return rc;
	snprintf(f->parent, sizeof(f->parent), "%s", parent);
	return 0;
}

int folder_begin(struct folder *f, const char *parent, const char *hidden, const char *name,
	int64_t step, struct err *err)
{
	int rc = folder_place(f, parent, hidden, name, step, err);
	if (rc == 0)
		rc = file_remove_tree(f->hidden, err);
	return rc < 0 ? rc : file_mkdir(f->hidden, err);
}

int folder_add(
	struct folder *f, const char *name, char ret_path[static FILE_PATH_MAX], struct err *err)
{
	int rc = manifest_add(&f->manifest, name, err);
	return rc < 0 ? rc : file_join(ret_path, f->hidden, name, err);
}

int folder_add_bytes(
	struct folder *f, const char *name, const void *data, size_t bytes, struct err *err)
{
	char path[FILE_PATH_MAX];
	int rc = folder_add(f, name, path, err);
	return rc < 0 ? rc : files_write(path, data, bytes, err);
}

int folder_add_text(struct folder *f, const char *name, const struct buf *text, struct err *err)
{
	if (text->failed != 0)
		return err_set(err, text->failed, NULL, "%s is too large", name);
	return folder_add_bytes(f, name, text->data, text->len, err);
}

/* In one rename, so that nothing half removed is ever seen under the name. */
static int set_aside(const struct folder *f, const char *old, struct err *err)
{
	int rc = file_remove_tree(old, err);
	if (rc < 0)
		return rc;
	if (rename(f->path, old) < 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "%s cannot be set aside", f->path);
	return 0;
}

int folder_publish(struct folder *f, struct err *err)
{
	char old[FILE_PATH_MAX];
	int n = snprintf(old, sizeof(old), "%s-old", f->hidden);
	if (n < 0 || (size_t)n >= sizeof(old))
		return err_set(err, ERR_TOO_LARGE, NULL, "%s is too long a path", f->hidden);
	int rc = manifest_seal(&f->manifest, f->hidden, err);
	if (rc == 0)
		rc = file_sync_dir(f->hidden, err);
	if (rc == 0)
		rc = set_aside(f, old, err);
	if (rc < 0)
		return rc;
	if (rename(f->hidden, f->path) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be renamed to %s", f->hidden, f->path);
	rc = file_sync_dir(f->parent, err);
	return rc < 0 ? rc : file_remove_tree(old, err);
}

int folder_retire(const char *parent, const char *name, struct err *err)
{
	char path[FILE_PATH_MAX], hidden[FILE_PATH_MAX];
	int rc = file_join(path, parent, name, err);
	if (rc == 0)
		rc = file_join(hidden, parent, ".retired", err);
	if (rc == 0)
		rc = file_remove_tree(hidden, err);
	if (rc < 0)
		return rc;
	if (rename(path, hidden) < 0 && errno != ENOENT)
		return err_errno(err, ERR_IO, errno, "%s cannot be set aside", path);
	return file_remove_tree(hidden, err);
}

int folder_split(
	const char *path, char ret_parent[static FILE_PATH_MAX], const char **ret_name, struct err *err)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash == NULL ? path : slash + 1;
	int n = slash == NULL
		? snprintf(ret_parent, FILE_PATH_MAX, ".")
		: snprintf(ret_parent, FILE_PATH_MAX, "%.*s", (int)(slash - path) + (slash == path), path);
	if (name[0] == '\0' || n < 0 || n >= FILE_PATH_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "%s is not a folder that can be made", path);
	*ret_name = name;
	return 0;
}
