/* SPDX-License-Identifier: Apache-2.0
 * One rank of an attempt: a child of the agent that outlives it until the lease ends. Opens the
 * channel first, so that whatever goes wrong later is told as the attempt's end: by rank 0, for all
 * of them. The others only live, hand on orders, and leave with a status. */
#include "core/base/file.h"
#include "workers/trainer/command.h"

#include "core/base/log.h"
#include "core/base/num.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/attempt.h"
#include "workers/trainer/channel.h"
#include "workers/trainer/files.h"
#include "workers/trainer/loop.h"
#include "workers/trainer/message.h"
#include "workers/trainer/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	RANKS_MAX = 1024,
	CHANNEL_FD = 3,
	LEASE_FIRST_MS = 20000, /* when the agent names none; a fresh lease is never shorter */
	END_MAX = 16 * 1024,
	TERMINATED_DRAIN_MS = 5000,
	DRAIN_MS = 500, /* between two words to the ranks that wait for the end to be stored */
};

struct rank {
	int64_t index;
	const char *dir;
	int64_t lease_until_ms;
	const struct clock *clock;
	int64_t started_us;
	struct lease lease;
	struct channel *channel;
	struct ranks others;
	int code; /* the error that this rank leaves with; 0: all end together */
	bool terminated;
};

static int parse(int argc, char **argv, struct rank *r)
{
	for (int i = 1; i < argc; i++) {
		int rc = 0;
		if (strncmp(argv[i], "--rank=", 7) == 0)
			rc = num_parse_i64(argv[i] + 7, 0, RANKS_MAX - 1, &r->index);
		else if (strncmp(argv[i], "--dir=", 6) == 0)
			r->dir = argv[i] + 6;
		else if (strncmp(argv[i], "--lease-until=", 14) == 0)
			rc = num_parse_i64(argv[i] + 14, 0, INT64_MAX / 1000, &r->lease_until_ms);
		else
			rc = ERR_INVALID_VALUE;
		if (rc < 0) {
			fprintf(stderr, "trainyard-trainer: the argument %s is not valid\n", argv[i]);
			return rc;
		}
	}
	return r->dir != NULL && r->index >= 0 ? 0 : ERR_MISSING_FIELD;
}

/* ------------------------------------------------------------------------------ the reporter */

static int on_message(
	void *ctx, const char *json, bool droppable, int64_t *ret_seq, struct err *err)
{
	struct rank *r = ctx;
	return channel_post(r->channel, json, droppable, ret_seq, err);
}

static int64_t on_acked_seq(void *ctx)
{
	struct rank *r = ctx;
	return channel_acked_seq(r->channel);
}

static enum loop_order on_order(void *ctx)
{
	struct rank *r = ctx;
	sigset_t term;
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	if (sigtimedwait(&term, NULL, &(struct timespec){ 0 }) == SIGTERM)
		r->terminated = true;
	switch (channel_stop(r->channel)) {
	case CHANNEL_STOP_CANCEL: return LOOP_CANCEL;
	case CHANNEL_STOP_PAUSE: return LOOP_PAUSE;
	case CHANNEL_STOP_NONE: break;
	}
	return r->terminated ? LOOP_TERMINATE : LOOP_GO_ON;
}

static bool on_take_checkpoint(void *ctx)
{
	struct rank *r = ctx;
	return channel_take_checkpoint(r->channel);
}

static void on_alive(void *ctx, int64_t step)
{
	struct rank *r = ctx;
	channel_alive(r->channel, step);
}

static const struct reporter reporter = {
	.message = on_message,
	.acked_seq = on_acked_seq,
	.order = on_order,
	.take_checkpoint = on_take_checkpoint,
	.alive = on_alive,
};

/* ------------------------------------------------------------------------------ the attempt */

