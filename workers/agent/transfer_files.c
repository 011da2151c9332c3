/* SPDX-License-Identifier: Apache-2.0
 * The files of a transfer, one after the other. Tries again while the lease is ours, for a time:
 * the network's failures are not the job's, but a failure that stays is not waited for. Part of
 * transfer.h. */
#include "core/base/clock.h"
#include "core/base/file.h"
#include "workers/agent/disk.h"
#include "workers/agent/transfer.h"

#include "core/base/log.h"
#include "core/crypto/digest.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/agent/backoff.h"
#include "workers/agent/cache.h"
#include "workers/agent/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	RETRY_FIRST_MS = 200,
	RETRY_MAX_MS = 5000,
	NAP_MS = 100,
	BAD_CONTENT_TRIES = 3,
	MANIFEST_MAX = 128 * 1024,
	FILES_MAX = 320, /* a shard of each of 256 ranks, and what is small */
	LISTING_MAX = 1024 * 1024,
	TOKENIZER_MAX = 64 * 1024 * 1024,
};

/* Whether a later try may go better. */
static bool worth_retry(int code, int *bad_content)
{
	switch (code) {
	case ERR_NETWORK:
	case ERR_UNAVAILABLE:
	case ERR_OVERLOADED:
	case ERR_RATE_LIMITED:
	case ERR_TIMEOUT:
	case ERR_DATABASE:
	case ERR_DB_CONFLICT:
	case ERR_NO_MEMORY:
	case ERR_INTERNAL: return true;
	case ERR_INVALID_DATA: return ++*bad_content < BAD_CONTENT_TRIES;
	default: return false;
	}
}

/* False when the run was abandoned meanwhile. */
static bool nap(const struct transfer_job *t, int64_t ms)
{
	const struct timespec pause = { .tv_nsec = NAP_MS * 1000000L };
	for (int64_t slept = 0; slept < ms; slept += NAP_MS) {
		if (atomic_load(&t->run->abandon))
			return false;
		nanosleep(&pause, NULL);
	}
	return !atomic_load(&t->run->abandon);
}

/* The last failure stays in the message: it says what to mend. */
static int give_up(const char *sha256, int64_t failing_us, int code, struct err *err)
{
	const struct err last = *err;
	return err_set(err, code, NULL, "the file %.16s… was not to be had for %lld s: %.500s", sha256,
		(long long)(failing_us / 1000000), last.message);
}

static int with_retries(struct transfer_job *t, bool store, const char *sha256, int64_t bytes,
	const char *path, struct err *err)
{
	const struct http_grant grant = { t->id, t->epoch, t->token };
	struct backoff pause = { .first_ms = RETRY_FIRST_MS, .max_ms = RETRY_MAX_MS };
	const int64_t retry_us = t->agent->settings->transfer_retry_s * 1000000LL;
	int64_t failing_since_us = 0;
	int bad_content = 0;
	for (;;) {
		int rc = store ? http_store(t->http, &grant, sha256, bytes, path, err)
					   : http_fetch(t->http, &grant, sha256, bytes, path, err);
		int64_t now_us = clock_mono_us(t->agent->clock);
		if (rc == 0 || !worth_retry(rc, &bad_content))
			return rc;
		if (failing_since_us == 0)
			failing_since_us = now_us;
		if (now_us - failing_since_us >= retry_us)
			return give_up(sha256, now_us - failing_since_us, rc, err);
		log_warn(
			"blob.retry", LOG_STR("attempt_id", t->id), LOG_STR("sha256", sha256), LOG_ERR(err));
		if (!nap(t, backoff_next_ms(&pause)))
			return err_set(err, ERR_CANCELLED, NULL, "the transfer was abandoned");
	}
}

/* ------------------------------------------------------------------------------ in */

