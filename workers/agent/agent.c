/* SPDX-License-Identifier: Apache-2.0
 * The main thread: trainers' sockets, their ends, the ticks that hold deadlines. */
#include "workers/agent/agent.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/json/reader.h"
#include "workers/agent/advance.h"
#include "workers/agent/cache.h"
#include "workers/agent/disk.h"
#include "workers/agent/talk.h"
#include "workers/agent/watch.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { POLL_FDS_MAX = 1024, ATTEMPT_BYTES_MAX = 1024 * 1024, SWEEP_MS = 30000 };

int agent_init(struct agent *a, const struct settings_agent *s, struct err *err)
{
	char path[FILE_PATH_MAX];
	pthread_condattr_t attr;
	memset(a, 0, sizeof(*a));
	a->settings = s;
	a->clock = clock_system();
	a->beat_ms = 5000;
	a->self_kill_ms = 20000;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->report_due, &attr);
	pthread_condattr_destroy(&attr);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->wake < 0)
		return err_errno(err, ERR_IO, errno, "no event descriptor");
	int rc = device_find(s, TRAINYARD_CUDA_VERSION, &a->devices, err);
	if (rc == 0)
		rc = file_join(path, s->work_dir, "attempts", err);
	if (rc == 0)
		rc = file_mkdir(path, err);
	if (rc == 0)
		rc = cache_init(s->work_dir, err);
	return rc;
}

void agent_wake(struct agent *a)
{
	uint64_t one = 1;
	ssize_t n = write(a->wake, &one, sizeof(one)); /* full = already awake */
	(void)n;
}

void agent_report_soon(struct agent *a)
{
	a->urgent = true;
	pthread_cond_signal(&a->report_due);
}

struct run *agent_find(struct agent *a, const char *id)
{
	struct run *r = a->runs;
	while (r != NULL && strcmp(r->id, id) != 0)
		r = r->next;
	return r;
}

/* ------------------------------------------------------------------------------ after a restart */

/* A folder without a readable attempt.json was never more than prepared: nothing of it is needed.
 */
static int recover_one(struct agent *a, const char *dir, const char *id, struct err *err)
{
	char path[FILE_PATH_MAX];
	cleanup(freep) char *text = NULL;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	struct err why = { 0 };
	size_t bytes = 0;
	int rc = file_join(path, dir, "attempt.json", err);
	if (rc < 0)
		return rc;
	rc = file_read(path, ATTEMPT_BYTES_MAX, &text, &bytes, &why);
	if (rc == 0)
		rc = json_doc_parse(text, bytes, ATTEMPT_BYTES_MAX, &doc, &why);
	if (rc < 0) {
		log_warn("attempt.dropped", LOG_STR("attempt_id", id), LOG_ERR(&why));
		return file_remove_tree(dir, err);
	}
	const struct json_val *v = json_doc_root(doc);
	struct run *r = NULL;
	rc = run_create(id, json_i64_or(json_get(v, "epoch"), 0), dir, &r, err);
	if (rc < 0)
		return rc;
	snprintf(r->job_id, sizeof(r->job_id), "%s", json_str_or(json_get(v, "job_id"), ""));
	const struct run_part part = run_part_of(v);
	run_set_devices(r, v);
	if (run_set_ranks(r, &part, &why) < 0) {
		log_warn("attempt.dropped", LOG_STR("attempt_id", id), LOG_ERR(&why));
		run_destroy(r);
		return file_remove_tree(dir, err);
	}
	r->next = a->runs;
	a->runs = r;
	log_info("attempt.recovered", LOG_STR("attempt_id", id), LOG_INT("epoch", r->epoch));
	return 0;
}

int agent_recover(struct agent *a, struct err *err)
{
	char parent[FILE_PATH_MAX], dir[FILE_PATH_MAX];
	int rc = file_join(parent, a->settings->work_dir, "attempts", err);
	if (rc < 0)
		return rc;
	DIR *d = opendir(parent);
	if (d == NULL)
		return err_errno(err, ERR_IO, errno, "the folder %s", parent);
	struct dirent *e;
	while (rc == 0 && (e = readdir(d)) != NULL) {
		if (!disk_name_ok(e->d_name) || strlen(e->d_name) >= RUN_ID_MAX)
			continue;
		rc = file_join(dir, parent, e->d_name, err);
		if (rc == 0)
			rc = recover_one(a, dir, e->d_name, err);
	}
	closedir(d);
	return rc;
}

