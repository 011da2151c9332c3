/* SPDX-License-Identifier: Apache-2.0
 * A thread for each checkpoint. It uses no OpenMP and takes no memory that depends on the model. */
#include "workers/trainer/saver.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { WAIT_MS = 200 };

enum stage { STAGE_IDLE, STAGE_READING, STAGE_PUBLISHING, STAGE_OVER };

struct saver {
	struct checkpoint *checkpoint;
	pthread_t thread;
	bool begun; /* owner's thread only: there is a thread to join */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum stage stage; /* under the lock */
	int code;         /* written before STAGE_OVER */
	struct err err;
};

int saver_create(const struct hf_model *m, struct saver **ret, struct err *err)
{
	struct saver *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the checkpoint writer");
	int rc = checkpoint_create(m, &s->checkpoint, err);
	if (rc < 0) {
		free(s);
		return rc;
	}
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&s->lock, NULL);
	*ret = s;
	return 0;
}

static void set_stage(struct saver *s, enum stage stage)
{
	pthread_mutex_lock(&s->lock);
	s->stage = stage;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static enum stage stage_of(struct saver *s)
{
	pthread_mutex_lock(&s->lock);
	enum stage stage = s->stage;
	pthread_mutex_unlock(&s->lock);
	return stage;
}

static void *save(void *arg)
{
	struct saver *s = arg;
	s->code = checkpoint_copy(s->checkpoint, &s->err);
	if (s->code == 0) {
		set_stage(s, STAGE_PUBLISHING);
		s->code = checkpoint_publish(s->checkpoint, &s->err);
	}
	set_stage(s, STAGE_OVER);
	return NULL;
}

int saver_begin(
	struct saver *s, const struct summary_metrics *metrics, const char *parent, struct err *err)
{
	if (s->begun)
		return err_set(err, ERR_CONFLICT, NULL, "a checkpoint is being written already");
	int rc = checkpoint_begin(s->checkpoint, metrics, parent, err);
	if (rc < 0)
		return rc;
	s->err = (struct err){ 0 };
	s->code = 0;
	s->stage = STAGE_READING;
	rc = pthread_create(&s->thread, NULL, save, s);
	if (rc != 0) {
		s->stage = STAGE_IDLE;
		return err_errno(err, ERR_INTERNAL, rc, "no thread for a checkpoint");
	}
	s->begun = true;
	return 0;
}

bool saver_busy(const struct saver *s)
{
	return s->begun;
}

bool saver_reading(struct saver *s)
{
	return s->begun && stage_of(s) == STAGE_READING;
}

/* Until the stage is another than `stage` or beyond. */
static void wait_beyond(struct saver *s, enum stage stage, saver_waiting_fn waiting, void *ctx)
{
	for (;;) {
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += WAIT_MS * 1000000L;
		until.tv_sec += until.tv_nsec / 1000000000L;
		until.tv_nsec %= 1000000000L;
		pthread_mutex_lock(&s->lock);
		if (s->stage <= stage)
			pthread_cond_timedwait(&s->changed, &s->lock, &until);
		bool beyond = s->stage > stage;
		pthread_mutex_unlock(&s->lock);
		if (beyond)
			return;
		if (waiting != NULL)
			waiting(ctx);
	}
}

void saver_hold(struct saver *s, saver_waiting_fn waiting, void *ctx)
{
	if (s->begun)
		wait_beyond(s, STAGE_READING, waiting, ctx);
}

bool saver_over(struct saver *s, int *ret_code, struct err *err)
{
	if (!s->begun || stage_of(s) != STAGE_OVER)
		return false;
	pthread_join(s->thread, NULL);
	s->begun = false;
	s->stage = STAGE_IDLE;
	*ret_code = s->code;
	if (s->code < 0 && err != NULL)
		*err = s->err;
	return true;
}

int saver_finish(struct saver *s, saver_waiting_fn waiting, void *ctx, struct err *err)
{
	int code = ERR_CONFLICT;
	if (!s->begun)
		return err_set(err, ERR_CONFLICT, NULL, "no checkpoint is being written");
	wait_beyond(s, STAGE_PUBLISHING, waiting, ctx);
	return saver_over(s, &code, err) ? code : ERR_CONFLICT;
}

void saver_destroy(struct saver *s)
{
	if (s == NULL)
		return;
	if (s->begun) {
		checkpoint_abort(s->checkpoint, "the training has ended");
		pthread_join(s->thread, NULL);
	}
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	checkpoint_destroy(s->checkpoint);
	free(s);
}
