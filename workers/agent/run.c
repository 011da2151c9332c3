/* SPDX-License-Identifier: Apache-2.0
 * The queue of one attempt's messages: no gaps, nothing forgotten before the yard has it. */
#include "workers/agent/run.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "workers/agent/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int run_create(const char *id, int64_t epoch, const char *dir, struct run **ret, struct err *err)
{
	struct run *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an attempt");
	snprintf(r->id, sizeof(r->id), "%s", id);
	snprintf(r->dir, sizeof(r->dir), "%s", dir);
	r->epoch = epoch;
	atomic_init(&r->abandon, false);
	for (int i = 0; i < RUN_RANKS_MAX; i++)
		link_init(&r->ranks[i].link);
	*ret = r;
	return 0;
}

static void free_message(struct run_message *m)
{
	free(m->text);
	free(m);
}

void run_destroy(struct run *r)
{
	if (r == NULL)
		return;
	while (r->first != NULL) {
		struct run_message *m = r->first;
		r->first = m->next;
		free_message(m);
	}
	for (int i = 0; i < RUN_RANKS_MAX; i++)
		link_finish(&r->ranks[i].link);
	free(r->listing);
	free(r->end_text);
	free(r->held_end);
	free(r);
}

void run_destroyp(struct run **r)
{
	run_destroy(*r);
	*r = NULL;
}

struct run_part run_part_of(const struct json_val *listing)
{
	int64_t count = (int64_t)json_array_len(json_get(listing, "devices"));
	int64_t first = json_i64_or(json_get(listing, "rank"), 0);
	int64_t world = json_i64_or(json_get(listing, "ranks"), count);
	int64_t part = json_i64_or(json_get(listing, "part"), 0);
	int64_t parts = json_i64_or(json_get(listing, "parts"), 1);
	bool fits = part >= 0 && part < parts && parts <= RUN_WORLD_MAX && count <= RUN_RANKS_MAX &&
		first >= 0 && world <= RUN_WORLD_MAX && first + count <= world;
	return (struct run_part){ .first = (int)first,
		.count = fits ? (int)count : 0,
		.world = (int)world,
		.part = (int)part,
		.parts = (int)parts };
}

int run_set_ranks(struct run *r, const struct run_part *part, struct err *err)
{
	if (part->count < 1 || part->count > RUN_RANKS_MAX)
		return err_set(
			err, ERR_INVALID_VALUE, NULL, "%d ranks, at most %d", part->count, RUN_RANKS_MAX);
	for (int i = 0; i < part->count; i++) {
		struct run_rank *k = &r->ranks[i];
		char name[32];
		snprintf(name, sizeof(name), "rank%d", part->first + i);
		int rc = file_join(k->dir, r->dir, name, err);
		if (rc == 0)
			rc = file_join(k->lock, k->dir, "lock", err);
		if (rc == 0)
			rc = file_join(k->log, k->dir, "log.txt", err);
		if (rc < 0)
			return rc;
	}
	r->rank_count = part->count;
	r->first_rank = part->first;
	r->world = part->world;
	r->part = part->part;
	r->parts = part->parts;
	return 0;
}

void run_set_devices(struct run *r, const struct json_val *listing)
{
	const struct json_val *devices = json_get(listing, "devices");
	size_t count = json_array_len(devices);
	r->device_count = count <= RUN_RANKS_MAX ? (int)count : 0;
	for (int i = 0; i < r->device_count; i++)
		r->devices[i] = (int)json_i64_or(json_array_at(devices, (size_t)i), -1);
}

bool run_has_device(const struct run *r, int index)
{
	for (int i = 0; i < r->device_count; i++)
		if (r->devices[i] == index)
			return true;
	return false;
}

int64_t run_next_seq(const struct run *r)
{
	return r->last != NULL ? r->last->seq + 1 : r->acked_seq + 1;
}