static int fetch_input(struct transfer_job *t, const struct json_val *v, struct err *err)
{
	char cached[FILE_PATH_MAX], part[FILE_PATH_MAX + RUN_ID_MAX];
	char files[FILE_PATH_MAX], place[FILE_PATH_MAX];
	const char *sha256 = json_str_or(json_get(v, "sha256"), "");
	int64_t bytes = json_i64_or(json_get(v, "bytes"), -1);
	if (!digest_is_hex(sha256) || bytes < 0)
		return err_set(err, ERR_INTERNAL, NULL, "the list names a file wrongly");
	int rc = cache_path(t->agent->settings->work_dir, t->job_id, sha256, cached, err);
	if (rc == 0)
		rc = file_join(files, t->dir, "files", err);
	if (rc == 0)
		rc = file_mkdir(files, err);
	if (rc == 0)
		rc = file_join(place, files, sha256, err);
	if (rc < 0)
		return rc;
	if (!cache_good(cached, sha256, bytes)) {
		snprintf(part, sizeof(part), "%s.%s", cached, t->id);
		rc = with_retries(t, false, sha256, bytes, part, err);
		if (rc == 0 && rename(part, cached) < 0)
			rc = err_errno(err, ERR_IO, errno, "%s", cached);
		if (rc < 0) {
			unlink(part);
			return rc;
		}
	}
	if (link(cached, place) < 0 && errno != EEXIST)
		return err_errno(err, ERR_IO, errno, "%s cannot be linked to %s", cached, place);
	return 0;
}

/* A file of a checkpoint or a model, under its own name in a folder of the attempt. */
static int fetch_named(
	struct transfer_job *t, const char *folder, const struct json_val *v, struct err *err)
{
	char dir[FILE_PATH_MAX], path[FILE_PATH_MAX];
	const char *name = json_str_or(json_get(v, "name"), "");
	const char *sha256 = json_str_or(json_get(v, "sha256"), "");
	int64_t bytes = json_i64_or(json_get(v, "bytes"), -1);
	if (!disk_name_ok(name) || !digest_is_hex(sha256) || bytes < 0)
		return err_set(err, ERR_INTERNAL, NULL, "the list names a file of %s wrongly", folder);
	int rc = file_join(dir, t->dir, folder, err);
	if (rc == 0)
		rc = file_mkdir(dir, err);
	if (rc == 0)
		rc = file_join(path, dir, name, err);
	if (rc < 0 || cache_good(path, sha256, bytes))
		return rc;
	return with_retries(t, false, sha256, bytes, path, err);
}

/* What a job may name lies on this machine; the attempt gets a copy, as of all that it reads. */
static int copy_tokenizer(struct transfer_job *t, struct err *err)
{
	char files[FILE_PATH_MAX], path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	const char *dir = t->agent->settings->tokenizer_dir;
	int rc = file_join(files, t->dir, "files", err);
	if (rc == 0)
		rc = file_mkdir(files, err);
	if (rc == 0)
		rc = file_join(path, dir, TRANSFER_GPT2_TOKENIZER, err);
	if (rc < 0)
		return rc;
	struct err detail = { 0 };
	rc = file_read(path, TOKENIZER_MAX, &text, &bytes, &detail);
	if (rc < 0)
		return err_set(err, ERR_INTERNAL, NULL,
			"this machine does not have the tokenizer gpt2 (tokenizer_dir): %.500s",
			detail.message);
	return file_write_atomic(files, TRANSFER_GPT2_TOKENIZER, text, bytes, err);
}

bool transfer_wants_gpt2(const struct json_val *listing)
{
	const struct json_val *data = json_get(json_get(listing, "spec"), "data");
	return strcmp(json_str_or(json_get(data, "tokenizer"), ""), "gpt2") == 0;
}

