/* SPDX-License-Identifier: Apache-2.0
 * Writing checkpoint and model folders: everything into a hidden folder first, synced, the manifest
 * last, then one rename. A crash leaves a hidden folder that the next write removes. */
#include "workers/trainer/checkpoint.h"

#include "core/base/file.h"
#include "core/json/writer.h"
#include "workers/trainer/files.h"
#include "workers/trainer/manifest.h"
#include "workers/trainer/model_config.h"
#include "workers/trainer/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL_FILE_MAX = 64 * 1024 };

void checkpoint_name(int64_t step, char ret_name[static CHECKPOINT_NAME_MAX])
{
	snprintf(ret_name, CHECKPOINT_NAME_MAX, "step-%lld", (long long)step);
}

static int add_text(
	struct manifest *m, const char *dir, const char *name, const struct buf *text, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(files_out_abort) struct files_out out = FILES_OUT_INIT;
	struct manifest_file *f = manifest_add(m, name);
	if (f == NULL || text->failed != 0)
		return err_set(err, ERR_TOO_LARGE, NULL, "%s is too large", name);
	int rc = file_join(path, dir, name, err);
	if (rc == 0)
		rc = files_out_open(&out, path, err);
	if (rc == 0)
		rc = files_out_write(&out, text->data, text->len, err);
	f->bytes = out.bytes;
	if (rc == 0)
		rc = files_out_finish(&out, f->sha256, err);
	return rc;
}

static int add_tensors(struct manifest *m, struct engine *e, enum engine_tensor_kind kind,
	const char *dir, const char *name, struct err *err)
{
	char path[FILE_PATH_MAX];
	int all = engine_tensor_count(e), count = 0;
	cleanup(freep) struct safetensors_tensor *list = calloc((size_t)all + 1, sizeof(*list));
	struct manifest_file *f = manifest_add(m, name);
	if (list == NULL || f == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to list %d tensors", all);
	for (int i = 0; i < all; i++) {
		struct engine_tensor t;
		engine_tensor_at(e, i, &t);
		if (t.kind != kind)
			continue;
		struct safetensors_tensor *s = &list[count++];
		snprintf(s->name, sizeof(s->name), "%s", t.name);
		snprintf(s->dtype, sizeof(s->dtype), "%s", t.dtype);
		s->rank = t.rank;
		memcpy(s->shape, t.shape, sizeof(t.shape));
		s->bytes = t.bytes;
		s->data = t.data;
	}
	int rc = file_join(path, dir, name, err);
	if (rc == 0)
		rc = safetensors_write(path, list, count, f->sha256, &f->bytes, err);
	return rc;
}

static int add_state(struct manifest *m, struct engine *e, const struct job_spec *spec,
	const struct checkpoint_metrics *metrics, const char *dir, struct err *err)
{
	struct engine_state s;
	struct json_writer w;
	cleanup(buf_finish) struct buf text;
	engine_state_get(e, &s);
	buf_init(&text, SMALL_FILE_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "format", 1);
	json_field_i64(&w, "step", s.step);
	json_field_i64(&w, "position", s.position);
	json_field_i64(&w, "tokens", s.tokens);
	json_field_i64(&w, "seed", s.seed);
	json_field_i64(&w, "evaluated_step", metrics->evaluated_step);
	json_key(&w, "metrics");
	json_begin_object(&w);
	model_config_metrics(&w, spec, metrics);
	json_end_object(&w);
	json_end_object(&w);
	buf_char(&text, '\n');
	return add_text(m, dir, "state.json", &text, err);
}

static int add_config(struct manifest *m, const struct job_spec *spec, const struct plan *plan,
	const char *dir, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	buf_init(&text, SMALL_FILE_MAX);
	model_config_write(spec, plan, &text);
	return add_text(m, dir, "config.json", &text, err);
}

/* Seals the hidden folder and gives it its name. */
static int publish(const struct manifest *m, const char *hidden, const char *parent,
	const char *path, struct err *err)
{
	int rc = manifest_write(m, hidden, err);
	if (rc == 0)
		rc = file_sync_dir(hidden, err);
	if (rc < 0)
		return rc;
	if (rename(hidden, path) < 0)
		return err_errno(err, ERR_IO, errno, "%s cannot be renamed to %s", hidden, path);
	return file_sync_dir(parent, err);
}

static int fresh_folder(const char *path, struct err *err)
{
	int rc = file_remove_tree(path, err);
	return rc < 0 ? rc : file_mkdir(path, err);
}

int checkpoint_write(struct engine *e, const struct job_spec *spec, const struct plan *plan,
	const struct checkpoint_metrics *metrics, const char *parent, int64_t *ret_step,
	struct err *err)
{
	char name[CHECKPOINT_NAME_MAX], path[FILE_PATH_MAX], hidden[FILE_PATH_MAX];
	struct engine_state s;
	struct manifest m = { 0 };
	engine_state_get(e, &s);
	m.step = s.step;
	checkpoint_name(s.step, name);
	int rc = file_join(path, parent, name, err);
	if (rc == 0)
		rc = file_join(hidden, parent, ".writing", err);
	if (rc < 0)
		return rc;
	if (access(path, F_OK) == 0) { /* published by rename, so it is whole */
		*ret_step = s.step;
		return 0;
	}
	rc = fresh_folder(hidden, err);
	if (rc == 0)
		rc = add_tensors(&m, e, ENGINE_PARAMETER, hidden, "model.safetensors", err);
	if (rc == 0)
		rc = add_tensors(&m, e, ENGINE_OPTIMIZER, hidden, "optimizer.safetensors", err);
	if (rc == 0)
		rc = add_config(&m, spec, plan, hidden, err);
	if (rc == 0)
		rc = add_state(&m, e, spec, metrics, hidden, err);
	if (rc == 0)
		rc = publish(&m, hidden, parent, path, err);
	if (rc == 0)
		*ret_step = s.step;
	return rc;
}

/* "/a/b/model" -> "/a/b"; "model" -> ".". */
static void parent_of(const char *path, char ret_parent[static FILE_PATH_MAX])
{
	const char *slash = strrchr(path, '/');
	if (slash == NULL)
		snprintf(ret_parent, FILE_PATH_MAX, ".");
	else
		snprintf(ret_parent, FILE_PATH_MAX, "%.*s", (int)(slash - path) + (slash == path), path);
}

int checkpoint_write_model(struct engine *e, const struct job_spec *spec, const struct plan *plan,
	const struct checkpoint_metrics *metrics, const char *dir, struct err *err)
{
	char parent[FILE_PATH_MAX], hidden[FILE_PATH_MAX];
	struct engine_state s;
	struct manifest m = { 0 };
	cleanup(buf_finish) struct buf summary;
	engine_state_get(e, &s);
	m.step = s.step;
	parent_of(dir, parent);
	buf_init(&summary, SMALL_FILE_MAX);
	model_config_summary(spec, plan, s.step, metrics, &summary);
	int rc = file_join(hidden, parent, ".writing-model", err);
	if (rc == 0)
		rc = fresh_folder(hidden, err);
	if (rc == 0)
		rc = add_tensors(&m, e, ENGINE_PARAMETER, hidden, "model.safetensors", err);
	if (rc == 0)
		rc = add_config(&m, spec, plan, hidden, err);
	if (rc == 0)
		rc = add_text(&m, hidden, "trainyard.json", &summary, err);
	if (rc == 0)
		rc = file_remove_tree(dir, err);
	if (rc == 0)
		rc = publish(&m, hidden, parent, dir, err);
	return rc;
}
