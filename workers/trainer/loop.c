/* SPDX-License-Identifier: Apache-2.0
 * The training loop. A step is never half done when anything else happens: orders, the time limit
 * and checkpoints are looked at between steps. */
#include "workers/trainer/loop.h"

#include "core/base/buf.h"
#include "core/base/file.h"
#include "workers/trainer/agree.h"
#include "workers/trainer/folder.h"
#include "workers/trainer/message.h"
#include "workers/trainer/profile.h"
#include "workers/trainer/ranks.h"
#include "workers/trainer/saver.h"
#include "workers/trainer/shards.h"
#include "workers/trainer/spike.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	MESSAGE_MAX = 16 * 1024,
	SAMPLE_ID_CHARS = 21, /* of one id in a message */
	KEEP_MAX = LOOP_FOLDERS_MAX / 2,
	MODEL_ALIVE_S = 1,    /* between two signs of life while the model is written */
	READ_SHARE = 4,       /* of a deadline: what may be written beside a step of other ranks */
	AGREE_WAIT_MS = 1000, /* between two words to the ranks that wait for this one */
};

struct folder_sent {
	int64_t step, seq;
};

/* What one run of the loop keeps in mind. */
struct run {
	const struct loop *l;
	struct session *s;
	struct mesh *mesh;      /* NULL: one rank */
	bool first;             /* this rank reports */
	bool writes;            /* and has something to write: the first, or each its part */
	bool others_wait;       /* for this rank's next word, or soon will: nothing comes before it */
	int64_t others_told_us; /* that this one is busy */
	struct buf text;        /* the message being written */
	char parent[FILE_PATH_MAX];
	int64_t step, saved_step; /* saved_step: written, or being written */
	struct engine_step last;  /* the newest step, told or not */
	bool last_told;
	int64_t told_at_us;
	double step_us, step_us_max, checkpoint_us; /* smoothed, longest, last */
	double last_us;                             /* the newest step alone */
	struct folder_sent folders[LOOP_FOLDERS_MAX];
	int folder_count;
	struct saver *saver;
	int64_t saving_step, saving_since_us;
	struct summary_metrics saving_metrics;
	struct profile *profile; /* NULL: none, or over */
	struct spike spike;
};

/* All ranks have a part in what is written, and wait for each other in that alone. */
static bool write_together(const struct run *r)
{
	return shards_are_used(&r->s->plan->mesh);
}

static int64_t now_us(const struct run *r)
{
	return clock_boot_us(r->l->clock);
}

static int tell(struct run *r, bool droppable, int64_t *ret_seq, struct err *err)
{
	if (r->text.failed != 0)
		return err_set(err, ERR_INTERNAL, NULL, "a message does not fit");
	if (!r->first) {
		buf_reset(&r->text);
		return 0;
	}
	int rc =
		r->l->reporter->message(r->l->reporter_ctx, buf_cstr(&r->text), droppable, ret_seq, err);
	buf_reset(&r->text);
	return rc;
}

static void finish(
	struct loop_result *ret, const char *outcome, const char *reason, const char *message)
{
	ret->outcome = outcome;
	ret->reason = reason;
	snprintf(ret->message, sizeof(ret->message), "%s", message);
}

static void still_alive(void *ctx)
{
	struct run *r = ctx;
	r->l->reporter->alive(r->l->reporter_ctx, r->step);
	if (!r->others_wait || write_together(r) ||
		now_us(r) - r->others_told_us < AGREE_WAIT_MS * 1000LL)
		return;
	agree_wait(r->mesh);
	r->others_told_us = now_us(r);
}

/* ------------------------------------------------------------------------------ steps */

static int tell_step(struct run *r, struct err *err)
{
	const struct plan *p = r->s->plan;
	struct message_rates rates = { .sample_ids = r->l->sample_ids };
	if (r->last.step == 0 || r->last_told)
		return 0;
	double us = r->l->every_step ? r->last_us : r->step_us;
	if (us > 0) {
		rates.samples_per_second = (double)r->last.samples * 1e6 / us;
		rates.tokens_per_second = (double)r->last.tokens * 1e6 / us;
		rates.data_wait_share = (double)r->last.wait_us / r->last_us;
		if (r->s->peak_flops > 0)
			rates.mfu =
				r->s->job.flops_per_step * 1e6 / us / r->s->peak_flops / plan_mesh_size(&p->mesh);
		rates.eta_s = (double)(p->total_steps - r->last.step) * r->step_us / 1e6;
	}
	message_step(r->s, &r->last, &rates, &r->text);
	r->last_told = true;
	r->told_at_us = now_us(r);
	return tell(r, true, NULL, err);
}

