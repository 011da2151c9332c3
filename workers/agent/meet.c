/* SPDX-License-Identifier: Apache-2.0
 * The thread of a run on several machines: files of rendezvous/ that are new go up, what the others
 * have put comes down by rename. The folder is looked at often while ranks meet, seldom later. */
#include "workers/agent/meet.h"

#include "core/base/base64.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/agent/advance.h"
#include "workers/agent/backoff.h"
#include "workers/agent/disk.h"
#include "workers/agent/http.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	KEYS_MAX = 8192,        /* files of an attempt */
	KEY_MAX = 128,          /* bytes of a name, with its NUL */
	VALUE_MAX = 128 * 1024, /* bytes of a file */
	BATCH_MAX = 64,         /* files of one request */
	BATCH_BYTES_MAX = 1024 * 1024,
	BODY_MAX = 2 * BATCH_BYTES_MAX,
	TIMEOUT_MS = 15000,
	WAIT_MS = 100,        /* the yard is asked to wait so long for news */
	WAIT_LATER_MS = 5000, /* ... once nothing has come or gone for */
	BUSY_MS = 60000,
	RETRY_FIRST_MS = 200,
	RETRY_MAX_MS = 2000,
	NAP_MS = 100,
};

static const char rendezvous[] = "rendezvous";

struct meeting {
	struct agent *agent;
	struct run *run;
	struct http *http;
	char id[RUN_ID_MAX], dir[FILE_PATH_MAX];
	int64_t epoch, have;
	int64_t busy_us;        /* monotonic: last time that something came or went */
	char (*known)[KEY_MAX]; /* that the yard has */
	int known_count, batch_count;
	struct buf body, reply;
};

static void part_key(int part, char ret[static KEY_MAX])
{
	snprintf(ret, KEY_MAX, "machine-%d.prepared", part);
}

static int folder_of(const struct run *r, char ret[static FILE_PATH_MAX], struct err *err)
{
	return file_join(ret, r->dir, rendezvous, err);
}

int meet_tell_prepared(const struct run *r, struct err *err)
{
	char dir[FILE_PATH_MAX], path[FILE_PATH_MAX], key[KEY_MAX];
	part_key(r->part, key);
	int rc = folder_of(r, dir, err);
	if (rc == 0)
		rc = file_join(path, dir, key, err);
	return rc < 0 || file_exists(path) ? rc : file_write_atomic(dir, key, "", 0, err);
}

bool meet_all_prepared(const struct run *r)
{
	char dir[FILE_PATH_MAX], path[FILE_PATH_MAX], key[KEY_MAX];
	if (folder_of(r, dir, NULL) < 0)
		return false;
	for (int i = 0; i < r->parts; i++) {
		part_key(i, key);
		if (file_join(path, dir, key, NULL) < 0 || !file_exists(path))
			return false;
	}
	return true;
}

/* ------------------------------------------------------------------------------ up */

static bool is_known(const struct meeting *m, const char *key)
{
	for (int i = 0; i < m->known_count; i++)
		if (strcmp(m->known[i], key) == 0)
			return true;
	return false;
}

static int too_many(struct err *err)
{
	return err_set(err, ERR_TOO_LARGE, NULL,
		"the ranks of an attempt may say at most %d things to each other", KEYS_MAX);
}

/* A key that is dropped is a rank that others wait for: there is an end instead. */
static int note_known(struct meeting *m, const char *key, struct err *err)
{
	if (m->known_count == KEYS_MAX)
		return too_many(err);
	snprintf(m->known[m->known_count++], KEY_MAX, "%s", key);
	return 0;
}

static int write_entry(struct meeting *m, const char *key, struct json_writer *w, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(buf_finish) struct buf value;
	size_t bytes = 0;
	buf_init(&value, 2 * VALUE_MAX);
	int rc = file_join(path, m->dir, key, err);
	if (rc == 0)
		rc = file_read(path, VALUE_MAX, &text, &bytes, err);
	if (rc < 0)
		return rc;
	if (base64_encode(&value, text, bytes) < 0)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for %s", key);
	json_begin_object(w);
	json_field_str(w, "key", key);
	json_field_str(w, "value", buf_cstr(&value));
	json_end_object(w);
	return 0;
}

/* What the trainers here have put since; the names go behind the known ones, which they join when
 * the yard has them. */
static int write_news(struct meeting *m, struct json_writer *w, struct err *err)
{
	struct dirent *e;
	int rc = 0;
	m->batch_count = 0;
	DIR *d = opendir(m->dir);
	if (d == NULL)
		return err_set(err, ERR_IO, NULL, "the folder %s cannot be read", m->dir);
	while (rc == 0 && m->batch_count < BATCH_MAX && m->body.len < BATCH_BYTES_MAX &&
		(e = readdir(d)) != NULL) {
		int at = m->known_count + m->batch_count;
		if (e->d_name[0] == '.' || strlen(e->d_name) >= KEY_MAX || is_known(m, e->d_name))
			continue;
		rc = at == KEYS_MAX ? too_many(err) : write_entry(m, e->d_name, w, err);
		if (rc == 0) {
			snprintf(m->known[at], KEY_MAX, "%s", e->d_name);
			m->batch_count++;
		}
	}
	closedir(d);
	return rc;
}