/* ------------------------------------------------------------------------------ the main loop */

/* Runs that are over and quiet leave, with their folder. */
static void remove_finished(struct agent *a)
{
	struct run **at = &a->runs;
	while (*at != NULL) {
		struct run *r = *at;
		struct err err = { 0 };
		if (!r->over || r->busy || r->meeting || !run_quiet(r)) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		if (file_remove_tree(r->dir, &err) < 0)
			log_error("attempt.not_deleted", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
		cache_touch(a->settings->work_dir, r->job_id);
		log_info("attempt.deleted", LOG_STR("attempt_id", r->id));
		run_destroy(r);
		a->left = true; /* its devices are free now */
		agent_report_soon(a);
	}
}

static bool job_in_use(void *ctx, const char *job_id)
{
	const struct agent *a = ctx;
	for (const struct run *r = a->runs; r != NULL; r = r->next)
		if (strcmp(r->job_id, job_id) == 0)
			return true;
	return false;
}

static void tick(struct agent *a)
{
	int64_t now = clock_mono_us(a->clock);
	advance_faults(a);
	for (struct run *r = a->runs; r != NULL; r = r->next)
		advance_run(a, r);
	remove_finished(a);
	if (a->polled_us != 0 && now - a->swept_us > SWEEP_MS * 1000LL) {
		a->swept_us = now;
		cache_sweep(a->settings->work_dir, a->settings->cache_keep_s, job_in_use, a);
	}
}

static int fill_fds(struct agent *a, int signals, struct pollfd *p)
{
	int n = 2;
	p[0] = (struct pollfd){ .fd = a->wake, .events = POLLIN };
	p[1] = (struct pollfd){ .fd = signals, .events = POLLIN };
	for (struct run *r = a->runs; r != NULL; r = r->next)
		for (int i = 0; i < r->rank_count && n < POLL_FDS_MAX; i++) {
			const struct link *l = &r->ranks[i].link;
			if (l->fd >= 0)
				p[n++] = (struct pollfd){ .fd = l->fd,
					.events = (short)(POLLIN | (l->out.len > 0 ? POLLOUT : 0)) };
		}
	return n;
}

static bool told_to_leave(int signals)
{
	struct signalfd_siginfo s;
	bool leave = false;
	while (read(signals, &s, sizeof(s)) == sizeof(s))
		leave = leave || s.ssi_signo == SIGTERM || s.ssi_signo == SIGINT;
	return leave;
}

int agent_serve(struct agent *a, struct err *err)
{
	sigset_t set;
	pthread_t poller, reporter;
	cleanup(freep) struct pollfd *fds = calloc(POLL_FDS_MAX, sizeof(*fds));
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	cleanup(closep) int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0 || fds == NULL)
		return err_errno(err, ERR_IO, errno, "no signal descriptor");
	int rc = pthread_create(&poller, NULL, poll_thread, a);
	if (rc == 0)
		rc = pthread_create(&reporter, NULL, report_thread, a);
	if (rc != 0)
		return err_errno(err, ERR_NO_MEMORY, rc, "no threads");
	rc = watch_start(a, err);
	if (rc < 0)
		return rc;
	for (;;) {
		uint64_t drained;
		pthread_mutex_lock(&a->lock);
		int n = fill_fds(a, signals, fds);
		pthread_mutex_unlock(&a->lock);
		if (poll(fds, (nfds_t)n, AGENT_TICK_MS) < 0 && errno != EINTR)
			return err_errno(err, ERR_IO, errno, "poll");
		if (read(a->wake, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
			return err_errno(err, ERR_IO, errno, "the event descriptor");
		if (told_to_leave(signals))
			return 0;
		pthread_mutex_lock(&a->lock);
		for (struct run *r = a->runs; r != NULL; r = r->next)
			talk_read(a, r);
		tick(a);
		pthread_mutex_unlock(&a->lock);
	}
}