/* After each operation of a step. The weights may be being written: after the last backward pass
 * nothing goes on before that is over. */
static void on_operation(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct run *r = ctx;
	const struct plan *p = r->s->plan;
	if (r->profile != NULL)
		profile_op(r->profile, op, micro, begin_ns, end_ns);
	if (micro == p->micro_steps - 1 && op == &p->ops[p->optimize_begin - 1])
		saver_hold(r->saver, still_alive, r);
}

/* Enough has been traced, or the run is over. */
static int end_profile(struct run *r, struct err *err)
{
	int rc = r->profile != NULL ? profile_summary(r->profile, err) : 0;
	profile_destroy(r->profile);
	r->profile = NULL;
	return rc;
}

static int step_engine(struct run *r, struct engine_step *now, struct err *err)
{
	int rc = 0;
	if (r->profile != NULL && !profile_begin(r->profile))
		rc = end_profile(r, err);
	if (rc < 0)
		return rc;
	bool watch = r->profile != NULL || (r->writes && saver_reading(r->saver));
	engine_trace(r->s->engine, watch ? on_operation : NULL, r);
	int64_t begin = now_us(r);
	rc = engine_step(r->s->engine, now, err);
	r->others_wait = true;
	if (rc < 0)
		return rc;
	r->last_us = (double)(now_us(r) - begin);
	r->step_us = r->step_us == 0 ? r->last_us : 0.9 * r->step_us + 0.1 * r->last_us;
	r->step_us_max = r->last_us > r->step_us_max ? r->last_us : 0.95 * r->step_us_max;
	return r->profile == NULL || now->non_finite ? 0 : profile_end(r->profile, now, err);
}

/* A loss that went up and stays there. Without shuffling the data may be the reason: then it is
 * only told. */
static int watch_loss(struct run *r, struct loop_result *ret, struct err *err)
{
	char line[256];
	double limit = 0;
	enum spike_verdict verdict = spike_step(&r->spike, r->last.loss, &limit);
	if (verdict == SPIKE_CALM || (verdict == SPIKE_FAIL && !r->s->spec.data.shuffle))
		return 0;
	snprintf(line, sizeof(line),
		"the loss has stayed above %.4g for %lld steps (step %lld: %.4g), where it was calm before",
		limit, (long long)r->spike.high, (long long)r->step, r->last.loss);
	if (verdict == SPIKE_WARN) {
		message_log(line, &r->text);
		return tell(r, true, NULL, err);
	}
	finish(ret, "failed", "loss_spike", "");
	snprintf(ret->message, sizeof(ret->message),
		"%s: lower hyperparameters.learning_rate, raise warmup_steps or set grad_clip", line);
	return tell_step(r, err);
}

/* Sets ret->outcome when the training cannot go on. */
static int do_step(struct run *r, struct loop_result *ret, struct err *err)
{
	struct engine_step now;
	int rc = step_engine(r, &now, err);
	if (rc < 0)
		return rc;
	if (now.non_finite) {
		finish(ret, "failed", "nan_loss", "");
		snprintf(ret->message, sizeof(ret->message),
			"the loss or the gradient norm is not finite in step %lld (loss %g, norm %g%s): lower "
			"hyperparameters.learning_rate or set grad_clip",
			(long long)r->step + 1, now.loss, now.grad_norm,
			r->s->plan->type == PLAN_F16 ? ", the loss scale at its floor" : "");
		return 0;
	}
	r->last = now;
	r->step = r->last.step;
	r->last_told = false;
	r->s->metrics.has_loss = true;
	r->s->metrics.loss = r->last.loss;
	still_alive(r);
	rc = watch_loss(r, ret, err);
	if (rc < 0)
		return rc;
	if (r->l->every_step || r->step == r->s->plan->total_steps ||
		now_us(r) - r->told_at_us >= LOOP_STEP_REPORT_MS * 1000LL)
		return tell_step(r, err);
	return 0;
}

/* ------------------------------------------------------------------------------ checkpoints */

/* Deletes acknowledged folders, oldest first, until only `keep` of them are left; returns how many
 * are not acknowledged yet. */