int transfer_fetch_all(struct transfer_job *t, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(t->listing, strlen(t->listing), LISTING_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *root = json_doc_root(doc);
	const struct json_val *files = json_get(root, "files");
	const struct json_val *resume = json_get(json_get(root, "resume"), "files");
	const struct json_val *init = json_get(json_get(root, "init"), "files");
	for (size_t i = 0; rc == 0 && i < json_array_len(files); i++)
		rc = fetch_input(t, json_array_at(files, i), err);
	for (size_t i = 0; rc == 0 && i < json_array_len(resume); i++)
		rc = fetch_named(t, "resume", json_array_at(resume, i), err);
	for (size_t i = 0; rc == 0 && i < json_array_len(init); i++)
		rc = fetch_named(t, "init", json_array_at(init, i), err);
	if (rc == 0 && transfer_wants_gpt2(root))
		rc = copy_tokenizer(t, err);
	return rc;
}

/* ------------------------------------------------------------------------------ out */

static void write_file(struct json_writer *w, const char *name, const char *sha256, int64_t bytes)
{
	json_begin_object(w);
	json_field_str(w, "name", name);
	json_field_str(w, "sha256", sha256);
	json_field_i64(w, "bytes", bytes);
	json_end_object(w);
}

static int store_file(struct transfer_job *t, const char *dir, const char *name, const char *sha256,
	int64_t bytes, struct json_writer *w, struct err *err)
{
	char path[FILE_PATH_MAX];
	if (!disk_name_ok(name) || !digest_is_hex(sha256) || bytes < 0)
		return err_set(err, ERR_INTERNAL, NULL, "the manifest names a file wrongly");
	int rc = file_join(path, dir, name, err);
	if (rc == 0)
		rc = with_retries(t, true, sha256, bytes, path, err);
	if (rc == 0)
		write_file(w, name, sha256, bytes);
	return rc;
}

/* Everything that the manifest lists, then the manifest itself, so that a resume can check all. */
static int store_folder(struct transfer_job *t, struct json_writer *w, struct err *err)
{
	char dir[FILE_PATH_MAX], path[FILE_PATH_MAX], hex[DIGEST_HEX_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	size_t bytes = 0;
	int rc = file_join(dir, t->dir, t->folder, err);
	if (rc == 0)
		rc = file_join(path, dir, "manifest.json", err);
	if (rc == 0)
		rc = file_read(path, MANIFEST_MAX, &text, &bytes, err);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, MANIFEST_MAX, &doc, err);
	if (rc == 0)
		rc = digest_hex_of(text, bytes, hex);
	if (rc < 0)
		return rc;
	const struct json_val *files = json_get(json_doc_root(doc), "files");
	if (json_array_len(files) > FILES_MAX)
		return err_set(err, ERR_INTERNAL, NULL, "the manifest lists too many files");
	for (size_t i = 0; rc == 0 && i < json_array_len(files); i++) {
		const struct json_val *f = json_array_at(files, i);
		rc = store_file(t, dir, json_str_or(json_get(f, "name"), ""),
			json_str_or(json_get(f, "sha256"), ""), json_i64_or(json_get(f, "bytes"), -1), w, err);
	}
	if (rc == 0)
		rc = store_file(t, dir, "manifest.json", hex, (int64_t)bytes, w, err);
	return rc;
}

int transfer_store_all(struct transfer_job *t, char **ret_text, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	cleanup(buf_finish) struct buf out;
	struct json_writer w;
	void *iter = NULL;
	const char *key = NULL;
	const struct json_val *v = NULL;
	buf_init(&out, RUN_MESSAGE_MAX + MANIFEST_MAX);
	int rc = json_doc_parse(t->text, strlen(t->text), RUN_MESSAGE_MAX, &doc, err);
	if (rc < 0)
		return rc;
	json_writer_init(&w, &out);
	json_begin_object(&w);
	while (json_object_next(json_doc_root(doc), &iter, &key, &v)) {
		cleanup(freep) char *raw = json_dump(v);
		if (strcmp(key, "dir") != 0 && strcmp(key, "files") != 0)
			json_field_raw(&w, key, raw);
	}
	json_key(&w, "files");
	json_begin_array(&w);
	rc = store_folder(t, &w, err);
	if (rc < 0)
		return rc;
	json_end_array(&w);
	json_end_object(&w);
	char *text = buf_take(&out, NULL);
	if (text == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "the message with its files does not fit");
	*ret_text = text;
	return 0;
}
