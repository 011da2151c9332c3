/* SPDX-License-Identifier: Apache-2.0
 * Threads of transfers, and what becomes of their results. */
#include "workers/agent/transfer.h"

#include "core/base/log.h"
#include "workers/agent/advance.h"
#include "workers/agent/http.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_job(struct transfer_job *t)
{
	http_destroy(t->http);
	free(t->listing);
	free(t->text);
	free(t);
}

/* With the lock held: what a transfer that failed for good means for its run. */
static void take_failure(struct agent *a, struct run *r, int code, const struct err *err)
{
	if (code == ERR_LEASE_LOST) {
		advance_over(a, r, "lease_lost");
		return;
	}
	if (code == ERR_CANCELLED) /* whoever abandoned it says what comes next */
		return;
	log_error("transfer.failed", LOG_STR("attempt_id", r->id), LOG_ERR(err));
	advance_fail(a, r, code == ERR_RESIDENCY ? "residency" : "platform_error", err->message);
}

static void *fetch_thread(void *arg)
{
	struct transfer_job *t = arg;
	struct agent *a = t->agent;
	struct run *r = t->run;
	struct err err = { 0 };
	int rc = transfer_fetch_all(t, &err);
	pthread_mutex_lock(&a->lock);
	r->busy = false;
	if (rc == 0)
		r->phase = RUN_PREPARED;
	else
		take_failure(a, r, rc, &err);
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
	free_job(t);
	return NULL;
}

/* A message whose files cannot be stored is not sent; the messages from there on are dropped, and
 * the attempt ends under the number that is free then. */
static void drop_from(struct run *r, int64_t seq)
{
	struct run_message **at = &r->first;
	struct run_message *kept = NULL;
	while (*at != NULL && (*at)->seq < seq) {
		kept = *at;
		at = &(*at)->next;
	}
	while (*at != NULL) {
		struct run_message *m = *at;
		*at = m->next;
		r->waiting_bytes -= m->len;
		free(m->text);
		free(m);
	}
	r->last = kept;
	r->end_seq = 0;
}

static void *store_thread(void *arg)
{
	struct transfer_job *t = arg;
	struct agent *a = t->agent;
	struct run *r = t->run;
	struct err err = { 0 };
	cleanup(freep) char *text = NULL;
	int rc = transfer_store_all(t, &text, &err);
	pthread_mutex_lock(&a->lock);
	r->busy = false;
	struct run_message *m = run_first_unready(r);
	if (rc == 0 && m != NULL && m->seq == t->seq) {
		r->waiting_bytes += strlen(text) - m->len;
		m->len = strlen(text);
		free(m->text);
		m->text = take_ptr(text);
		m->ready = true;
		agent_report_soon(a);
	} else if (rc < 0) {
		if (rc != ERR_CANCELLED && rc != ERR_LEASE_LOST)
			drop_from(r, t->seq);
		take_failure(a, r, rc, &err);
	}
	pthread_mutex_unlock(&a->lock);
	agent_wake(a);
	free_job(t);
	return NULL;
}

static int start(
	struct agent *a, struct run *r, struct transfer_job *t, void *(*body)(void *), struct err *err)
{
	pthread_t thread;
	pthread_attr_t attr;
	const struct settings_agent *s = a->settings;
	t->agent = a;
	t->run = r;
	t->epoch = r->epoch;
	snprintf(t->id, sizeof(t->id), "%s", r->id);
	snprintf(t->job_id, sizeof(t->job_id), "%s", r->job_id);
	snprintf(t->token, sizeof(t->token), "%s", r->token);
	snprintf(t->dir, sizeof(t->dir), "%s", r->dir);
	int rc = http_create(s->server_url, s->agent_key, s->ca_file, &r->abandon, &t->http, err);
	if (rc < 0) {
		free_job(t);
		return rc;
	}
	r->busy = true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, body, t);
	pthread_attr_destroy(&attr);
	if (rc == 0)
		return 0;
	r->busy = false;
	free_job(t);
	return err_errno(err, ERR_NO_MEMORY, rc, "no thread for a transfer");
}

int transfer_start_fetch(struct agent *a, struct run *r, struct err *err)
{
	struct transfer_job *t = calloc(1, sizeof(*t));
	if (t != NULL)
		t->listing = strdup(r->listing);
	if (t == NULL || t->listing == NULL) {
		free(t);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a transfer");
	}
	return start(a, r, t, fetch_thread, err);
}

int transfer_start_store(struct agent *a, struct run *r, struct err *err)
{
	const struct run_message *m = run_first_unready(r);
	struct transfer_job *t = calloc(1, sizeof(*t));
	if (t != NULL)
		t->text = strdup(m->text);
	if (t == NULL || t->text == NULL) {
		free(t);
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a transfer");
	}
	t->seq = m->seq;
	snprintf(t->folder, sizeof(t->folder), "%s", m->dir);
	return start(a, r, t, store_thread, err);
}
