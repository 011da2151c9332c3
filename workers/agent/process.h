/* SPDX-License-Identifier: Apache-2.0
 * Trainer processes: started with nothing of the agent's in hand, found again after a restart by
 * the kernel's lock on rankN/lock. Called on the agent's main thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	PROCESS_EXIT_NO_LEASE = 71,  /* the trainer's status when its lease ran out */
	PROCESS_EXIT_LOST_RANK = 72, /* the trainer's status when another rank of its job was lost */
	PROCESS_EXIT_BUSY = 75,      /* the trainer's status when another one holds the rank's lock */
	PROCESS_MEMORY_SLACK_BYTES = 1 << 30, /* above the device's memory: code, libraries, files */
	PROCESS_FILES_MAX = 4096, /* descriptors: connections to the other ranks, files of a data set */
};

struct process_options {
	const char *program;
	const char *dir; /* the attempt's folder: becomes the working directory */
	const char *log_path;
	int rank;
	int64_t lease_until_ms; /* boot clock */
	int64_t threads;
	int64_t memory_bytes; /* of the device */
	const char *gpu;      /* UUID of the one GPU, or MIG instance, that it sees; NULL = none */
	int channel_fd;       /* becomes descriptor 3; stays the caller's */
};

int process_start(const struct process_options *o, pid_t *ret_pid, struct err *err) must_check;

struct process_exit {
	bool known;            /* false: not our child, so only that it is gone is known */
	int exit_code, signal; /* -1 where it does not apply */
};
/* True when the process has ended. child: started by this very agent process. For others the rank's
 * lock tells. */
bool process_ended(pid_t pid, bool child, const char *lock_path, struct process_exit *ret);
/* The process that holds the lock, 0 = none. */
pid_t process_holder(const char *lock_path);
/* SIGKILL. For a process that is not our child only while it holds the lock. */
void process_kill(pid_t pid, bool child, const char *lock_path);
