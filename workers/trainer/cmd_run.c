/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer run: the same loop with no yard: messages go to standard output, one JSON
 * object a line, checkpoints and the model to --out. SIGINT and SIGTERM save a checkpoint and
 * leave. */
#include "core/base/file.h"
#include "workers/trainer/command.h"

#include "core/base/num.h"
#include "workers/trainer/loop.h"
#include "workers/trainer/message.h"
#include "workers/trainer/spec_file.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RUN_TEXT_MAX = 16 * 1024, THREADS_MAX = 1024 };

struct options {
	const char *spec_path, *out;
	struct session_inputs inputs;
	int64_t threads;
};

struct console {
	int64_t seq;
	bool stop;
};

static int on_message(
	void *ctx, const char *json, bool droppable, int64_t *ret_seq, struct err *err)
{
	struct console *c = ctx;
	(void)droppable;
	c->seq++;
	if (ret_seq != NULL)
		*ret_seq = c->seq;
	if (printf("%s\n", json) < 0 || fflush(stdout) != 0)
		return err_set(err, ERR_IO, NULL, "standard output cannot be written");
	return 0;
}

static int64_t on_acked_seq(void *ctx)
{
	const struct console *c = ctx;
	return c->seq;
}

static enum loop_order on_order(void *ctx)
{
	struct console *c = ctx;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	if (sigtimedwait(&set, NULL, &(struct timespec){ 0 }) > 0)
		c->stop = true;
	return c->stop ? LOOP_CANCEL : LOOP_GO_ON;
}

static bool on_take_checkpoint(void *ctx)
{
	(void)ctx;
	return false;
}

static void on_alive(void *ctx, int64_t step)
{
	(void)ctx;
	(void)step;
}

static const struct reporter reporter = {
	.message = on_message,
	.acked_seq = on_acked_seq,
	.order = on_order,
	.take_checkpoint = on_take_checkpoint,
	.alive = on_alive,
};

static int add_data(struct session_inputs *in, const char *word, struct err *err)
{
	static const char training[] = "training_file=", validation[] = "validation_file=";
	struct data_file *list;
	int *count;
	if (strncmp(word, training, sizeof(training) - 1) == 0) {
		word += sizeof(training) - 1;
		list = in->training;
		count = &in->training_count;
	} else if (strncmp(word, validation, sizeof(validation) - 1) == 0) {
		word += sizeof(validation) - 1;
		list = in->validation;
		count = &in->validation_count;
	} else {
		return err_set(err, ERR_INVALID_VALUE, "--data",
			"\"%s\" is not training_file=PATH or validation_file=PATH", word);
	}
	if (*count == SPEC_FILES_MAX)
		return err_set(err, ERR_INVALID_VALUE, "--data", "more than %d files", SPEC_FILES_MAX);
	const char *slash = strrchr(word, '/');
	list[*count].path = word;
	list[*count].label = slash != NULL ? slash + 1 : word;
	(*count)++;
	return 0;
}

static int parse(int argc, char **argv, struct options *o, struct err *err)
{
	static const char *const names[] = { "--data", "--threads", "--out", "--resume" };
	o->threads = 1;
	for (int i = 1; i < argc; i++) {
		size_t which = 0;
		while (which < ARRAY_LEN(names) && strcmp(argv[i], names[which]) != 0)
			which++;
		if (which == ARRAY_LEN(names)) {
			if (o->spec_path != NULL || argv[i][0] == '-')
				return err_set(err, ERR_INVALID_VALUE, argv[i], "the argument is not known");
			o->spec_path = argv[i];
			continue;
		}
		if (++i == argc)
			return err_set(err, ERR_MISSING_FIELD, names[which], "needs a value");
		int rc = 0;
		switch (which) {
		case 0: rc = add_data(&o->inputs, argv[i], err); break;
		case 1:
			if (num_parse_i64(argv[i], 1, THREADS_MAX, &o->threads) < 0)
				rc = err_set(err, ERR_INVALID_VALUE, "--threads", "1 to %d", THREADS_MAX);
			break;
		case 2: o->out = argv[i]; break;
		default: o->inputs.resume_dir = argv[i]; break;
		}
		if (rc < 0)
			return rc;
	}
	if (o->spec_path == NULL || o->out == NULL || o->inputs.training_count == 0)
		return err_set(err, ERR_MISSING_FIELD, NULL,
			"usage: trainyard-trainer run SPEC.json --data training_file=PATH … --out DIR");
	o->inputs.threads = (int)o->threads;
	return 0;
}

static int run(const struct options *o, struct err *err)
{
	struct job_spec spec;
	struct console console = { 0 };
	struct loop_result result;
	const struct clock *clock = clock_system();
	int64_t started_us = clock_boot_us(clock);
	cleanup(session_closep) struct session *s = NULL;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, RUN_TEXT_MAX);
	int rc = spec_file_read(o->spec_path, &spec, err);
	if (rc == 0)
		rc = session_open(&spec, &o->inputs, &s, err);
	if (rc == 0)
		rc = file_mkdir(o->out, err);
	if (rc < 0)
		return rc;
	struct loop l = {
		.session = s,
		.reporter = &reporter,
		.reporter_ctx = &console,
		.clock = clock,
		.dir = o->out,
		.model_dir = "final",
		.every_step = true,
		.keep = spec.checkpoint_keep,
		.started_us = started_us,
		.max_runtime_s = spec.limits.max_runtime_s,
	};
	loop_run(&l, &result);
	struct message_end end = {
		.outcome = result.outcome,
		.reason = result.reason,
		.message = result.message,
		.step = result.step,
		.dir = result.has_model ? "final" : NULL,
	};
	message_end(s, &end, &text);
	printf("%s\n", buf_cstr(&text));
	return strcmp(result.outcome, "succeeded") == 0 ? COMMAND_OK : COMMAND_FAILED;
}

int cmd_run(int argc, char **argv)
{
	struct options o = { 0 };
	struct err err = { 0 };
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	int rc = parse(argc, argv, &o, &err);
	int status = rc == 0 ? run(&o, &err) : rc;
	if (status < 0) {
		fprintf(stderr, "trainyard-trainer: %s%s%s\n", err.param, err.param[0] ? ": " : "",
			err.message);
		return rc < 0 ? COMMAND_USAGE : COMMAND_FAILED;
	}
	return status;
}
