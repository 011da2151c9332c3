/* SPDX-License-Identifier: Apache-2.0
 * One attempt on this machine: what the yard asked for, its trainers, and its messages until the
 * yard has them. Plain data guarded by the agent's lock; the functions here only keep the queue. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "workers/agent/device.h"
#include "workers/agent/link.h"
#include "workers/agent/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	RUN_ID_MAX = 64,
	RUN_TOKEN_MAX = 256,
	RUN_RANKS_MAX = 64,   /* on this machine */
	RUN_WORLD_MAX = 4096, /* of an attempt */
	RUN_MESSAGE_MAX = LINK_LINE_MAX + 4096,
	RUN_WAITING_MAX = 8 * 1024 * 1024, /* bytes of unacknowledged messages of one attempt */
	RUN_STARTING_SEQ = 1, /* `starting` is the agent's; the trainer's begin behind it */
	RUN_TAIL_LINES = 20,
};

/* Which ranks of the attempt are this machine's: `count` of them from `first` on, of `world`; and
 * which of its machines this is. */
struct run_part {
	int first, count, world;
	int part, parts;
};

struct json_val;

enum run_desired { RUN_RUN, RUN_CANCEL, RUN_PAUSE };

enum run_phase {
	RUN_NEW,       /* waits for the yard's first answer: is the lease ours, what is stored */
	RUN_PREPARING, /* inputs are fetched */
	RUN_PREPARED,
	RUN_TRAINING, /* trainers were started (by us or by the agent before us) */
};

struct run_message {
	struct run_message *next;
	int64_t seq;
	bool ready; /* its files are uploaded, it may be reported */
	bool is_end;
	char dir[128]; /* folder to upload, inside the attempt's; "" = none */
	char *text;    /* JSON object with `seq`, without attempt_id and epoch */
	size_t len;
};

struct run_rank {
	pid_t pid; /* 0 = none */
	bool child, ended;
	struct process_exit exit;
	struct link link;
	int64_t tried_us; /* last attempt to connect */
	char dir[FILE_PATH_MAX], lock[FILE_PATH_MAX], log[FILE_PATH_MAX];
};

struct run_end {
	const char *outcome, *reason; /* reason NULL unless failed */
	char message[ERR_MESSAGE_MAX];
	int rank; /* of the attempt; -1 = none */
	struct process_exit exit;
	const char *log; /* its last lines are told; NULL = none */
};

struct run {
	struct run *next;
	char id[RUN_ID_MAX], job_id[RUN_ID_MAX], token[RUN_TOKEN_MAX], dir[FILE_PATH_MAX];
	int64_t epoch;

	char *listing; /* the poll's object for this attempt, NULL before the first poll */
	enum run_desired desired;
	int64_t stall_ms;
	bool over; /* lost, or no longer listed: kill, delete, forget */

	enum run_phase phase;
	bool acked_known;
	int64_t acked_seq;
	int64_t lease_until_us; /* boot clock; 0 before the first acknowledged beat */
	struct run_message *first, *last;
	size_t waiting_bytes;
	int64_t end_seq;      /* of the message that ends the attempt, 0 = none yet */
	char *end_text;       /* it again, in case the yard never saw it */
	int64_t end_acked_us; /* monotonic; 0 = not acknowledged */

	struct run_rank ranks[RUN_RANKS_MAX]; /* this machine's: the attempt's from first_rank on */
	int rank_count, first_rank, world;
	int part, parts;            /* this machine among the attempt's */
	int devices[RUN_RANKS_MAX]; /* this machine's indexes, one a rank */
	int device_count;           /* 0 = not known yet */
	int64_t held_us; /* boot clock: since when others hold memory of its devices; 0 = nobody */
	char fault[DEVICE_FAULT_MAX]; /* of a device of its: it must end; "" = none */
	bool meeting;                 /* a thread of meet.c uses this run */
	char *held_end;   /* rank 0's last word, of a lost rank: told unless we find out more */
	int64_t lost_us;  /* boot clock: since when ranks miss another one; 0 = they do not */
	bool has_verdict; /* why we killed the trainers; told when they are gone */
	struct run_end verdict;
	int64_t progress_us; /* boot clock: last sign that the training moves */
	int64_t last_step;
	int64_t sought_us; /* boot clock: since when trainers of an earlier agent are looked for */
	enum run_desired stop_sent;

	bool busy;           /* a transfer thread uses this run */
	atomic_bool abandon; /* tells it to leave */
};

int run_create(
	const char *id, int64_t epoch, const char *dir, struct run **ret, struct err *err) must_check;
void run_destroy(struct run *r);
void run_destroyp(struct run **r);
/* Names the folders and files of the part's ranks. */
int run_set_ranks(struct run *r, const struct run_part *part, struct err *err) must_check;
/* The part that a poll's object for the attempt, or attempt.json, gives to this machine. */
struct run_part run_part_of(const struct json_val *listing);

/* Notes the devices that a poll's object for the attempt, or attempt.json, names. */
void run_set_devices(struct run *r, const struct json_val *listing);
bool run_has_device(const struct run *r, int index);

/* The number that the next message gets. */
int64_t run_next_seq(const struct run *r);
/* Queues a copy of text, which must carry run_next_seq. dir: what is uploaded first, "" = nothing.
 */
int run_push(struct run *r, const char *text, size_t bytes, const char *dir, bool is_end,
	struct err *err) must_check;
void run_acked(struct run *r, int64_t seq, int64_t mono_us);
int run_push_starting(struct run *r, struct err *err) must_check;
/* Queues the attempt's end, once. */
int run_push_end(struct run *r, const struct run_end *end, struct err *err) must_check;
/* The yard acknowledged an end that it still lists as running: a message of ours from before a
 * crash took its number. Gives it the next one. */
int run_renumber_end(struct run *r, struct err *err) must_check;
/* The first message that waits for an upload, NULL = none. */
struct run_message *run_first_unready(const struct run *r);
/* All trainers are gone (or never were). */
bool run_quiet(const struct run *r);
