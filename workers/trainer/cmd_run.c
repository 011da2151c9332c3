/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer run: the same loop with no yard: messages go to standard output, one JSON
 * object a line, checkpoints and the model to --out. SIGINT and SIGTERM save a checkpoint and
 * leave. A job of several ranks is several such processes, of which rank 0 speaks. */
#include "workers/trainer/command.h"

#include "core/base/file.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/checkpoint.h"
#include "workers/trainer/files.h"
#include "workers/trainer/loop.h"
#include "workers/trainer/message.h"
#include "workers/trainer/options.h"
#include "workers/trainer/profile.h"
#include "workers/trainer/ranks.h"
#include "workers/trainer/rates.h"
#include "workers/trainer/run_ranks.h"
#include "workers/trainer/spec_file.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RUN_TEXT_MAX = 16 * 1024, PROFILE_STEPS_MAX = 1000 * 1000 };

static const char usage[] =
	"usage: trainyard-trainer run SPEC.json --data training_file=PATH --out DIR [options]\n"
	"\n"
	"Trains a job spec without a yard. Standard output has one JSON object a line: \"training\"\n"
	"(the plan), \"step\", \"evaluation\", \"checkpoint\", \"end\". DIR gets init/ (the weights "
	"before\n"
	"the first step), checkpoints/ and final/ (the finished model), all Hugging Face folders.\n"
	"\n"
	"  --data training_file=PATH    what to train on; again for more files\n"
	"  --data validation_file=PATH  what to evaluate on\n"
	"  --out DIR                    made if it is not there\n"
	"  --device KIND                " DEVICE_WORDS " (auto: a GPU where there is one); of "
	"several\n"
	"                               ranks here, each takes one\n"
	"  --threads N                  compute threads (1)\n"
	"  --init DIR                   start from these Hugging Face files instead of fresh weights\n"
	"  --tokenizer PATH             tokenizer.json (otherwise that of --init)\n"
	"  --resume DIR                 go on from this checkpoint\n"
	"  --peak-flops X               of this machine, for \"mfu\"; or\n"
	"  --rates FILE                 what `trainyard-trainer calibrate` measured\n"
	"  --profile[=DIR]              a Chrome trace of each step (DIR/profile), and a summary\n"
	"  --profile-steps N            how many steps are traced (10)\n"
	"  --ranks N                    as many processes as the spec's resources.count, each with "
	"its\n"
	"                               --threads; or, of these N, one alone:\n"
	"  --rank R                     this one\n"
	"  --rendezvous DIR             where it meets the others: a folder that all have, and empty\n"
	"  --host ADDRESS               what the others reach this machine at (127.0.0.1)\n"
	"  --deadline-ms N              a rank that others wait for so long is lost (600000)\n";

enum { ALL_RANKS = -1 };

