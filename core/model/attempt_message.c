/* SPDX-License-Identifier: Apache-2.0
 * One function for each kind of message, and the table that finds it. Members that are not known
 * are left alone, so that agents may be newer than servers. */
#include "core/model/attempt_message.h"

#include "core/base/utf8.h"
#include "core/crypto/digest.h"
#include "core/json/writer.h"
#include "core/model/checkpoint_store.h"

#include <string.h>

enum { STEP_MAX = 1LL << 50 };

/* A message being applied. */
struct message {
	struct db_conn *conn;
	struct attempt *a;
	const struct json_val *value;
	struct json_obj o;
	struct err *err;
};

/* ---------------------------------------------------------------- small readers and writers */

/* Writes the members of the message that are on the list and are numbers, as they came. */
static void copy_numbers(const struct message *m, const char *const *keys, struct json_writer *w)
{
	for (; *keys != NULL; keys++) {
		/* A message's own `epoch` is its fence; where it stands in the data comes as `data_epoch`.
		 */
		bool fenced = strcmp(*keys, "epoch") == 0;
		const struct json_val *v = json_get(m->value, fenced ? "data_epoch" : *keys);
		if (json_kind(v) == JSON_INT)
			json_field_i64(w, *keys, json_i64_or(v, 0));
		else if (json_kind(v) == JSON_REAL)
			json_field_f64(w, *keys, json_f64_or(v, 0));
	}
}

static int write_event(
	const struct message *m, const char *type, const struct buf *data, const struct buf *progress)
{
	if (data->failed < 0 || (progress != NULL && progress->failed < 0))
		return err_set(m->err, ERR_TOO_LARGE, m->o.path, "The message is too large.");
	int64_t seq;
	return job_event_progress(m->conn, m->a->job_id, type, buf_cstr(data),
		progress == NULL ? NULL : buf_cstr(progress), &seq, m->err);
}

/* An event that carries the listed numbers and puts them into the job's progress too. Steps are
 * whole there, because SQL reads them from there. */
static int write_numbers(struct message *m, const char *type, const char *const *keys)
{
	int64_t unused = 0;
	json_obj_i64(&m->o, "step", 0, STEP_MAX, &unused);
	json_obj_i64(&m->o, "steps", 0, STEP_MAX, &unused);
	if (m->o.code < 0)
		return m->o.code;
	cleanup(buf_finish) struct buf data;
	buf_init(&data, ATTEMPT_MESSAGE_DATA_MAX);
	struct json_writer w;
	json_writer_init(&w, &data);
	json_begin_object(&w);
	copy_numbers(m, keys, &w);
	json_end_object(&w);
	return write_event(m, type, &data, &data);
}

/* Names stay inside the folder that they are unpacked into, and a path can say them. */
static bool is_file_name(const char *name)
{
	if (name[0] == '/' || name[0] == '\0')
		return false;
	for (const char *p = name; *p != '\0';) {
		size_t n = strcspn(p, "/");
		if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += n;
		if (*p == '/' && *++p == '\0')
			return false;
	}
	for (const char *p = name; *p != '\0'; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '\\')
			return false;
	return true;
}

/* A name that an earlier file of the list has. */
static bool is_repeated(const struct json_val *files, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(json_str_or(json_get(json_array_at(files, i), "name"), ""), name) == 0)
			return true;
	return false;
}

/* files: [{name, sha256, bytes}] written back as checked JSON. */
static int read_files(struct message *m, const struct json_val *files, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_array(&w);
	for (size_t i = 0; i < json_array_len(files); i++) {
		const struct json_val *v = json_array_at(files, i);
		const char *name = json_str_or(json_get(v, "name"), "");
		const char *sha256 = json_str_or(json_get(v, "sha256"), "");
		int64_t bytes = json_i64_or(json_get(v, "bytes"), -1);
		if (!is_file_name(name) || strlen(name) > ATTEMPT_MESSAGE_FILE_NAME_MAX ||
			is_repeated(files, i, name) || !digest_is_hex(sha256) || bytes < 0)
			return err_set(m->err, ERR_INVALID_VALUE, m->o.path,
				"File %zu of the message has no valid name of its own, sha256 and bytes.", i);
		json_begin_object(&w);
		json_field_str(&w, "name", name);
		json_field_str(&w, "sha256", sha256);
		json_field_i64(&w, "bytes", bytes);
		json_end_object(&w);
	}
	json_end_array(&w);
	if (out->failed < 0)
		return err_set(m->err, ERR_TOO_LARGE, m->o.path, "The list of files is too large.");
	return 0;
}

