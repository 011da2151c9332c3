/* SPDX-License-Identifier: Apache-2.0
 * The thread that reports: beats of all runs and their messages in one request, at least every
 * beat_ms, sooner when there is something to say. What the yard acknowledged is forgotten, a lease
 * counts from before the request was sent. */
#include "workers/agent/advance.h"
#include "workers/agent/talk.h"

#include "core/base/log.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/agent/backoff.h"
#include "workers/agent/http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	BODY_MAX = 4 * AGENT_REPORT_BYTES_MAX + 1024 * 1024,
	RETRY_FIRST_MS = 200,
	RETRY_MAX_MS = 2000, /* beats must not wait long */
	START_AGAIN_MS = 1000,
};

struct report {
	struct buf body, reply;
	int run_count;          /* beats */
	int message_runs;       /* runs with messages in it */
	char only[RUN_ID_MAX];  /* the last of these */
	int faults[DEVICE_MAX]; /* device_fault_numbers of what it tells */
};

static bool has_ready(const struct run *r)
{
	return !r->over && r->acked_known && r->first != NULL && r->first->ready;
}

/* ------------------------------------------------------------------------------ the request */

static void write_messages(struct json_writer *w, const struct run *r, size_t *bytes)
{
	for (const struct run_message *m = r->first; m != NULL && m->ready; m = m->next) {
		if (*bytes > 0 && *bytes + m->len > AGENT_REPORT_BYTES_MAX)
			return;
		*bytes += m->len;
		/* The fence goes in front of the trainer's own members. */
		char head[RUN_ID_MAX + 64];
		snprintf(head, sizeof(head), "{\"attempt_id\":\"%s\",\"epoch\":%lld,", r->id,
			(long long)r->epoch);
		struct buf whole;
		buf_init(&whole, BODY_MAX);
		buf_str(&whole, head);
		buf_append(&whole, m->text + 1, m->len - 1);
		json_put_raw(w, buf_cstr(&whole));
		buf_finish(&whole);
	}
}

static void write_fence(struct json_writer *w, const struct run *r)
{
	json_begin_object(w);
	json_field_str(w, "attempt_id", r->id);
	json_field_i64(w, "epoch", r->epoch);
	json_end_object(w);
}

static void build(struct agent *a, struct report *p)
{
	struct json_writer w;
	size_t bytes = 0;
	advance_faults(a); /* whoever is told of below is marked */
	device_fault_numbers(&a->devices, p->faults);
	bool only_one = a->isolate > 0;
	p->run_count = p->message_runs = 0;
	buf_reset(&p->body);
	json_writer_init(&w, &p->body);
	json_begin_object(&w);
	json_field_str(&w, "agent_id", a->id);
	json_key(&w, "beats");
	json_begin_array(&w);
	for (const struct run *r = a->runs; r != NULL; r = r->next) {
		if (r->over)
			continue;
		write_fence(&w, r);
		p->run_count++;
	}
	json_end_array(&w);
	/* Over, but something of them is still there: their devices are not free yet. */
	json_key(&w, "leaving");
	json_begin_array(&w);
	for (const struct run *r = a->runs; r != NULL; r = r->next)
		if (r->over)
			write_fence(&w, r);
	json_end_array(&w);
	device_write_faults(&a->devices, &w);
	json_key(&w, "messages");
	json_begin_array(&w);
	for (const struct run *r = a->runs; r != NULL; r = r->next) {
		if (!has_ready(r) || (only_one && p->message_runs > 0))
			continue;
		write_messages(&w, r, &bytes);
		p->message_runs++;
		snprintf(p->only, sizeof(p->only), "%s", r->id);
	}
	json_end_array(&w);
	json_end_object(&w);
}

/* ------------------------------------------------------------------------------ the answer */

static void take_result(struct agent *a, const struct json_val *v, int64_t sent_boot_us)
{
	struct run *r = agent_find(a, json_str_or(json_get(v, "attempt_id"), ""));
	const char *status = json_str_or(json_get(v, "status"), "");
	if (r == NULL || r->over || json_i64_or(json_get(v, "epoch"), 0) != r->epoch)
		return;
	if (strcmp(status, "lost") == 0) {
		advance_over(a, r, "lost");
		return;
	}
	int64_t acked = json_i64_or(json_get(v, "acked_seq"), -1);
	if (strcmp(status, "ok") != 0 || acked < 0)
		return;
	int64_t before = r->acked_seq;
	bool first = !r->acked_known;
	run_acked(r, acked, clock_mono_us(a->clock));
	if (r->acked_seq > before || first)
		talk_ack(r);
	int64_t until = sent_boot_us + a->self_kill_ms * 1000;
	if (until > r->lease_until_us) {
		r->lease_until_us = until;
		talk_lease(a, r);
	}
}