int run_push(
	struct run *r, const char *text, size_t bytes, const char *dir, bool is_end, struct err *err)
{
	struct run_message *m = calloc(1, sizeof(*m));
	char *copy = calloc(1, bytes + 1);
	if (m == NULL || copy == NULL || r->waiting_bytes + bytes > RUN_WAITING_MAX) {
		free(m);
		free(copy);
		return err_set(err, ERR_NO_MEMORY, NULL, "no room for a message of %s", r->id);
	}
	memcpy(copy, text, bytes);
	m->seq = run_next_seq(r);
	m->ready = dir[0] == '\0';
	m->is_end = is_end;
	m->text = copy;
	m->len = bytes;
	snprintf(m->dir, sizeof(m->dir), "%s", dir);
	if (r->last != NULL)
		r->last->next = m;
	else
		r->first = m;
	r->last = m;
	r->waiting_bytes += bytes;
	if (is_end)
		r->end_seq = m->seq;
	return 0;
}

void run_acked(struct run *r, int64_t seq, int64_t mono_us)
{
	r->acked_known = true;
	if (seq > r->acked_seq)
		r->acked_seq = seq;
	while (r->first != NULL && r->first->seq <= r->acked_seq) {
		struct run_message *m = r->first;
		r->first = m->next;
		if (r->first == NULL)
			r->last = NULL;
		r->waiting_bytes -= m->len;
		if (m->is_end) {
			r->end_acked_us = mono_us;
			free(r->end_text);
			r->end_text = m->text;
			m->text = NULL;
		}
		free_message(m);
	}
}

int run_push_starting(struct run *r, struct err *err)
{
	char text[64];
	if (run_next_seq(r) > RUN_STARTING_SEQ)
		return 0; /* stored before a restart */
	int n = snprintf(text, sizeof(text), "{\"seq\":%d,\"t\":\"starting\"}", RUN_STARTING_SEQ);
	return run_push(r, text, (size_t)n, "", false, err);
}

int run_push_end(struct run *r, const struct run_end *end, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	struct json_writer w;
	if (r->end_seq != 0)
		return 0;
	buf_init(&text, RUN_MESSAGE_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "seq", run_next_seq(r));
	json_field_str(&w, "t", "end");
	json_field_str(&w, "outcome", end->outcome);
	if (end->reason != NULL)
		json_field_str(&w, "reason", end->reason);
	if (end->message[0] != '\0')
		json_field_str(&w, "message", end->message);
	if (end->rank >= 0)
		json_field_i64(&w, "rank", end->rank);
	if (end->exit.known && end->exit.exit_code >= 0)
		json_field_i64(&w, "exit_code", end->exit.exit_code);
	if (end->exit.known && end->exit.signal >= 0)
		json_field_i64(&w, "signal", end->exit.signal);
	if (end->log != NULL) {
		json_key(&w, "last_lines");
		json_begin_array(&w);
		disk_tail(end->log, RUN_TAIL_LINES, &w);
		json_end_array(&w);
	}
	json_field_i64(&w, "step", r->last_step);
	json_end_object(&w);
	if (text.failed != 0)
		return err_set(err, text.failed, NULL, "the end of %s does not fit", r->id);
	return run_push(r, text.data, text.len, "", true, err);
}

int run_renumber_end(struct run *r, struct err *err)
{
	cleanup(buf_finish) struct buf text;
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	if (r->end_text == NULL)
		return 0;
	int rc = json_doc_parse(r->end_text, strlen(r->end_text), 2 * RUN_MESSAGE_MAX, &doc, err);
	if (rc < 0)
		return rc;
	struct json_writer w;
	void *iter = NULL;
	const char *key = NULL;
	const struct json_val *v = NULL;
	buf_init(&text, 2 * RUN_MESSAGE_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "seq", run_next_seq(r));
	while (json_object_next(json_doc_root(doc), &iter, &key, &v)) {
		cleanup(freep) char *raw = json_dump(v);
		if (strcmp(key, "seq") != 0)
			json_field_raw(&w, key, raw);
	}
	json_end_object(&w);
	if (text.failed != 0)
		return err_set(err, text.failed, NULL, "the end of %s does not fit", r->id);
	rc = run_push(r, text.data, text.len, "", true, err);
	if (rc == 0)
		r->end_acked_us = 0;
	return rc;
}

struct run_message *run_first_unready(const struct run *r)
{
	struct run_message *m = r->first;
	while (m != NULL && m->ready)
		m = m->next;
	return m;
}

bool run_quiet(const struct run *r)
{
	for (int i = 0; i < r->rank_count; i++)
		if (r->ranks[i].pid > 0 && !r->ranks[i].ended)
			return false;
	return true;
}