struct run_command {
	const char *spec_path, *out, *device, *rates, *profile, *rendezvous, *host;
	struct session_inputs inputs;
	int64_t threads, profile_steps, ranks, rank, deadline_ms;
	struct ranks others;
	bool over;                         /* all ranks end together */
	char meeting_place[FILE_PATH_MAX]; /* of ranks that are started here */
	char tokenizer[FILE_PATH_MAX];
	struct job_spec spec; /* read once: the ranks that are started here have it */
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

static int check(const struct run_command *c, struct err *err)
{
	if (c->spec_path == NULL)
		return err_set(err, ERR_MISSING_FIELD, "SPEC.json", "a spec is needed: run SPEC.json");
	if (c->out == NULL)
		return err_set(err, ERR_MISSING_FIELD, "--out", "a folder is needed");
	if (c->inputs.training_count == 0)
		return err_set(err, ERR_MISSING_FIELD, "--data", "training_file=PATH is needed");
	if (c->rank >= c->ranks)
		return err_set(err, ERR_INVALID_VALUE, "--rank", "there is no rank %lld of %lld (--ranks)",
			(long long)c->rank, (long long)c->ranks);
	if ((c->rendezvous != NULL) != (c->rank != ALL_RANKS))
		return err_set(err, ERR_MISSING_FIELD, "--rendezvous",
			"--rank and --rendezvous go together: one rank, and where it meets the others");
	return 0;
}

/* What a run replaces in --out must come from a run. */
static int check_replaced(const char *out, const char *name, const char *what, struct err *err)
{
	char path[FILE_PATH_MAX], manifest[FILE_PATH_MAX];
	int rc = file_join(path, out, name, err);
	if (rc == 0)
		rc = file_join(manifest, path, "manifest.json", err);
	if (rc == 0 && file_exists(path) && !file_exists(manifest))
		return err_set(err, ERR_CONFLICT, "--out",
			"%s is no %s that a run wrote, and this one would replace it: move it away or name "
			"another folder",
			path, what);
	return rc;
}

/* Any of them may be a step that this run comes to. */
static int check_checkpoints(const char *dir, struct err *err)
{
	const struct dirent *entry;
	int rc = 0;
	DIR *d = opendir(dir);
	if (d == NULL)
		return 0; /* made at the first checkpoint, or refused then */
	while (rc == 0 && (entry = readdir(d)) != NULL) {
		int64_t step = 0;
		char name[CHECKPOINT_NAME_MAX];
		if (sscanf(entry->d_name, "step-%19" SCNd64, &step) != 1)
			continue;
		checkpoint_name(step, name);
		if (strcmp(name, entry->d_name) == 0)
			rc = check_replaced(dir, name, "checkpoint", err);
	}
	closedir(d);
	return rc;
}

static int check_folders(const char *out, struct err *err)
{
	char checkpoints[FILE_PATH_MAX];
	int rc = check_replaced(out, "init", "model", err);
	if (rc == 0)
		rc = check_replaced(out, "final", "model", err);
	if (rc == 0)
		rc = file_join(checkpoints, out, "checkpoints", err);
	return rc < 0 ? rc : check_checkpoints(checkpoints, err);
}

/* Weights that the spec starts from are not made up. */
static int check_base(
	const struct job_spec *spec, const struct session_inputs *inputs, struct err *err)
{
	if (spec->base[0] == '\0' || inputs->init_dir != NULL || inputs->resume_dir != NULL)
		return 0;
	return err_set(err, ERR_MISSING_FIELD, "--init",
		"the spec starts from %s ($.model.base): the folder of its files is needed", spec->base);
}

static int check_ranks(const struct run_command *c, const struct job_spec *spec, struct err *err)
{
	if (ranks_count(spec) == c->ranks)
		return 0;
	return err_set(err, ERR_INVALID_VALUE, "--ranks",
		"the spec's resources.count is %d: it needs --ranks %d, not %lld", ranks_count(spec),
		ranks_count(spec), (long long)c->ranks);
}

/* Two trainings in one folder would replace each other's checkpoints. One process holds it for all
 * ranks: the one that has started them, otherwise rank 0. */
static int hold_folder(const struct run_command *c, struct err *err)
{
	char lock[FILE_PATH_MAX];
	bool busy = false;
	int rc = file_mkdir(c->out, err);
	if (rc == 0)
		rc = file_join(lock, c->out, ".lock", err);
	if (rc == 0)
		rc = files_lock(lock, &busy, err);
	return busy ? err_set(err, rc, "--out", "another run writes into %s", c->out) : rc;
}

/* What the command line names, looked at before anything is taken, and before ranks are started:
 * then it is said once. */
static int check_all(struct run_command *c, struct err *err)
{
	c->inputs.threads = (int)c->threads;
	c->inputs.scratch_dir = c->out;
	int rc = device_parse(c->device, "--device", &c->inputs.device, err);
	if (rc == 0)
		rc = spec_file_read(c->spec_path, c->inputs.init_dir, &c->spec, err);
	if (rc == 0)
		rc = check_ranks(c, &c->spec, err);
	if (rc == 0)
		rc = check_base(&c->spec, &c->inputs, err);
	if (rc == 0)
		rc = check_folders(c->out, err);
	if (rc == 0)
		rc = spec_file_tokenizer(&c->spec, &c->inputs, c->tokenizer, err);
	if (rc == 0 && c->rates != NULL)
		rc = rates_read_peak(c->rates, c->spec.precision, &c->inputs.peak_flops, err);
	if (rc == 0 && (c->rank == 0 || c->rank == ALL_RANKS))
		rc = hold_folder(c, err);
	return rc < 0 ? rc : file_mkdir(c->out, err);
}

/* The weights before the first step. */
static int write_init(const struct run_command *c, const struct session *s, struct err *err)
{
	char init[FILE_PATH_MAX];
	if (c->inputs.resume_dir != NULL)
		return 0;
	int rc = file_join(init, c->out, "init", err);
	return rc < 0 ? rc : session_write_model(s, init, err);
}

/* The other ranks; then everything is opened. */
static int open_all(struct run_command *c, struct session **ret, struct err *err)
{
	struct ranks_place place = { .rank = (int)c->rank,
		.rendezvous = c->rendezvous,
		.host = c->host,
		.deadline_ms = c->deadline_ms };
	int rc = device_choose(c->inputs.device, &c->inputs.device, err);
	place.apart = rc == 0 && device_is_apart(c->inputs.device);
	if (rc == 0)
		rc = ranks_join(&c->spec, &place, &c->others, err);
	if (rc < 0)
		return rc;
	c->inputs.mesh = c->others.mesh;
	rc = session_open(&c->spec, &c->inputs, ret, err);
	if (rc == 0)
		rc = write_init(c, *ret, err);
	rc = agree_opened(c->inputs.mesh, rc, err);
	c->over = rc < 0 && !ranks_is_lost(rc);
	return rc;
}

static int tell_end(const struct session *s, const struct loop_result *result, struct err *err)
{
	struct message_end end = {
		.outcome = result->outcome,
		.reason = result->reason,
		.message = result->message,
		.step = result->step,
		.dir = result->has_model ? "final" : NULL,
	};
	cleanup(buf_finish) struct buf text;
	buf_init(&text, RUN_TEXT_MAX);
	message_end(s, &end, &text);
	buf_char(&text, '\n');
	return options_print(&text, err);
}

static int train(struct run_command *c, struct err *err)
{
	struct console console = { 0 };
	struct loop_result result;
	char profile[FILE_PATH_MAX];
	const struct clock *clock = clock_system();
	int64_t started_us = clock_boot_us(clock);
	cleanup(session_closep) struct session *s = NULL;
	int rc = open_all(c, &s, err);
	if (rc == 0)
		rc = file_join(profile, c->out, "profile", err);
	if (rc < 0)
		return rc;
	if (c->profile != NULL && c->profile[0] == '\0')
		c->profile = profile;
	struct loop l = {
		.session = s,
		.reporter = &reporter,
		.reporter_ctx = &console,
		.clock = clock,
		.dir = c->out,
		.model_dir = "final",
		.every_step = true,
		.sample_ids = true,
		.profile_dir = ranks_is_first(s->mesh) ? c->profile : NULL,
		.profile_steps = c->profile_steps,
		.keep = s->spec.checkpoint_keep,
		.started_us = started_us,
		.max_runtime_s = s->spec.limits.max_runtime_s,
	};
	loop_run(&l, &result);
	c->over = result.code == 0;
	if (!ranks_is_first(s->mesh))
		return ranks_is_lost(result.code) ? COMMAND_LOST_RANK
			: result.code < 0
			? err_set(err, result.code, NULL, "rank %lld: %s", (long long)c->rank, result.message)
			: COMMAND_OK;
	rc = tell_end(s, &result, err);
	if (rc < 0)
		return rc;
	return strcmp(result.outcome, "succeeded") == 0 ? COMMAND_OK : COMMAND_FAILED;
}

/* One rank, to its end. Where all end together, rank 0 says how, and the others are through. */
static int run_rank(struct run_command *c, struct err *err)
{
	struct agree_say say = { .order = LOOP_GO_ON };
	struct err lost = { 0 };
	int status = train(c, err);
	if (status != 0 && !c->over && c->others.mesh != NULL)
		mesh_abort(c->others.mesh, "a rank has failed");
	int rc = c->over ? agree_step(c->others.mesh, &say, NULL, NULL, &lost) : 0;
	ranks_leave(&c->others);
	if (c->rank == 0 || !c->over)
		return status;
	return rc < 0 ? COMMAND_LOST_RANK : COMMAND_OK;
}

/* Starts all ranks, in a meeting place of their own. */
static int run_all(struct run_command *c, struct err *err)
{
	int rank = 0, status = COMMAND_OK;
	int rc = file_join(c->meeting_place, c->out, "rendezvous", err);
	if (rc == 0)
		rc = file_remove_tree(c->meeting_place, err);
	if (rc == 0)
		rc = file_mkdir(c->meeting_place, err);
	if (rc == 0)
		rc = run_ranks_start((int)c->ranks, &rank, &status, err);
	if (rc == 0 && rank != RUN_RANKS_PARENT) {
		c->rank = rank;
		c->rendezvous = c->meeting_place;
		rc = device_take(c->inputs.device, rank, err);
		return rc < 0 ? rc : run_rank(c, err);
	}
	int removed = file_remove_tree(c->meeting_place, NULL);
	return rc < 0 ? rc : removed < 0 ? COMMAND_FAILED : status;
}

static int run(void *ctx, struct err *err)
{
	struct run_command *c = ctx;
	int rc = check(c, err);
	if (rc == 0)
		rc = check_all(c, err);
	if (rc < 0)
		return rc;
	if (c->ranks > 1 && c->rank == ALL_RANKS)
		return run_all(c, err);
	if (c->rank == ALL_RANKS)
		c->rank = 0;
	return run_rank(c, err);
}

int cmd_run(int argc, char **argv)
{
	struct run_command c = {
		.threads = 1, .profile_steps = PROFILE_STEPS, .ranks = 1, .rank = ALL_RANKS
	};
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &c.spec_path, 0, 0 },
		{ "--data", OPTIONS_DATA, &c.inputs, 0, 0 },
		{ "--out", OPTIONS_TEXT, &c.out, 0, 0 },
		{ "--device", OPTIONS_TEXT, &c.device, 0, 0 },
		{ "--threads", OPTIONS_COUNT, &c.threads, 1, OPTIONS_THREADS_MAX },
		{ "--init", OPTIONS_TEXT, &c.inputs.init_dir, 0, 0 },
		{ "--tokenizer", OPTIONS_TEXT, &c.inputs.tokenizer_path, 0, 0 },
		{ "--resume", OPTIONS_TEXT, &c.inputs.resume_dir, 0, 0 },
		{ "--peak-flops", OPTIONS_NUMBER, &c.inputs.peak_flops, 1, 1e18 },
		{ "--rates", OPTIONS_TEXT, &c.rates, 0, 0 },
		{ "--profile", OPTIONS_OPTIONAL, &c.profile, 0, 0 },
		{ "--profile-steps", OPTIONS_COUNT, &c.profile_steps, 1, PROFILE_STEPS_MAX },
		{ "--ranks", OPTIONS_COUNT, &c.ranks, 1, COMM_RANKS_MAX },
		{ "--rank", OPTIONS_COUNT, &c.rank, 0, COMM_RANKS_MAX - 1 },
		{ "--rendezvous", OPTIONS_TEXT, &c.rendezvous, 0, 0 },
		{ "--host", OPTIONS_TEXT, &c.host, 0, 0 },
		{ "--deadline-ms", OPTIONS_COUNT, &c.deadline_ms, 1, COMM_DEADLINE_MS_MAX },
	};
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	signal(SIGPIPE, SIG_IGN); /* a reader that left is an error with a message */
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
