/* SPDX-License-Identifier: Apache-2.0
 * The thread that registers and polls, and the reconciliation of the yard's list with the runs of
 * this machine: whatever was missed before, the list says what is to be. */
#include "core/base/file.h"
#include "workers/agent/reconcile.h"

#include "core/base/log.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/agent/backoff.h"
#include "workers/agent/http.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	REGISTER_TIMEOUT_MS = 10000,
	POLL_SLACK_MS = 10000, /* above wait_ms, before a poll is given up */
	QUICK_MS = 200,        /* an answer without news that came sooner is followed by a pause */
	BODY_MAX = 64 * 1024,
	RETRY_FIRST_MS = 200,
	RETRY_MAX_MS = 5000,
	BOOT_ID_MAX = 64,
	SELF_KILL_MIN_MS = 1000,
	SELF_KILL_MAX_MS = 600000,
};

static void nap(int64_t ms)
{
	const struct timespec pause = { ms / 1000, (ms % 1000) * 1000000L };
	nanosleep(&pause, NULL);
}

static void write_registration(const struct agent *a, struct buf *out)
{
	const struct settings_agent *s = a->settings;
	struct json_writer w;
	char boot_id[BOOT_ID_MAX] = "unknown";
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	if (file_read("/proc/sys/kernel/random/boot_id", BODY_MAX, &text, &bytes, NULL) == 0 &&
		bytes > 1)
		snprintf(boot_id, sizeof(boot_id), "%.*s", (int)strcspn(text, "\n"), text);
	buf_reset(out);
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "name", s->agent_name);
	json_field_str(&w, "boot_id", boot_id);
	json_field_str(&w, "engine_build", TRAINYARD_VERSION);
	json_field_str(&w, "region", s->region);
	json_field_str(&w, "instance_type", s->instance_type);
	json_field_str(&w, "host", s->host);
	device_write_registration(&a->devices, &w);
	json_key(&w, "rates");
	json_begin_object(&w);
	json_end_object(&w);
	json_end_object(&w);
}

static int take_registration(struct agent *a, const struct buf *reply, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(buf_cstr(reply), reply->len, HTTP_REPLY_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *v = json_doc_root(doc);
	const char *id = json_str_or(json_get(v, "agent_id"), "");
	int64_t beat_ms = json_i64_or(json_get(v, "beat_ms"), 0);
	int64_t self_kill_ms = json_i64_or(json_get(v, "self_kill_ms"), 0);
	if (id[0] == '\0' || strlen(id) >= RUN_ID_MAX || beat_ms < AGENT_BEAT_MIN_MS ||
		self_kill_ms < SELF_KILL_MIN_MS || self_kill_ms > SELF_KILL_MAX_MS ||
		beat_ms >= self_kill_ms)
		return err_set(err, ERR_INVALID_DATA, NULL, "the yard's answer to register is not valid");
	pthread_mutex_lock(&a->lock);
	snprintf(a->id, sizeof(a->id), "%s", id);
	a->beat_ms = beat_ms;
	a->self_kill_ms = self_kill_ms;
	a->registered = true;
	agent_report_soon(a);
	pthread_mutex_unlock(&a->lock);
	log_info("agent.registered", LOG_STR("agent_id", id), LOG_INT("beat_ms", beat_ms));
	return 0;
}

static int do_register(
	struct agent *a, struct http *h, struct buf *body, struct buf *reply, struct err *err)
{
	write_registration(a, body);
	if (body->failed != 0)
		return err_set(err, body->failed, NULL, "the registration does not fit");
	int rc =
		http_post(h, "/agent/v1/register", body->data, body->len, REGISTER_TIMEOUT_MS, reply, err);
	return rc < 0 ? rc : take_registration(a, reply, err);
}

static int do_poll(struct agent *a, struct http *h, int64_t *version, struct buf *body,
	struct buf *reply, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct json_writer w;
	int64_t began = clock_mono_us(a->clock);
	buf_reset(body);
	json_writer_init(&w, body);
	json_begin_object(&w);
	json_field_str(&w, "agent_id", a->id); /* only this thread writes it */
	json_field_i64(&w, "version", *version);
	json_field_i64(&w, "wait_ms", AGENT_POLL_WAIT_MS);
	json_end_object(&w);
	int rc = http_post(
		h, "/agent/v1/poll", body->data, body->len, AGENT_POLL_WAIT_MS + POLL_SLACK_MS, reply, err);
	if (rc == 0)
		rc = json_doc_parse(buf_cstr(reply), reply->len, HTTP_REPLY_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *list = json_get(json_doc_root(doc), "attempts");
	const struct json_val *v = json_get(json_doc_root(doc), "version");
	if (json_kind(list) != JSON_ARRAY || json_kind(v) != JSON_INT)
		return err_set(err, ERR_INVALID_DATA, NULL, "the yard's answer to poll is not valid");
	pthread_mutex_lock(&a->lock);
	reconcile_list(a, list, began);
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
	/* A server that is leaving answers at once with nothing new. */
	if (*version == json_i64_or(v, 0) && clock_mono_us(a->clock) - began < QUICK_MS * 1000LL)
		nap(QUICK_MS);
	*version = json_i64_or(v, 0);
	return 0;
}

void *poll_thread(void *agent)
{
	struct agent *a = agent;
	struct err err = { 0 };
	struct http *h = NULL;
	struct buf body, reply;
	struct backoff pause = { .first_ms = RETRY_FIRST_MS, .max_ms = RETRY_MAX_MS };
	int64_t version = 0;
	bool known = false;
	buf_init(&body, BODY_MAX);
	buf_init(&reply, HTTP_REPLY_MAX);
	while (http_create(a->settings->server_url, a->settings->agent_key, a->settings->ca_file, NULL,
			   &h, &err) < 0)
		nap(RETRY_MAX_MS);
	for (;;) {
		int rc = known ? do_poll(a, h, &version, &body, &reply, &err)
					   : do_register(a, h, &body, &reply, &err);
		if (rc == 0) {
			known = true;
			backoff_reset(&pause);
			continue;
		}
		log_warn(known ? "poll.failed" : "register.failed", LOG_ERR(&err));
		version = 0; /* the whole list at the next contact */
		/* Whoever does not know us any more is told who we are. */
		known = known && rc != ERR_NOT_FOUND && rc != ERR_CONFLICT && rc != ERR_FORBIDDEN;
		nap(backoff_next_ms(&pause));
	}
	return NULL;
}