/* Rank 0 tells it; the log of each rank has it. */
static int tell_end(struct rank *r, const struct session *s, const struct message_end *end)
{
	struct err err = { 0 };
	cleanup(buf_finish) struct buf text;
	buf_init(&text, END_MAX);
	message_end(s, end, &text);
	int rc = r->index == 0 ? channel_post(r->channel, buf_cstr(&text), false, NULL, &err) : r->code;
	if (r->index == 0 && rc < 0)
		log_error("end.unsent", LOG_ERR(&err));
	log_info("attempt.end", LOG_STR("outcome", end->outcome), LOG_STR("reason", end->reason),
		LOG_STR("message", end->message), LOG_INT("step", end->step));
	return rc;
}

static void tell_failure(struct rank *r, const struct err *err)
{
	struct message_end end = {
		.outcome = "failed",
		.reason = session_reason(err->code),
		.message = err->message,
		.lost_rank = ranks_is_lost(r->code),
	};
	char text[ERR_MESSAGE_MAX + ERR_PARAM_MAX + 4];
	if (err->param[0] != '\0') {
		snprintf(text, sizeof(text), "%s: %s", err->param, err->message);
		end.message = text;
	}
	(void)tell_end(r, NULL, &end);
}

/* The other ranks, data, plan, engine. Where it fails on one rank, it fails on all. */
static int open_session(
	struct rank *r, const struct attempt *a, struct session **ret, struct err *err)
{
	struct ranks_place place = {
		.rank = (int)r->index,
		.rendezvous = a->rendezvous,
		.host = a->host,
		.deadline_ms = a->comm_deadline_ms,
	};
	struct session_inputs inputs = a->inputs;
	int rc = a->spec_code;
	if (rc < 0) {
		*err = a->spec_err;
		return rc;
	}
	rc = device_choose(inputs.device, &inputs.device, err);
	place.apart = rc == 0 && device_is_apart(inputs.device);
	if (rc == 0)
		rc = ranks_join(&a->spec, &place, &r->others, err);
	if (rc < 0) {
		r->code = rc;
		return rc;
	}
	inputs.mesh = r->others.mesh;
	rc = agree_opened(inputs.mesh, session_open(&a->spec, &inputs, ret, err), err);
	r->code = ranks_is_lost(rc) ? rc : 0;
	return rc;
}

static int train(struct rank *r, const struct attempt *a)
{
	struct err err = { 0 };
	struct loop_result result;
	cleanup(session_closep) struct session *s = NULL;
	int rc = open_session(r, a, &s, &err);
	if (rc < 0) {
		err.code = rc;
		tell_failure(r, &err);
		return COMMAND_FAILED;
	}
	log_info("training", LOG_INT("steps", s->plan->total_steps),
		LOG_INT("resumed_step", s->resumed_step), LOG_INT("plan_bytes", s->plan->total_bytes),
		LOG_INT("threads", a->inputs.threads), LOG_INT("ranks", ranks_count(&s->spec)));
	struct loop l = {
		.session = s,
		.reporter = &reporter,
		.reporter_ctx = r,
		.clock = r->clock,
		.dir = r->dir,
		.model_dir = "model",
		.started_us = r->started_us,
		.max_runtime_s = a->max_runtime_s,
	};
	loop_run(&l, &result);
	r->code = result.code;
	struct message_end end = {
		.outcome = result.outcome,
		.reason = result.reason,
		.message = result.message,
		.step = result.step,
		.dir = result.has_model ? "model" : NULL,
		.lost_rank = ranks_is_lost(result.code),
	};
	rc = tell_end(r, s, &end);
	return rc < 0 || strcmp(result.outcome, "failed") == 0 ? COMMAND_FAILED : COMMAND_OK;
}

/* Stays until the yard has the end. Asked to leave by somebody else than the agent, there may be no
 * agent to wait for. The other ranks wait too, as long as all end together. */