static int write_request(struct meeting *m, struct err *err)
{
	struct json_writer w;
	int64_t now = clock_mono_us(m->agent->clock);
	buf_reset(&m->body);
	json_writer_init(&w, &m->body);
	json_begin_object(&w);
	json_field_str(&w, "attempt_id", m->id);
	json_field_i64(&w, "epoch", m->epoch);
	json_field_i64(&w, "have", m->have);
	json_key(&w, "entries");
	json_begin_array(&w);
	int rc = write_news(m, &w, err);
	if (rc < 0)
		return rc;
	json_end_array(&w);
	if (m->batch_count > 0)
		m->busy_us = now;
	json_field_i64(&w, "wait_ms", now - m->busy_us < BUSY_MS * 1000LL ? WAIT_MS : WAIT_LATER_MS);
	json_end_object(&w);
	return m->body.failed != 0 ? err_set(err, m->body.failed, NULL, "what ranks say does not fit")
							   : 0;
}

/* ------------------------------------------------------------------------------ down */

static int take_entry(struct meeting *m, const struct json_val *v, struct err *err)
{
	const char *key = json_str_or(json_get(v, "key"), "");
	cleanup(buf_finish) struct buf value;
	buf_init(&value, VALUE_MAX);
	if (!disk_name_ok(key) || strlen(key) >= KEY_MAX ||
		base64_decode(&value, json_str_or(json_get(v, "value"), "?")) < 0)
		return err_set(err, ERR_INVALID_DATA, NULL, "the yard's answer to rendezvous is not valid");
	if (is_known(m, key))
		return 0;
	int rc = file_write_atomic(m->dir, key, buf_cstr(&value), value.len, err);
	return rc < 0 ? rc : note_known(m, key, err);
}

static int take_answer(struct meeting *m, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(buf_cstr(&m->reply), m->reply.len, HTTP_REPLY_MAX, &doc, err);
	if (rc < 0)
		return rc;
	m->known_count += m->batch_count;
	m->batch_count = 0;
	const struct json_val *list = json_get(json_doc_root(doc), "entries");
	for (size_t i = 0; rc == 0 && i < json_array_len(list); i++)
		rc = take_entry(m, json_array_at(list, i), err);
	if (rc < 0)
		return rc;
	m->have = json_i64_or(json_get(json_doc_root(doc), "have"), m->have);
	if (json_array_len(list) > 0) {
		m->busy_us = clock_mono_us(m->agent->clock);
		agent_wake(m->agent); /* all machines may be prepared now */
	}
	return 0;
}

/* ------------------------------------------------------------------------------ the thread */

static void nap(const struct meeting *m, int64_t ms)
{
	const struct timespec pause = { .tv_nsec = NAP_MS * 1000000L };
	for (int64_t slept = 0; slept < ms && !atomic_load(&m->run->abandon); slept += NAP_MS)
		nanosleep(&pause, NULL);
}

static void free_meeting(struct meeting *m)
{
	http_destroy(m->http);
	buf_finish(&m->body);
	buf_finish(&m->reply);
	free(m->known);
	free(m);
}

/* Nothing that another try could change. */
static bool is_final(int rc)
{
	return rc == ERR_TOO_LARGE || rc == ERR_QUOTA;
}

static void *meet_thread(void *arg)
{
	struct meeting *m = arg;
	struct agent *a = m->agent;
	struct run *r = m->run;
	struct err err = { 0 };
	struct backoff pause = { .first_ms = RETRY_FIRST_MS, .max_ms = RETRY_MAX_MS };
	int rc = 0;
	while (!atomic_load(&r->abandon) && rc != ERR_LEASE_LOST && !is_final(rc)) {
		rc = write_request(m, &err);
		if (rc == 0)
			rc = http_post(m->http, "/agent/v1/rendezvous", m->body.data, m->body.len, TIMEOUT_MS,
				&m->reply, &err);
		if (rc == 0)
			rc = take_answer(m, &err);
		if (rc == 0) {
			backoff_reset(&pause);
			continue;
		}
		if (rc != ERR_CANCELLED)
			log_warn("rendezvous.failed", LOG_STR("attempt_id", m->id), LOG_ERR(&err));
		nap(m, backoff_next_ms(&pause));
	}
	pthread_mutex_lock(&a->lock);
	if (rc == ERR_LEASE_LOST)
		advance_over(a, r, "lease_lost");
	else if (is_final(rc))
		advance_fail(a, r, "platform_error", err.message);
	r->meeting = false;
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
	free_meeting(m);
	return NULL;
}

static int make(struct agent *a, struct run *r, struct meeting **ret, struct err *err)
{
	const struct settings_agent *s = a->settings;
	struct meeting *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a rendezvous");
	m->agent = a;
	m->run = r;
	m->epoch = r->epoch;
	m->busy_us = clock_mono_us(a->clock);
	m->known = calloc(KEYS_MAX, sizeof(*m->known));
	buf_init(&m->body, BODY_MAX);
	buf_init(&m->reply, HTTP_REPLY_MAX);
	snprintf(m->id, sizeof(m->id), "%s", r->id);
	int rc = m->known == NULL ? err_set(err, ERR_NO_MEMORY, NULL, "no memory for a rendezvous")
							  : folder_of(r, m->dir, err);
	if (rc == 0)
		rc = http_create(s->server_url, s->agent_key, s->ca_file, &r->abandon, &m->http, err);
	if (rc < 0) {
		free_meeting(m);
		return rc;
	}
	*ret = m;
	return 0;
}

int meet_start(struct agent *a, struct run *r, struct err *err)
{
	struct meeting *m = NULL;
	pthread_t thread;
	pthread_attr_t attr;
	if (r->parts < 2 || r->meeting || r->over || atomic_load(&r->abandon))
		return 0;
	int rc = make(a, r, &m, err);
	if (rc < 0)
		return rc;
	r->meeting = true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, meet_thread, m);
	pthread_attr_destroy(&attr);
	if (rc == 0)
		return 0;
	r->meeting = false;
	free_meeting(m);
	return err_errno(err, ERR_NO_MEMORY, rc, "no thread for a rendezvous");
}
