/* SPDX-License-Identifier: Apache-2.0
 * Starting trainers and finding them again. The file `started` is written and synced before the
 * first fork, so that after any crash either no trainer was started or the lock of each rank tells
 * who lives. */
#include "core/base/file.h"
#include "workers/agent/advance_private.h"

#include "core/base/log.h"
#include "core/json/reader.h"
#include "core/json/writer.h"
#include "core/spec/region.h"
#include "workers/agent/talk.h"
#include "workers/agent/transfer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LISTING_MAX = 1024 * 1024, SEEK_MS = 2000 };

static const char started[] = "started";

bool start_residency_ok(const struct agent *a, const struct run *r)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	if (json_doc_parse(r->listing, strlen(r->listing), LISTING_MAX, &doc, NULL) < 0)
		return false;
	const struct json_val *set = json_get(json_doc_root(doc), "residency");
	for (size_t i = 0; i < json_array_len(set); i++)
		if (region_contains(json_str_or(json_array_at(set, i), ""), a->settings->region))
			return true;
	return false;
}

/* A rank that does not answer is found out by the others before the attempt counts as stalled. */
static int64_t comm_deadline_ms(const struct agent *a, const struct run *r)
{
	int64_t ms = a->settings->comm_deadline_ms;
	return r->stall_ms > 0 && r->stall_ms < ms ? r->stall_ms : ms;
}

/* Of the attempt's devices: all ranks run one plan. */
static int64_t least_memory(const struct agent *a, const struct run *r)
{
	int64_t least = a->devices.list[r->devices[0]].memory_bytes;
	for (int i = 1; i < r->device_count; i++) {
		int64_t bytes = a->devices.list[r->devices[i]].memory_bytes;
		least = bytes < least ? bytes : least;
	}
	return least;
}

/* attempt.json: what the poll said, without the token, and what the trainer needs from us. */
static int write_attempt(struct agent *a, struct run *r, const struct json_val *v, struct err *err)
{
	static const char *const copied[] = { "attempt_id", "epoch", "job_id", "number", "devices",
		"rank", "ranks", "part", "parts", "max_runtime_s", "peak_flops", "files", "resume", "init",
		"spec" };
	cleanup(buf_finish) struct buf text;
	struct json_writer w;
	buf_init(&text, LISTING_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	for (size_t i = 0; i < ARRAY_LEN(copied); i++) {
		cleanup(freep) char *raw = NULL;
		if (json_get(v, copied[i]) != NULL && (raw = json_dump(json_get(v, copied[i]))) == NULL)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for attempt.json");
		json_field_raw(&w, copied[i], raw);
	}
	json_field_i64(&w, "threads", a->settings->device_threads);
	json_field_str(&w, "device", a->devices.nvml != NULL ? "cuda" : "cpu");
	json_field_i64(&w, "memory_bytes", least_memory(a, r));
	json_field_str(
		&w, "tokenizer", transfer_wants_gpt2(v) ? "files/" TRANSFER_GPT2_TOKENIZER : NULL);
	json_field_i64(&w, "first_seq", RUN_STARTING_SEQ + 1);
	json_field_str(&w, "host", a->settings->host);
	json_field_i64(&w, "comm_deadline_ms", comm_deadline_ms(a, r));
	json_end_object(&w);
	if (text.failed != 0)
		return err_set(err, text.failed, NULL, "attempt.json does not fit");
	return file_write_atomic(r->dir, "attempt.json", text.data, text.len, err);
}

/* Where the ranks meet: what earlier ones left there would be believed. */
static int make_rendezvous(const struct run *r, struct err *err)
{
	char path[FILE_PATH_MAX];
	int rc = file_join(path, r->dir, "rendezvous", err);
	if (rc == 0)
		rc = file_remove_tree(path, err);
	return rc < 0 ? rc : file_mkdir(path, err);
}

int start_folder(struct agent *a, struct run *r, struct err *err)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	int rc = json_doc_parse(r->listing, strlen(r->listing), LISTING_MAX, &doc, err);
	if (rc < 0)
		return rc;
	const struct json_val *v = json_doc_root(doc);
	for (int i = 0; i < r->device_count; i++)
		if (r->devices[i] < 0 || r->devices[i] >= a->devices.count)
			return err_set(
				err, ERR_INVALID_VALUE, NULL, "this machine has no device %d", r->devices[i]);
	const struct run_part part = run_part_of(v);
	rc = run_set_ranks(r, &part, err);
	if (rc == 0)
		rc = file_mkdir(r->dir, err);
	if (rc == 0)
		rc = make_rendezvous(r, err);
	if (rc == 0)
		rc = write_attempt(a, r, v, err);
	return rc;
}