static void drain(struct rank *r)
{
	const int64_t begun_us = clock_boot_us(r->clock);
	struct mesh *others = r->code == 0 ? r->others.mesh : NULL;
	while (!channel_drain(r->channel, DRAIN_MS)) {
		if (r->terminated && clock_boot_us(r->clock) - begun_us > TERMINATED_DRAIN_MS * 1000LL)
			break;
		agree_wait(others);
	}
}

/* What rank 0 does meanwhile is progress here, too. */
static void still_waiting(void *ctx)
{
	struct rank *r = ctx;
	channel_alive(r->channel, 0);
}

/* How this rank leaves the others. Returns its exit status. */
static int say_goodbye(struct rank *r, int status)
{
	struct agree_say say = { .order = LOOP_GO_ON };
	struct err err = { 0 };
	if (ranks_is_lost(r->code) && r->others.mesh != NULL)
		mesh_abort(r->others.mesh, "another rank was lost");
	if (r->index == 0)
		drain(r);
	if (r->code == 0)
		r->code = agree_step(r->others.mesh, &say, still_waiting, r, &err);
	ranks_leave(&r->others);
	if (r->index == 0)
		return status;
	if (ranks_is_lost(r->code)) {
		log_error("rank.lost", LOG_ERR(&err));
		return COMMAND_LOST_RANK;
	}
	return r->code < 0 ? COMMAND_FAILED : COMMAND_OK;
}

static int serve(struct rank *r, const char *rank_dir)
{
	struct err err = { 0 };
	char socket_path[FILE_PATH_MAX];
	cleanup(attempt_freep) struct attempt *a = NULL;
	cleanup(channel_destroyp) struct channel *channel = NULL;
	/* The channel needs to know the first number, which stands in the file; when the file cannot be
	 * read, the agent learns it from the exit status and the log. */
	int rc = attempt_read(r->dir, &a, &err);
	if (rc == 0)
		rc = file_join(socket_path, rank_dir, "control.sock", &err);
	if (rc == 0) {
		struct channel_options o = { .fd = fcntl(CHANNEL_FD, F_GETFD) >= 0 ? CHANNEL_FD : -1,
			.socket_path = socket_path,
			.first_seq = a->first_seq,
			.clock = r->clock,
			.lease = &r->lease };
		rc = channel_create(&o, &channel, &err);
	}
	if (rc < 0) {
		log_error("attempt.unreadable", LOG_ERR(&err));
		return COMMAND_FAILED;
	}
	r->channel = channel;
	return say_goodbye(r, train(r, a));
}

int cmd_rank(int argc, char **argv, void (*on_no_lease)(void))
{
	struct rank r = { .index = -1, .clock = clock_system() };
	struct err err = { 0 };
	char rank_dir[FILE_PATH_MAX], lock[FILE_PATH_MAX];
	if (parse(argc, argv, &r) < 0)
		return COMMAND_USAGE;
	r.started_us = clock_boot_us(r.clock);
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	signal(SIGPIPE, SIG_IGN);

	int64_t until_us =
		r.lease_until_ms > 0 ? r.lease_until_ms * 1000 : r.started_us + LEASE_FIRST_MS * 1000LL;
	bool busy = false;
	if (chdir(r.dir) < 0) {
		fprintf(stderr, "trainyard-trainer: %s: %s\n", r.dir, strerror(errno));
		return COMMAND_FAILED;
	}
	r.dir = ".";
	snprintf(rank_dir, sizeof(rank_dir), "rank%lld", (long long)r.index);
	int rc = file_mkdir(rank_dir, &err);
	if (rc == 0)
		rc = file_join(lock, rank_dir, "lock", &err);
	if (rc == 0)
		rc = files_lock(lock, &busy, &err);
	if (rc == 0)
		rc = lease_start(&r.lease, r.clock, until_us, on_no_lease, &err);
	if (rc < 0) {
		log_error("rank.refused", LOG_ERR(&err));
		return busy ? COMMAND_BUSY : COMMAND_FAILED;
	}
	int status = serve(&r, rank_dir);
	lease_stop(&r.lease);
	return status;
}