/* Lines of text, the last of them when there are too many, each cut to its maximum. */
static void write_lines(struct json_writer *w, const struct json_val *lines, size_t max)
{
	size_t n = json_array_len(lines);
	json_begin_array(w);
	for (size_t i = n > max ? n - max : 0; i < n; i++) {
		const char *line = json_str_or(json_array_at(lines, i), "");
		json_put_strn(w, line, strnlen(line, ATTEMPT_MESSAGE_LINE_MAX));
	}
	json_end_array(w);
}

static char *metrics_text(struct message *m)
{
	const struct json_val *metrics = NULL;
	json_obj_object(&m->o, "metrics", &metrics);
	return metrics == NULL ? NULL : json_dump(metrics);
}

static void note_step(struct attempt *a, int64_t step)
{
	if (step <= a->last_step)
		return;
	a->last_step = step;
	a->moved = true;
}

/* ---------------------------------------------------------------- kinds */

static int apply_starting(struct message *m)
{
	struct attempt *a = m->a;
	if (a->status != ATTEMPT_ASSIGNED || a->part > 0)
		return 0;
	int rc = attempt_move(m->conn, a, ATTEMPT_STARTING, m->err);
	if (rc < 0)
		return rc;
	cleanup(buf_finish) struct buf data;
	buf_init(&data, ATTEMPT_MESSAGE_DATA_MAX);
	buf_printf(&data, "{\"attempt\":%lld}", (long long)a->number);
	return write_event(m, "job.starting", &data, NULL);
}

static int apply_training(struct message *m)
{
	static const char *const keys[] = { "steps", "memory_bytes", NULL };
	struct attempt *a = m->a;
	int rc = apply_starting(m);
	if (rc < 0 || a->status != ATTEMPT_STARTING)
		return rc;
	json_obj_i64(&m->o, "steps", 0, STEP_MAX, &a->steps);
	if (m->o.code < 0)
		return m->o.code;
	rc = attempt_move(m->conn, a, ATTEMPT_TRAINING, m->err);
	if (rc == 0)
		rc = segment_switch(m->conn, a->id, SEGMENT_TRAINING, SEGMENT_UNBILLED, "starting", m->err);
	if (rc == 0 && a->job_status == JOB_QUEUED) {
		rc = job_move(m->conn, a->job_id, JOB_RUNNING, NULL, NULL, m->err);
		if (rc == 0)
			a->job_status = JOB_RUNNING;
	}
	if (rc < 0)
		return rc;
	cleanup(buf_finish) struct buf progress;
	buf_init(&progress, ATTEMPT_MESSAGE_DATA_MAX);
	struct json_writer w;
	json_writer_init(&w, &progress);
	json_begin_object(&w);
	copy_numbers(m, keys, &w);
	json_end_object(&w);
	return db_exec(m->conn, NULL, m->err,
		"update jobs set progress = progress || $2::jsonb where id = $1", DB_TEXT(a->job_id),
		DB_TEXT(buf_cstr(&progress)));
}

static int apply_step(struct message *m)
{
	static const char *const keys[] = { "step", "steps", "epoch", "loss", "learning_rate",
		"grad_norm", "samples", "tokens", "tokens_per_second", "samples_per_second", "mfu",
		"data_wait_share", "memory_bytes", "loss_scale", "overflows", "eta_s", NULL };
	int64_t step = -1;
	json_obj_need(&m->o, "step");
	json_obj_i64(&m->o, "step", 0, STEP_MAX, &step);
	if (m->o.code < 0)
		return m->o.code;
	note_step(m->a, step);
	return write_numbers(m, "step", keys);
}

static int apply_evaluation(struct message *m)
{
	static const char *const keys[] = { "step", "validation_loss", "perplexity", "bits_per_byte",
		"order0_bits_per_byte", "accuracy", "auc", NULL };
	return write_numbers(m, "evaluation", keys);
}

