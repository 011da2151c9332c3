/* SPDX-License-Identifier: Apache-2.0
 * Lines to and from trainers. Messages of rank 0 are the attempt's; the other ranks only say that
 * they are alive, or that they failed. */
#include "workers/agent/talk.h"

#include "core/base/log.h"
#include "core/json/reader.h"
#include "workers/agent/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_OUT = 160 };

/* checkpoints/step-N or model: nothing else is ever uploaded. */
static bool folder_ok(const char *dir)
{
	static const char checkpoints[] = "checkpoints/";
	if (strncmp(dir, checkpoints, sizeof(checkpoints) - 1) == 0)
		dir += sizeof(checkpoints) - 1;
	return disk_name_ok(dir) && strlen(dir) < 64;
}

static void refuse(struct run *r, struct run_rank *k, const char *why)
{
	log_error("trainer.bad_line", LOG_STR("attempt_id", r->id), LOG_STR("why", why));
	link_close(&k->link);
}

static void take_message(struct agent *a, struct run *r, struct run_rank *k,
	const struct json_val *v, const char *line, size_t bytes)
{
	struct err err = { 0 };
	const char *t = json_str_or(json_get(v, "t"), "");
	const char *dir = json_str_or(json_get(v, "dir"), "");
	int64_t seq = json_i64_or(json_get(v, "seq"), 0);
	bool is_end = strcmp(t, "end") == 0;
	if (r->end_seq != 0 || seq < run_next_seq(r))
		return; /* after the end, or resent */
	if (seq != run_next_seq(r)) {
		refuse(r, k, "a message is missing");
		return;
	}
	if (dir[0] != '\0' && !folder_ok(dir)) {
		refuse(r, k, "a folder that is not the trainer's");
		return;
	}
	if (is_end && json_bool_or(json_get(v, "lost_rank"), false)) {
		free(r->held_end);
		r->held_end = strdup(line);
		return;
	}
	if (run_push(r, line, bytes, dir, is_end, &err) < 0) {
		refuse(r, k, err.message); /* it keeps the message and gets another connection */
		return;
	}
	int64_t step = json_i64_or(json_get(v, "step"), r->last_step);
	r->last_step = step > r->last_step ? step : r->last_step;
	agent_report_soon(a);
}

static void take_line(
	struct agent *a, struct run *r, struct run_rank *k, const char *line, size_t bytes)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	if (json_doc_parse(line, bytes, LINK_LINE_MAX, &doc, NULL) < 0) {
		refuse(r, k, "not JSON");
		return;
	}
	const struct json_val *v = json_doc_root(doc);
	const char *t = json_str_or(json_get(v, "t"), "");
	r->progress_us = clock_boot_us(a->clock);
	if (strcmp(t, "alive") == 0) {
		int64_t step = json_i64_or(json_get(v, "step"), 0);
		r->last_step = step > r->last_step ? step : r->last_step;
	} else if (k == &r->ranks[0] && r->first_rank == 0) {
		take_message(a, r, k, v, line, bytes);
	}
}

void talk_read(struct agent *a, struct run *r)
{
	for (int i = 0; i < r->rank_count; i++) {
		struct run_rank *k = &r->ranks[i];
		const char *line;
		size_t bytes = 0;
		bool more = true;
		while (k->link.fd >= 0 && more) {
			more = link_read(&k->link);
			bool any = false;
			while ((line = link_line(&k->link, &bytes)) != NULL) {
				take_line(a, r, k, line, bytes);
				any = true;
			}
			if (!more)
				link_close(&k->link);
			else if (!any && k->link.in.len > LINK_LINE_MAX)
				refuse(r, k, "a line that is too long");
			more = any; /* lines were taken: the buffer has room for what still waits */
		}
		link_flush(&k->link);
	}
}

static void lease_line(struct agent *a, const struct run *r, char ret_line[static LINE_MAX_OUT])
{
	int64_t now = clock_boot_us(a->clock);
	int64_t remaining_ms = (r->lease_until_us - now) / 1000;
	snprintf(ret_line, LINE_MAX_OUT,
		"{\"t\":\"lease\",\"remaining_ms\":%lld,\"until_boot_ms\":%lld}",
		(long long)(remaining_ms > 0 ? remaining_ms : 0), (long long)(r->lease_until_us / 1000));
}

static const char *stop_line(enum run_desired desired)
{
	return desired == RUN_CANCEL ? "{\"t\":\"stop\",\"why\":\"cancel\"}"
								 : "{\"t\":\"stop\",\"why\":\"pause\"}";
}

void talk_hello(struct agent *a, struct run *r, struct run_rank *k)
{
	char line[LINE_MAX_OUT];
	snprintf(line, sizeof(line), "{\"t\":\"hello\",\"acked_seq\":%lld}", (long long)r->acked_seq);
	link_send(&k->link, line);
	lease_line(a, r, line);
	link_send(&k->link, line);
	if (r->desired != RUN_RUN)
		link_send(&k->link, stop_line(r->desired));
}

static void send_all(struct run *r, const char *line)
{
	for (int i = 0; i < r->rank_count; i++)
		link_send(&r->ranks[i].link, line);
}

void talk_ack(struct run *r)
{
	char line[LINE_MAX_OUT];
	snprintf(line, sizeof(line), "{\"t\":\"ack\",\"seq\":%lld}", (long long)r->acked_seq);
	link_send(&r->ranks[0].link, line);
}

void talk_lease(struct agent *a, struct run *r)
{
	char line[LINE_MAX_OUT];
	lease_line(a, r, line);
	send_all(r, line);
}

void talk_stop(struct run *r)
{
	send_all(r, stop_line(r->desired));
}
