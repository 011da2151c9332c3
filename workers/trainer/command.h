/* SPDX-License-Identifier: Apache-2.0
 * The trainer's commands: one file each, called by main with the remaining arguments. Each returns
 * the exit status. */
#pragma once

#include <stdbool.h>

enum {
	COMMAND_OK = 0,
	COMMAND_FAILED = 1, /* the training failed; said in `end` or on standard output */
	COMMAND_USAGE = 2,
	COMMAND_NO_LEASE = 71, /* the lease ran out */
	COMMAND_BUSY = 75,     /* another process already trains this rank of the attempt */
};

/* --rank=N --dir=ATTEMPT_DIR [--lease-until=BOOT_MS]: the agent's child. on_no_lease ends the
 * process. */
int cmd_rank(int argc, char **argv, void (*on_no_lease)(void));
/* plan SPEC.json: prints the plan's figures as one JSON object. */
int cmd_plan(int argc, char **argv);
/* run SPEC.json --data training_file=PATH … : trains without a yard. */
int cmd_run(int argc, char **argv);