/* Durable now: what led to it is billed. The one that ends a run, or answers a wish to leave, is
 * the last: what follows is stopping. */
static int close_billed(struct message *m, int64_t step)
{
	struct attempt *a = m->a;
	if (a->status != ATTEMPT_TRAINING)
		return 0;
	bool last = a->desired != ATTEMPT_RUN || (a->steps > 0 && step >= a->steps);
	int rc = segment_switch(m->conn, a->id, last ? SEGMENT_STOPPING : SEGMENT_TRAINING,
		SEGMENT_BILLED, "training", m->err);
	if (rc == 0 && last)
		rc = attempt_move(m->conn, a, ATTEMPT_STOPPING, m->err);
	return rc;
}

static int apply_checkpoint(struct message *m)
{
	struct attempt *a = m->a;
	if (a->status != ATTEMPT_TRAINING && a->status != ATTEMPT_STOPPING)
		return err_set(m->err, ERR_CONFLICT, m->o.path, "An attempt that is %s has no checkpoint.",
			attempt_status_word(a->status));
	int64_t step = -1, bytes = 0;
	const struct json_val *files = NULL;
	json_obj_need(&m->o, "step");
	json_obj_need(&m->o, "files");
	json_obj_i64(&m->o, "step", 0, STEP_MAX, &step);
	json_obj_array(&m->o, "files", ATTEMPT_MESSAGE_FILES_MAX, &files);
	cleanup(freep) char *metrics = metrics_text(m);
	if (m->o.code < 0)
		return m->o.code;
	cleanup(buf_finish) struct buf list, data;
	buf_init(&list, ATTEMPT_MESSAGE_DATA_MAX);
	buf_init(&data, ATTEMPT_MESSAGE_DATA_MAX);
	char id[IDENT_MAX];
	int rc = read_files(m, files, &list);
	if (rc == 0)
		rc =
			checkpoint_store_insert(m->conn, a, step, buf_cstr(&list), metrics, id, &bytes, m->err);
	if (rc == 0)
		rc = close_billed(m, step);
	if (rc == 0)
		rc = checkpoint_store_trim(m->conn, a->job_id, a->keep, m->err);
	if (rc < 0)
		return rc;
	note_step(a, step);
	struct json_writer w;
	json_writer_init(&w, &data);
	json_begin_object(&w);
	json_field_str(&w, "checkpoint_id", id);
	json_field_i64(&w, "step", step);
	json_field_i64(&w, "bytes", bytes);
	json_field_raw(&w, "metrics", metrics == NULL ? "{}" : metrics);
	json_end_object(&w);
	return write_event(m, "checkpoint", &data, NULL);
}

static int apply_log(struct message *m)
{
	const struct json_val *lines = NULL;
	json_obj_array(&m->o, "lines", SIZE_MAX, &lines);
	if (m->o.code < 0)
		return m->o.code;
	cleanup(buf_finish) struct buf data;
	buf_init(&data, (size_t)2 * ATTEMPT_MESSAGE_LINES_MAX * ATTEMPT_MESSAGE_LINE_MAX);
	struct json_writer w;
	json_writer_init(&w, &data);
	json_begin_object(&w);
	copy_numbers(m, (const char *const[]){ "rank", NULL }, &w);
	json_key(&w, "lines");
	write_lines(&w, lines, ATTEMPT_MESSAGE_LINES_MAX);
	json_end_object(&w);
	return write_event(m, "log", &data, NULL);
}

/* The model that a run leaves. */
static int keep_model(struct message *m, const char *metrics)
{
	const struct json_val *files = NULL;
	json_obj_need(&m->o, "files");
	json_obj_array(&m->o, "files", ATTEMPT_MESSAGE_FILES_MAX, &files);
	if (m->o.code < 0)
		return m->o.code;
	if (json_array_len(files) == 0)
		return err_set(m->err, ERR_INVALID_VALUE, m->o.path, "A model has at least one file.");
	cleanup(buf_finish) struct buf list;
	buf_init(&list, ATTEMPT_MESSAGE_DATA_MAX);
	char id[IDENT_MAX];
	int rc = read_files(m, files, &list);
	return rc < 0
		? rc
		: checkpoint_store_insert_model(m->conn, m->a, buf_cstr(&list), metrics, id, m->err);
}

