/* SPDX-License-Identifier: Apache-2.0
 * Moving a run's files on a thread of its own: inputs and checkpoints in, checkpoints and models
 * out. A run has one transfer at a time (run.busy); its thread takes the agent's lock only to hand
 * over results. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "workers/agent/agent.h"

struct json_val;

/* With the lock held. Fetches every file of the listing, then the run is RUN_PREPARED, or has an
 * end queued. */
int transfer_start_fetch(struct agent *a, struct run *r, struct err *err) must_check;
/* With the lock held. Uploads the folder of the first message that waits for it, then the message
 * is ready; what cannot be uploaded becomes the attempt's end. */
int transfer_start_store(struct agent *a, struct run *r, struct err *err) must_check;

/* Its name in tokenizer_dir, and in the attempt's files/. */
#define TRANSFER_GPT2_TOKENIZER "gpt2.json"
/* Whether the attempt of the poll's object needs it. */
bool transfer_wants_gpt2(const struct json_val *listing);

/* In transfer_files.c; without the lock, on the transfer's thread. */
struct transfer_job {
	struct agent *agent;
	struct run *run;
	struct http *http;
	char id[RUN_ID_MAX], job_id[RUN_ID_MAX], token[RUN_TOKEN_MAX], dir[FILE_PATH_MAX];
	int64_t epoch;
	char *listing;    /* fetch */
	int64_t seq;      /* store: of the message */
	char *text;       /* store: its JSON */
	char folder[128]; /* store */
};
int transfer_fetch_all(struct transfer_job *t, struct err *err) must_check;
/* *ret_text: the message with the files in place of the folder, malloc'ed. */
int transfer_store_all(struct transfer_job *t, char **ret_text, struct err *err) must_check;
