/* SPDX-License-Identifier: Apache-2.0
 * The trainer's commands: one file each, called by main with the remaining arguments. Each returns
 * the exit status. */
#pragma once

#include <stdbool.h>

enum {
	COMMAND_OK = 0,
	COMMAND_FAILED = 1, /* the training failed; said in `end` or on standard output */
	COMMAND_USAGE = 2,
	COMMAND_NO_LEASE = 71,  /* the lease ran out */
	COMMAND_LOST_RANK = 72, /* another rank was lost, or ended all of them */
	COMMAND_BUSY = 75,      /* another process already trains this rank of the attempt */
};

/* --rank=N --dir=ATTEMPT_DIR [--lease-until=BOOT_MS]: the agent's child. on_no_lease ends the
 * process. */
int cmd_rank(int argc, char **argv, void (*on_no_lease)(void));
/* bench SPEC.json: the time of a step on made-up data. */
int cmd_bench(int argc, char **argv);
/* calibrate: what this machine can do, as the rates that quotes and MFU use. */
int cmd_calibrate(int argc, char **argv);
/* generate DIR --prompt TEXT: text from a finished language model. */
int cmd_generate(int argc, char **argv);
/* plan SPEC.json: what a job needs, without data and without a device. */
int cmd_plan(int argc, char **argv);
/* run SPEC.json --data training_file=PATH … : trains without a yard. */
int cmd_run(int argc, char **argv);
/* validate SPEC.json --data training_file=PATH … : checks all data. */
int cmd_validate(int argc, char **argv);