static int retire_folders(struct run *r, struct err *err)
{
	int64_t acked = r->l->reporter->acked_seq(r->l->reporter_ctx);
	int saved = 0, kept = 0;
	while (saved < r->folder_count && r->folders[saved].seq <= acked)
		saved++;
	int unsaved = r->folder_count - saved;
	int drop = saved - (int)(r->l->keep < KEEP_MAX ? r->l->keep : KEEP_MAX);
	for (int i = 0; i < r->folder_count; i++) {
		char name[CHECKPOINT_NAME_MAX];
		if (i >= drop) {
			r->folders[kept++] = r->folders[i];
			continue;
		}
		checkpoint_name(r->folders[i].step, name);
		int rc = folder_retire(r->parent, name, err);
		if (rc < 0)
			return rc;
	}
	r->folder_count = kept;
	return unsaved;
}

/* The checkpoint of saving_step is durable. */
static int tell_saved(struct run *r, struct err *err)
{
	char name[CHECKPOINT_NAME_MAX], dir[FILE_PATH_MAX];
	int64_t seq = 0;
	checkpoint_name(r->saving_step, name);
	int rc = file_join(dir, "checkpoints", name, err);
	if (rc < 0)
		return rc;
	message_checkpoint(r->s, r->saving_step, dir, &r->saving_metrics, &r->text);
	rc = tell(r, false, &seq, err);
	if (rc < 0)
		return rc;
	if (r->folder_count < LOOP_FOLDERS_MAX)
		r->folders[r->folder_count++] = (struct folder_sent){ .step = r->saving_step, .seq = seq };
	r->checkpoint_us = (double)(now_us(r) - r->saving_since_us);
	still_alive(r);
	int unsaved = retire_folders(r, err);
	return unsaved < 0 ? unsaved : 0;
}

/* What cannot be written is our failure, whatever it is (a path, memory): never the customer's.
 * But a rank that was lost meanwhile is that. */
static int ours(int rc, struct err *err)
{
	if (rc >= 0 || ranks_is_lost(rc))
		return rc;
	return err->code = ERR_INTERNAL;
}

/* Tells of the checkpoint that is being written, once it is there; `wait`: not before. */
static int follow_save(struct run *r, bool wait, struct err *err)
{
	int code = 0;
	if (!r->writes || !saver_busy(r->saver))
		return 0;
	if (wait)
		code = saver_finish(r->saver, still_alive, r, err);
	else if (!saver_over(r->saver, &code, err))
		return 0;
	if (code < 0)
		return ours(code, err);
	return r->first ? tell_saved(r, err) : 0;
}

/* A periodic checkpoint is skipped while too many wait for the yard: rank 0 knows. */
static int may_save(struct run *r, bool must, bool *ret, struct err *err)
{
	int unsaved = r->first ? retire_folders(r, err) : 0;
	if (unsaved < 0)
		return unsaved;
	*ret = must || unsaved < LOOP_UNSAVED_MAX;
	return write_together(r) ? agree_first(r->mesh->save, ret, err) : 0;
}

/* The last one (`must`) is never skipped, and it is waited for. One is written at a time. Where all
 * ranks have the same, rank 0 writes, and skips what is due before it is through; where each writes
 * its part, all wait for the one before, and begin in the same step. */
static int save(struct run *r, bool must, struct err *err)
{
	bool may = true;
	if (!r->writes)
		return 0;
	if (r->saved_step == r->step)
		return must ? follow_save(r, true, err) : 0;
	/* The other ranks are in the next step and would miss this one. */
	if (r->mesh != NULL && !write_together(r) && !must && saver_busy(r->saver))
		return 0;
	int rc = follow_save(r, true, err);
	if (rc == 0)
		rc = may_save(r, must, &may, err);
	if (rc < 0 || !may)
		return rc;
	rc = tell_step(r, err);
	r->saving_step = r->step;
	r->saving_since_us = now_us(r);
	r->saving_metrics = r->s->metrics;
	if (rc == 0)
		rc = ours(saver_begin(r->saver, &r->s->metrics, r->parent, err), err);
	if (rc < 0)
		return rc;
	r->saved_step = r->step;
	return must ? follow_save(r, true, err) : 0;
}

/* ------------------------------------------------------------------------------ time limit */

/* True when what is left is just enough to save: the limit is kept with a usable checkpoint. */
static bool time_is_up(const struct run *r)
{
	if (r->l->max_runtime_s == 0)
		return false;
	double limit = (double)r->l->max_runtime_s * 1e6;
	double save_us = 2 * r->checkpoint_us;
	double guess_us =
		(double)(r->s->plan->kind_bytes[PLAN_WEIGHTS] + r->s->plan->kind_bytes[PLAN_OPTIMIZER]) /
		100; /* 100 MB/s */
	double reserve = 250e3 + 1.5 * r->step_us_max + (save_us > guess_us ? save_us : guess_us);
	if (reserve > limit / 2)
		reserve = limit / 2;
	return (double)(now_us(r) - r->l->started_us) >= limit - reserve;
}