static int take_results(
	struct agent *a, const struct report *p, int64_t sent_boot_us, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(buf_cstr(&p->reply), p->reply.len, HTTP_REPLY_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *results = json_get(json_doc_root(doc), "results");
	if (json_kind(results) != JSON_ARRAY)
		return err_set(err, ERR_INVALID_DATA, NULL, "the yard's answer to report is not valid");
	pthread_mutex_lock(&a->lock);
	device_faults_told(&a->devices, p->faults);
	for (size_t i = 0; i < json_array_len(results); i++)
		take_result(a, json_array_at(results, i), sent_boot_us);
	for (const struct run *r = a->runs; r != NULL; r = r->next)
		if (has_ready(r))
			a->urgent = true; /* more than one report could hold */
	if (a->isolate > 0)
		a->isolate--;
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
	return 0;
}

/* A report that the yard finds wrong must not take the leases of the others with it: the next ones
 * carry the messages of one run each, and the run whose messages are refused then is given up. */
static void take_refusal(struct agent *a, const struct report *p, int code)
{
	int status = err_info(code)->http_status;
	if (status < 400 || status > 499 || code == ERR_UNAUTHENTICATED || code == ERR_FORBIDDEN ||
		code == ERR_NOT_FOUND || code == ERR_TIMEOUT || code == ERR_RATE_LIMITED ||
		code == ERR_CONFLICT || p->message_runs == 0)
		return;
	pthread_mutex_lock(&a->lock);
	struct run *r = agent_find(a, p->only);
	if (p->message_runs == 1 && r != NULL)
		advance_over(a, r, "its messages were refused");
	a->isolate = p->run_count + 1;
	pthread_mutex_unlock(&a->lock);
}

/* ------------------------------------------------------------------------------ the thread */

/* Waits until a report is due and builds it. */
static void wait_and_build(
	struct agent *a, struct report *p, int64_t last_us, int64_t not_before_us)
{
	pthread_mutex_lock(&a->lock);
	for (;;) {
		int64_t now = clock_mono_us(a->clock);
		int64_t due = last_us + (a->urgent ? AGENT_REPORT_GAP_MS : a->beat_ms) * 1000;
		if (due < not_before_us)
			due = not_before_us;
		bool any = a->registered && (a->runs != NULL || a->left);
		if (any && now >= due)
			break;
		if (!any)
			due = now + START_AGAIN_MS * 1000LL;
		struct timespec until = { due / 1000000, (due % 1000000) * 1000 };
		(void)pthread_cond_timedwait(&a->report_due, &a->lock, &until);
	}
	a->urgent = a->left = false;
	build(a, p);
	pthread_mutex_unlock(&a->lock);
}

void *report_thread(void *agent)
{
	struct agent *a = agent;
	struct report p = { 0 };
	struct err err = { 0 };
	struct http *h = NULL;
	struct backoff pause = { .first_ms = RETRY_FIRST_MS, .max_ms = RETRY_MAX_MS };
	int64_t last_us = 0, not_before_us = 0;
	buf_init(&p.body, BODY_MAX);
	buf_init(&p.reply, HTTP_REPLY_MAX);
	while (http_create(a->settings->server_url, a->settings->agent_key, a->settings->ca_file, NULL,
			   &h, &err) < 0) {
		const struct timespec second = { 1, 0 };
		nanosleep(&second, NULL);
	}
	for (;;) {
		wait_and_build(a, &p, last_us, not_before_us);
		int64_t sent_boot_us = clock_boot_us(a->clock);
		last_us = clock_mono_us(a->clock);
		int rc = p.body.failed != 0 ? err_set(&err, p.body.failed, NULL, "the report does not fit")
									: http_post(h, "/agent/v1/report", p.body.data, p.body.len,
										  AGENT_REPORT_TIMEOUT_MS, &p.reply, &err);
		if (rc == 0)
			rc = take_results(a, &p, sent_boot_us, &err);
		else
			take_refusal(a, &p, rc);
		if (rc == 0) {
			backoff_reset(&pause);
			not_before_us = 0;
			continue;
		}
		log_warn("report.failed", LOG_ERR(&err));
		pthread_mutex_lock(&a->lock);
		a->left = true; /* what this one did not tell of is to be told */
		pthread_mutex_unlock(&a->lock);
		last_us = 0;
		not_before_us = clock_mono_us(a->clock) + backoff_next_ms(&pause) * 1000;
	}
	return NULL;
}