static int apply_end(struct message *m)
{
	static const char *const words[] = { "succeeded", "failed", "cancelled", "paused", NULL };
	static const enum attempt_outcome outcomes[] = { ATTEMPT_SUCCEEDED, ATTEMPT_FAILED,
		ATTEMPT_CANCELLED, ATTEMPT_PAUSED };
	int word = 0;
	int64_t step = 0;
	const struct json_val *lines = NULL;
	struct attempt_end end = {
		.rank = ATTEMPT_NO_NUMBER, .exit_code = ATTEMPT_NO_NUMBER, .signal = ATTEMPT_NO_NUMBER
	};
	json_obj_need(&m->o, "outcome");
	json_obj_word(&m->o, "outcome", words, &word);
	json_obj_str(&m->o, "reason", 0, ATTEMPT_REASON_MAX, &end.reason);
	json_obj_str(&m->o, "message", 0, SIZE_MAX, &end.message);
	json_obj_i64(&m->o, "rank", -1, INT32_MAX, &end.rank);
	json_obj_i64(&m->o, "exit_code", -1, INT32_MAX, &end.exit_code);
	json_obj_i64(&m->o, "signal", -1, INT32_MAX, &end.signal);
	json_obj_i64(&m->o, "step", -1, STEP_MAX, &step);
	json_obj_array(&m->o, "last_lines", SIZE_MAX, &lines);
	cleanup(freep) char *metrics = metrics_text(m);
	if (m->o.code < 0)
		return m->o.code;
	end.outcome = outcomes[word];
	if (end.outcome == ATTEMPT_SUCCEEDED && m->a->part > 0)
		return err_set(m->err, ERR_INVALID_VALUE, m->o.path,
			"Success is told by the machine of rank 0 alone.");
	if (end.outcome != ATTEMPT_FAILED || (end.reason != NULL && end.reason[0] == '\0'))
		end.reason = NULL;
	cleanup(buf_finish) struct buf text, message;
	buf_init(&text, ATTEMPT_MESSAGE_DATA_MAX);
	buf_init(&message, ATTEMPT_MESSAGE_TEXT_MAX + 1);
	struct json_writer w;
	json_writer_init(&w, &text);
	write_lines(&w, lines, ATTEMPT_LAST_LINES_MAX);
	if (text.failed < 0)
		return err_set(m->err, ERR_TOO_LARGE, m->o.path, "last_lines are too large.");
	end.last_lines_json = buf_cstr(&text);
	if (end.message != NULL) {
		size_t cut = strnlen(end.message, ATTEMPT_MESSAGE_TEXT_MAX);
		buf_append(&message, end.message, utf8_valid_prefix(end.message, cut));
		end.message = buf_cstr(&message);
	}
	note_step(m->a, step);
	int rc = end.outcome == ATTEMPT_SUCCEEDED ? keep_model(m, metrics) : 0;
	return rc < 0 ? rc : attempt_end(m->conn, m->a, &end, m->err);
}

/* ---------------------------------------------------------------- table */

static const struct {
	const char *word;
	int (*apply)(struct message *m);
	bool of_parts; /* machines without rank 0 say it too */
} kinds[] = {
	{ "starting", apply_starting, true },
	{ "training", apply_training, false },
	{ "step", apply_step, false },
	{ "evaluation", apply_evaluation, false },
	{ "checkpoint", apply_checkpoint, false },
	{ "log", apply_log, true },
	{ "end", apply_end, true },
};

int attempt_message_apply(struct db_conn *conn, struct attempt *a, const struct json_val *message,
	int64_t seq, const char *path, struct err *err)
{
	struct message m = { .conn = conn, .a = a, .value = message, .err = err };
	const char *t = json_str_or(json_get(message, "t"), "");
	json_obj_open(&m.o, message, path, err);
	if (m.o.code < 0)
		return m.o.code;
	a->report_seq = seq;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (strcmp(kinds[i].word, t) == 0)
			return a->part == 0 || kinds[i].of_parts
				? kinds[i].apply(&m)
				: err_set(err, ERR_INVALID_VALUE, path,
					  "'%.40s' is told by the machine of rank 0 alone.", t);
	return err_set(err, ERR_INVALID_VALUE, path, "'%.40s' is not a kind of message.", t);
}