/* ------------------------------------------------------------------------------ evaluation */

static bool evaluation_moved(void *ctx, int64_t done, int64_t total)
{
	struct run *r = ctx;
	(void)done;
	(void)total;
	r->l->reporter->alive(r->l->reporter_ctx, r->step);
	struct agree_say say = { .order = r->l->reporter->order(r->l->reporter_ctx),
		.time_up = time_is_up(r) };
	/* A lost rank is found by the next round too. */
	return agree_step(r->mesh, &say, NULL, NULL, NULL) == 0 && say.order == LOOP_GO_ON &&
		!say.time_up;
}

/* CANCELLED when an order came in between: the caller looks at orders again. */
static int evaluate(struct run *r, struct err *err)
{
	struct engine_evaluation e;
	struct summary_metrics *m = &r->s->metrics;
	int rc = tell_step(r, err);
	if (rc == 0)
		rc = engine_evaluate(r->s->engine, evaluation_moved, r, &e, err);
	if (rc < 0)
		return rc;
	m->evaluated_step = r->step;
	m->validation_loss = e.loss;
	m->bits_per_byte = e.bits_per_byte;
	m->order0_bits_per_byte = e.order0_bits_per_byte;
	m->accuracy = e.accuracy;
	m->auc = e.auc;
	message_evaluation(r->s, &r->text);
	return tell(r, false, NULL, err);
}

static bool due(int64_t every, int64_t step)
{
	return every > 0 && step > 0 && step % every == 0;
}

static bool evaluation_due(const struct run *r)
{
	bool last = r->step >= r->s->plan->total_steps;
	return r->s->validation != NULL && r->s->metrics.evaluated_step != r->step && r->step > 0 &&
		(last || due(r->s->spec.evaluation_every_steps, r->step));
}

/* ------------------------------------------------------------------------------ the loop */

/* What all ranks do before the next step. The loop ends when ret has an outcome, after a
 * checkpoint. */
static int settle(struct run *r, struct loop_result *ret, struct agree_say *say, struct err *err)
{
	const struct reporter *reporter = r->l->reporter;
	*say = (struct agree_say){
		.order = reporter->order(r->l->reporter_ctx),
		.time_up = time_is_up(r),
		.checkpoint = reporter->take_checkpoint(r->l->reporter_ctx),
		.over = ret->outcome != NULL,
	};
	int rc = agree_step(r->mesh, say, still_alive, r, err);
	r->others_told_us = now_us(r);
	r->others_wait = ret->outcome != NULL;
	if (rc < 0 || ret->outcome != NULL)
		return rc;
	if (say->order == LOOP_CANCEL)
		finish(ret, "cancelled", NULL, "");
	else if (say->order == LOOP_PAUSE)
		finish(ret, "paused", NULL, "");
	else if (say->order == LOOP_TERMINATE)
		finish(ret, "failed", "platform_error", "the trainer was asked to leave (SIGTERM)");
	else if (say->time_up)
		finish(ret, "failed", "max_runtime",
			"the time limit limits.max_runtime_s was reached; the last checkpoint is usable");
	else if (say->over)
		finish(ret, "failed", "platform_error",
			"the ranks do not agree on the loss: another one has found it not to be usable");
	r->others_wait = ret->outcome != NULL; /* otherwise they are in the next step by now */
	return 0;
}

struct model_writer {
	const struct session *session;
	char path[FILE_PATH_MAX];
	int code;
	struct err err;
};

static void *write_model(void *arg)
{
	struct model_writer *w = arg;
	w->code = session_write_model(w->session, w->path, &w->err);
	return NULL;
}

/* A large model takes longer than a silence is borne: this thread goes on telling. */
static int write_model_alive(struct run *r, struct model_writer *w, struct err *err)
{
	pthread_t thread;
	int rc = pthread_create(&thread, NULL, write_model, w);
	if (rc != 0)
		return err_errno(err, ERR_INTERNAL, rc, "no thread for the model");
	do {
		struct timespec until;
		still_alive(r);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += MODEL_ALIVE_S;
		rc = pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until);
	} while (rc == ETIMEDOUT);
	still_alive(r);
	if (w->code < 0)
		*err = w->err;
	return w->code;
}

