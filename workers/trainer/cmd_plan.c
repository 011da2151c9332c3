/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer plan SPEC.json: the plan's figures, without data and without a device. */
#include "workers/trainer/command.h"

#include "workers/trainer/message.h"
#include "workers/trainer/spec_file.h"

#include <stdio.h>

enum { PLAN_TEXT_MAX = 64 * 1024 };

int cmd_plan(int argc, char **argv)
{
	struct job_spec spec;
	struct err err = { 0 };
	cleanup(plan_destroyp) struct plan *plan = NULL;
	cleanup(buf_finish) struct buf text;
	if (argc != 2) {
		fprintf(stderr, "usage: trainyard-trainer plan SPEC.json\n");
		return COMMAND_USAGE;
	}
	buf_init(&text, PLAN_TEXT_MAX);
	int rc = spec_file_read(argv[1], &spec, &err);
	if (rc == 0)
		rc = plan_compile(&spec, NULL, &plan, &err);
	if (rc < 0) {
		fprintf(stderr, "trainyard-trainer: %s%s%s\n", err.param, err.param[0] ? ": " : "",
			err.message);
		return COMMAND_FAILED;
	}
	message_plan(plan, &text);
	printf("%s\n", buf_cstr(&text));
	return COMMAND_OK;
}
