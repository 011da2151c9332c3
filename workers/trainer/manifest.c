/* SPDX-License-Identifier: Apache-2.0
 * manifest.json: written last, checked first. */
#include "workers/trainer/manifest.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/trainer/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int manifest_add(struct manifest *m, const char *name, struct err *err)
{
	if (m->count == MANIFEST_FILES_MAX)
		return err_set(err, ERR_TOO_LARGE, NULL, "a folder of more than %d files cannot be made",
			MANIFEST_FILES_MAX);
	struct manifest_file *f = &m->files[m->count++];
	memset(f, 0, sizeof(*f));
	snprintf(f->name, sizeof(f->name), "%s", name);
	return 0;
}

int manifest_add_sealed(struct manifest *m, const struct manifest_file *file, struct err *err)
{
	int rc = manifest_add(m, file->name, err);
	if (rc == 0)
		m->files[m->count - 1] = *file;
	return rc;
}

int manifest_write(const struct manifest *m, const char *dir, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	struct json_writer w;
	buf_init(&text, MANIFEST_BYTES_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "format", 1);
	json_field_i64(&w, "step", m->step);
	json_key(&w, "files");
	json_begin_array(&w);
	for (int i = 0; i < m->count; i++) {
		json_begin_object(&w);
		json_field_str(&w, "name", m->files[i].name);
		json_field_str(&w, "sha256", m->files[i].sha256);
		json_field_i64(&w, "bytes", m->files[i].bytes);
		json_end_object(&w);
	}
	json_end_array(&w);
	json_end_object(&w);
	buf_char(&text, '\n');
	if (text.failed != 0)
		return err_set(err, text.failed, NULL, "the manifest is too large");

	char path[FILE_PATH_MAX], hash[DIGEST_HEX_MAX];
	int64_t bytes = 0;
	int rc = file_join(path, dir, MANIFEST_NAME, err);
	if (rc == 0)
		rc = files_write(path, text.data, text.len, err);
	if (rc == 0)
		rc = files_seal(path, hash, &bytes, err);
	return rc;
}

int manifest_seal_file(struct manifest_file *f, const char *dir, struct err *err)
{
	char path[FILE_PATH_MAX];
	int rc = file_join(path, dir, f->name, err);
	return rc < 0 ? rc : files_seal(path, f->sha256, &f->bytes, err);
}

int manifest_seal(struct manifest *m, const char *dir, struct err *err)
{
	for (int i = 0; i < m->count; i++) {
		bool sealed = m->files[i].sha256[0] != '\0';
		int rc = sealed ? 0 : manifest_seal_file(&m->files[i], dir, err);
		if (rc < 0)
			return rc;
	}
	return manifest_write(m, dir, err);
}

/* A plain name inside the folder: nothing that leads out of it or hides. */
static int check_name(const char *name, struct err *err)
{
	if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL ||
		strcmp(name, MANIFEST_NAME) == 0)
		return err_set(err, ERR_INVALID_DATA, NULL, "the manifest names the file \"%.64s\"", name);
	return 0;
}

static int read_entry(const struct json_val *v, int index, struct manifest_file *f, struct err *err)
{
	struct json_obj o;
	char path[JSON_PATH_MAX];
	const char *name = "", *sha256 = "";
	snprintf(path, sizeof(path), "$.files[%d]", index);
	json_obj_open(&o, v, path, err);
	json_obj_need(&o, "name");
	json_obj_str(&o, "name", 1, MANIFEST_NAME_MAX - 1, &name);
	json_obj_need(&o, "sha256");
	json_obj_str(&o, "sha256", 64, 64, &sha256);
	json_obj_need(&o, "bytes");
	json_obj_i64(&o, "bytes", 0, INT64_MAX, &f->bytes);
	int rc = json_obj_close(&o);
	if (rc < 0)
		return rc;
	if (!digest_is_hex(sha256))
		return err_set(err, ERR_INVALID_DATA, path, "the hash of %s is not SHA-256", name);
	snprintf(f->name, sizeof(f->name), "%s", name);
	snprintf(f->sha256, sizeof(f->sha256), "%s", sha256);
	return check_name(name, err);
}

static int parse(const char *path, struct manifest *m, struct err *err)
{
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	size_t bytes = 0;
	int rc = file_read(path, MANIFEST_BYTES_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, MANIFEST_BYTES_MAX, &doc, err);
	if (rc < 0)
		return rc;
	struct json_obj o;
	const struct json_val *files = NULL;
	int64_t format = 0;
	json_obj_open(&o, json_doc_root(doc), "$", err);
	json_obj_need(&o, "format");
	json_obj_i64(&o, "format", 1, 1, &format);
	json_obj_need(&o, "step");
	json_obj_i64(&o, "step", 0, INT64_MAX, &m->step);
	json_obj_need(&o, "files");
	json_obj_array(&o, "files", MANIFEST_FILES_MAX, &files);
	rc = json_obj_close(&o);
	m->count = 0;
	for (size_t i = 0; rc == 0 && i < json_array_len(files); i++)
		rc = read_entry(json_array_at(files, i), (int)i, &m->files[m->count++], err);
	return rc;
}

int manifest_check_file(const char *dir, const struct manifest_file *f, struct err *err)
{
	char path[FILE_PATH_MAX], hash[DIGEST_HEX_MAX];
	int64_t bytes = 0;
	struct stat st;
	int rc = file_join(path, dir, f->name, err);
	if (rc < 0)
		return rc;
	if (lstat(path, &st) < 0)
		return err_errno(err, ERR_INVALID_DATA, errno, "the manifest lists %s", path);
	if (!S_ISREG(st.st_mode) || st.st_size != f->bytes)
		return err_set(err, ERR_INVALID_DATA, NULL, "%s has %lld bytes, its manifest says %lld",
			path, (long long)st.st_size, (long long)f->bytes);
	rc = digest_file(path, hash, &bytes, err);
	if (rc < 0)
		return rc;
	if (bytes != f->bytes || strcmp(hash, f->sha256) != 0)
		return err_set(err, ERR_INVALID_DATA, NULL, "%s has the SHA-256 %s, its manifest says %s",
			path, hash, f->sha256);
	return 0;
}

int manifest_read(const char *dir, struct manifest *ret, struct err *err)
{
	struct manifest m = { 0 };
	struct err why = { 0 };
	char path[FILE_PATH_MAX];
	int rc = file_join(path, dir, MANIFEST_NAME, err);
	if (rc < 0)
		return rc;
	rc = parse(path, &m, &why);
	if (rc < 0)
		return err_set(err, ERR_INVALID_DATA, why.param, "%.200s: %.500s", path, why.message);
	*ret = m;
	return 0;
}

const struct manifest_file *manifest_find(const struct manifest *m, const char *name)
{
	for (int i = 0; i < m->count; i++)
		if (strcmp(m->files[i].name, name) == 0)
			return &m->files[i];
	return NULL;
}

int manifest_verify(const char *dir, struct manifest *ret, struct err *err)
{
	struct manifest m;
	int rc = manifest_read(dir, &m, err);
	if (rc < 0)
		return rc;
	for (int i = 0; i < m.count; i++) {
		rc = manifest_check_file(dir, &m.files[i], err);
		if (rc < 0)
			return rc;
	}
	*ret = m;
	return 0;
}