static int finish_model(struct run *r, struct loop_result *ret, struct err *err)
{
	struct model_writer w = { .session = r->s };
	int rc = file_join(w.path, r->l->dir, r->l->model_dir, err);
	if (rc == 0 && r->writes)
		rc = write_model_alive(r, &w, err);
	if (rc < 0)
		return ours(rc, err);
	ret->has_model = r->first;
	finish(ret, "succeeded", NULL, "");
	return 0;
}

/* A checkpoint between two steps. Where rank 0 alone writes what all have, the others would stand
 * in the next step's calls while its weights are read, and those have a deadline: so they are met
 * here, and rank 0 reads to the end first, unless the last checkpoint was through in a fraction of
 * that. */
static int save_between(struct run *r, bool must, struct err *err)
{
	if (r->mesh == NULL || write_together(r))
		return save(r, must, err);
	struct agree_say say = { .order = LOOP_GO_ON };
	double deadline_us = 1e3 * (double)r->mesh->world->deadline_ms;
	r->others_wait = true;
	int rc = save(r, must, err);
	bool brief = r->checkpoint_us > 0 && r->checkpoint_us < deadline_us / READ_SHARE;
	if (rc == 0 && r->first && !brief && saver_reading(r->saver))
		saver_hold(r->saver, still_alive, r);
	if (rc == 0)
		rc = agree_step(r->mesh, &say, still_alive, r, err);
	r->others_told_us = now_us(r);
	r->others_wait = false;
	return rc;
}

static int train(struct run *r, struct loop_result *ret, struct err *err)
{
	const int64_t total = r->s->plan->total_steps;
	for (;;) {
		struct agree_say say;
		int rc = settle(r, ret, &say, err);
		if (rc < 0)
			return rc;
		if (ret->outcome != NULL)
			return save(r, true, err);
		rc = follow_save(r, false, err);
		if (rc == 0 && evaluation_due(r)) {
			rc = evaluate(r, err);
			if (rc == ERR_CANCELLED)
				continue;
		}
		if (rc == 0 && (say.checkpoint || due(r->s->spec.checkpoint_every_steps, r->step)))
			rc = save_between(r, say.checkpoint, err);
		if (rc < 0)
			return rc;
		if (r->step >= total) {
			r->others_wait = true;
			rc = save(r, true, err);
			return rc < 0 ? rc : finish_model(r, ret, err);
		}
		rc = do_step(r, ret, err);
		if (rc < 0)
			return rc;
	}
}

static int begin(struct run *r, struct err *err)
{
	struct hf_model model = session_model(r->s);
	if (!r->writes)
		return 0;
	int rc = file_join(r->parent, r->l->dir, "checkpoints", err);
	if (rc == 0)
		rc = file_mkdir(r->parent, err);
	if (rc == 0 && write_together(r))
		rc = shards_meet(r->mesh->save, r->parent, &model.apart, err);
	if (rc == 0)
		rc = saver_create(&model, &r->saver, err);
	if (rc < 0 || !r->first)
		return rc;
	if (r->l->profile_dir != NULL)
		rc = profile_create(r->s->plan, r->l->profile_dir, r->l->profile_steps, &r->profile, err);
	message_training(r->s, &r->text);
	if (rc == 0)
		rc = tell(r, false, NULL, err);
	if (rc < 0 || r->s->resumed_step == 0)
		return rc;
	char line[128];
	snprintf(line, sizeof(line), "resumed from the checkpoint of step %lld",
		(long long)r->s->resumed_step);
	message_log(line, &r->text);
	return tell(r, true, NULL, err);
}

void loop_run(const struct loop *l, struct loop_result *ret)
{
	struct run r = { .l = l, .s = l->session, .mesh = l->session->mesh, .others_wait = true };
	struct err err = { 0 };
	memset(ret, 0, sizeof(*ret));
	r.first = ranks_is_first(r.mesh);
	r.writes = r.first || write_together(&r);
	size_t ids = l->sample_ids ? (size_t)l->session->plan->batch * SAMPLE_ID_CHARS : 0;
	buf_init(&r.text, MESSAGE_MAX + ids);
	r.step = r.saved_step = l->session->resumed_step;
	int rc = begin(&r, &err);
	if (rc == 0)
		rc = train(&r, ret, &err);
	int end = end_profile(&r, rc < 0 ? NULL : &err);
	rc = rc < 0 ? rc : end;
	engine_trace(l->session->engine, NULL, NULL);
	saver_destroy(r.saver);
	if (rc < 0) {
		finish(ret, "failed", session_reason(rc), err.message);
		ret->code = rc;
		ret->has_model = false;
	}
	ret->step = r.step;
	buf_finish(&r.text);
}
