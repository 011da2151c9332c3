/* SPDX-License-Identifier: Apache-2.0
 * The yard's list against the runs: new ones begin, known ones learn what is desired, those that
 * are no longer listed are over. */
#include "workers/agent/reconcile.h"

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/json/reader.h"
#include "workers/agent/advance.h"
#include "workers/agent/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct run *begin(struct agent *a, const char *id, int64_t epoch)
{
	char parent[FILE_PATH_MAX], dir[FILE_PATH_MAX];
	struct err err = { 0 };
	struct run *r = NULL;
	int rc = file_join(parent, a->settings->work_dir, "attempts", &err);
	if (rc == 0)
		rc = file_join(dir, parent, id, &err);
	if (rc == 0)
		rc = run_create(id, epoch, dir, &r, &err);
	if (rc < 0) {
		log_error("attempt.refused", LOG_STR("attempt_id", id), LOG_ERR(&err));
		return NULL;
	}
	r->next = a->runs;
	a->runs = r;
	log_info("attempt.listed", LOG_STR("attempt_id", id), LOG_INT("epoch", epoch));
	return r;
}

static enum run_desired desired_of(const struct json_val *v)
{
	const char *word = json_str_or(json_get(v, "desired"), "run");
	if (strcmp(word, "cancel") == 0)
		return RUN_CANCEL;
	return strcmp(word, "pause") == 0 ? RUN_PAUSE : RUN_RUN;
}

static void take_listed(struct agent *a, struct run *r, const struct json_val *v, int64_t began_us)
{
	struct err err = { 0 };
	char *text = json_dump(v);
	if (text == NULL)
		return; /* the next poll tells again */
	free(r->listing);
	r->listing = text;
	run_set_devices(r, v);
	r->desired = desired_of(v);
	r->stall_ms = json_i64_or(json_get(v, "stall_ms"), 0);
	snprintf(r->job_id, sizeof(r->job_id), "%s", json_str_or(json_get(v, "job_id"), ""));
	snprintf(r->token, sizeof(r->token), "%s", json_str_or(json_get(v, "token"), ""));
	/* The yard acknowledged our end and still lists the attempt: an older message of ours, delayed
	 * on the way, had taken the end's number. */
	if (r->end_acked_us != 0 && began_us > r->end_acked_us) {
		log_warn("attempt.end_again", LOG_STR("attempt_id", r->id));
		if (run_renumber_end(r, &err) < 0)
			log_error("attempt.end_unsent", LOG_STR("attempt_id", r->id), LOG_ERR(&err));
		agent_report_soon(a);
	}
}

static bool listed(const struct json_val *list, const struct run *r)
{
	for (size_t i = 0; i < json_array_len(list); i++) {
		const struct json_val *v = json_array_at(list, i);
		if (strcmp(json_str_or(json_get(v, "attempt_id"), ""), r->id) == 0)
			return json_i64_or(json_get(v, "epoch"), 0) == r->epoch;
	}
	return false;
}

void reconcile_list(struct agent *a, const struct json_val *list, int64_t began_us)
{
	for (struct run *r = a->runs; r != NULL; r = r->next)
		if (!listed(list, r))
			advance_over(a, r, "not listed");
	for (size_t i = 0; i < json_array_len(list); i++) {
		const struct json_val *v = json_array_at(list, i);
		const char *id = json_str_or(json_get(v, "attempt_id"), "");
		int64_t epoch = json_i64_or(json_get(v, "epoch"), 0);
		if (!disk_name_ok(id) || strlen(id) >= RUN_ID_MAX || epoch <= 0) {
			log_error("attempt.bad_listing", LOG_STR("attempt_id", id));
			continue;
		}
		struct run *r = agent_find(a, id);
		if (r == NULL)
			r = begin(a, id, epoch);
		if (r != NULL && !r->over)
			take_listed(a, r, v, began_us);
	}
	a->polled_us = began_us;
	agent_report_soon(a);
}