static int start_rank(struct agent *a, struct run *r, int rank, struct err *err)
{
	struct run_rank *k = &r->ranks[rank];
	cleanup(closep) int other = -1;
	int rc = file_mkdir(k->dir, err);
	if (rc == 0)
		rc = link_pair(&k->link, &other, err);
	if (rc < 0)
		return rc;
	const struct device *d = &a->devices.list[r->devices[rank]];
	const struct process_options o = {
		.program = a->settings->trainer,
		.dir = r->dir,
		.log_path = k->log,
		.rank = r->first_rank + rank,
		.lease_until_ms = r->lease_until_us / 1000,
		.threads = a->settings->device_threads,
		.memory_bytes = d->memory_bytes,
		.gpu = d->uuid[0] != '\0' ? d->uuid : NULL,
		.channel_fd = other,
	};
	rc = process_start(&o, &k->pid, err);
	if (rc < 0)
		return rc;
	k->child = true;
	log_info("trainer.started", LOG_STR("attempt_id", r->id), LOG_INT("rank", r->first_rank + rank),
		LOG_INT("pid", k->pid));
	talk_hello(a, r, k);
	return 0;
}

int start_trainers(struct agent *a, struct run *r, struct err *err)
{
	int rc = file_write_atomic(r->dir, started, "", 0, err);
	r->progress_us = clock_boot_us(a->clock);
	for (int i = 0; rc == 0 && i < r->rank_count; i++) {
		r->phase = RUN_TRAINING;
		rc = start_rank(a, r, i, err);
	}
	r->stop_sent = RUN_RUN;
	return rc;
}

bool start_was_made(const struct run *r)
{
	char path[FILE_PATH_MAX];
	return file_join(path, r->dir, started, NULL) == 0 && file_exists(path);
}

bool start_adopt(struct run *r, int rank)
{
	struct run_rank *k = &r->ranks[rank];
	pid_t holder = process_holder(k->lock);
	if (holder <= 0)
		return false;
	k->pid = holder;
	k->child = false;
	link_close(&k->link);
	log_info("trainer.adopted", LOG_STR("attempt_id", r->id), LOG_INT("rank", r->first_rank + rank),
		LOG_INT("pid", holder));
	return true;
}

/* The old agent ended between `started` and its first fork, or right behind it: no trainer ever
 * made its lock file. Starting again is safe: should one still appear, the lock lets only one of
 * the two go on. */
static bool never_ran(const struct run *r)
{
	for (int i = 0; i < r->rank_count; i++)
		if (file_exists(r->ranks[i].lock))
			return false;
	return r->acked_seq <= RUN_STARTING_SEQ;
}

void start_find_again(struct agent *a, struct run *r)
{
	int64_t now = clock_boot_us(a->clock);
	int missing = 0;
	if (r->sought_us == 0)
		r->sought_us = now;
	for (int i = 0; i < r->rank_count; i++)
		if (r->ranks[i].pid == 0 && !start_adopt(r, i))
			missing++;
	/* One that was forked just before the old agent ended may not have its lock yet. */
	if (missing > 0 && now - r->sought_us < SEEK_MS * 1000LL)
		return;
	if (never_ran(r)) {
		r->phase = RUN_PREPARED;
		return;
	}
	for (int i = 0; i < r->rank_count; i++) {
		struct run_rank *k = &r->ranks[i];
		k->ended = k->pid == 0;
		k->exit = (struct process_exit){ .known = false, .exit_code = -1, .signal = -1 };
	}
	r->phase = RUN_TRAINING;
	r->progress_us = now;
}
