/* SPDX-License-Identifier: Apache-2.0
 * attempt.json: what the agent asks one attempt's trainers to do. Read once at the start. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/spec/spec.h"
#include "workers/trainer/session.h"

#include <stdint.h>

enum { ATTEMPT_BYTES_MAX = 1024 * 1024 };

struct attempt {
	struct json_doc *doc; /* owns the strings */
	int spec_code;        /* not 0: the spec is not valid, and spec_err says why */
	struct err spec_err;
	struct job_spec spec;
	struct session_inputs inputs;
	char paths[2 * SPEC_FILES_MAX][FILE_PATH_MAX];
	/* "" where there is none; inputs points at those that there are. */
	char resume_dir[FILE_PATH_MAX];
	char init_dir[FILE_PATH_MAX];
	char tokenizer[FILE_PATH_MAX];
	char scratch_dir[FILE_PATH_MAX];
	char rendezvous[FILE_PATH_MAX]; /* where the ranks meet */
	const char *host;               /* what the other ranks reach this machine at; NULL: itself */
	int64_t comm_deadline_ms;       /* of each collective; 0: comm.h's */
	int64_t max_runtime_s;
	int64_t first_seq; /* of the trainer's first message; the agent used the ones below */
};

/* Reads <dir>/attempt.json; paths in it are made absolute with dir. */
int attempt_read(const char *dir, struct attempt **ret, struct err *err) must_check;
void attempt_free(struct attempt *a);
void attempt_freep(struct attempt **a);
