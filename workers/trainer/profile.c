/* SPDX-License-Identifier: Apache-2.0
 * Trace files. All memory but a file's text is taken when the profile is made. */
#include "workers/trainer/profile.h"

#include "core/base/file.h"
#include "core/base/num.h"
#include "core/json/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PHASES = 3, SUMMARY_TEXT_MAX = 256 * 1024, FILE_NAME_MAX = 64, PROCESS = 1, THREAD = 1 };

struct event {
	const struct plan_op *op;
	int64_t micro, begin_ns, end_ns;
};

struct total {
	enum plan_op_kind kind;
	enum plan_phase phase;
	int64_t count, ns;
	double flops, bytes;
};

struct profile {
	const struct plan *plan;
	char dir[FILE_PATH_MAX];
	int64_t steps_left, steps_done;
	int64_t begin_ns;
	struct event *events;
	int64_t count, room, dropped;
	struct total totals[PLAN_OP_COUNT * PHASES];
};

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int profile_create(
	const struct plan *plan, const char *dir, int64_t steps, struct profile **ret, struct err *err)
{
	cleanup(profile_destroyp) struct profile *p = calloc(1, sizeof(*p));
	if (p == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a profile");
	p->plan = plan;
	p->steps_left = steps;
	p->room = plan->op_count * plan->micro_steps;
	if (p->room > PROFILE_EVENTS_MAX)
		p->room = PROFILE_EVENTS_MAX;
	p->events = calloc((size_t)p->room + 1, sizeof(*p->events));
	if (p->events == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for a profile");
	snprintf(p->dir, sizeof(p->dir), "%s", dir);
	int rc = file_mkdir(dir, err);
	if (rc < 0)
		return rc;
	*ret = take_ptr(p);
	return 0;
}

void profile_destroy(struct profile *p)
{
	if (p == NULL)
		return;
	free(p->events);
	free(p);
}

void profile_destroyp(struct profile **p)
{
	profile_destroy(*p);
	*p = NULL;
}

bool profile_begin(struct profile *p)
{
	if (p->steps_left == 0)
		return false;
	p->count = p->dropped = 0;
	p->begin_ns = now_ns();
	return true;
}

void profile_op(
	struct profile *p, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct total *t = &p->totals[(int)op->kind * PHASES + (int)op->phase];
	t->kind = op->kind;
	t->phase = op->phase;
	t->count++;
	t->ns += end_ns - begin_ns;
	t->flops += op->flops;
	t->bytes += op->bytes;
	if (p->count == p->room) {
		p->dropped++;
		return;
	}
	p->events[p->count++] = (struct event){ op, micro, begin_ns, end_ns };
}

/* ------------------------------------------------------------------------------ a step's file */

/* A complete event, open for its args; times in microseconds from the step's begin. */
static void begin_event(struct json_writer *w, const struct profile *p, const char *name,
	const char *category, int64_t begin_ns, int64_t end_ns)
{
	json_begin_object(w);
	json_field_str(w, "name", name);
	json_field_str(w, "cat", category);
	json_field_str(w, "ph", "X");
	json_field_f64(w, "ts", (double)(begin_ns - p->begin_ns) / 1e3);
	json_field_f64(w, "dur", (double)(end_ns - begin_ns) / 1e3);
	json_field_i64(w, "pid", PROCESS);
	json_field_i64(w, "tid", THREAD);
	json_key(w, "args");
	json_begin_object(w);
}

static void end_event(struct json_writer *w)
{
	json_end_object(w);
	json_end_object(w);
}

static void put_op(struct json_writer *w, const struct profile *p, const struct event *e)
{
	double ns = (double)(e->end_ns - e->begin_ns);
	begin_event(w, p, e->op->name, plan_phase_word(e->op->phase), e->begin_ns, e->end_ns);
	json_field_str(w, "kind", plan_op_word(e->op->kind));
	json_field_i64(w, "micro_batch", e->micro);
	if (e->op->recompute)
		json_field_bool(w, "recompute", true);
	if (e->op->flops > 0 && ns > 0)
		json_field_f64(w, "gflop_per_s", e->op->flops / ns);
	if (e->op->bytes > 0 && ns > 0)
		json_field_f64(w, "gbyte_per_s", e->op->bytes / ns);
	end_event(w);
}

/* A slice around each run of operations of one phase and micro-batch: they nest in the viewer. */
static void put_phases(struct json_writer *w, const struct profile *p)
{
	for (int64_t i = 0, k; i < p->count; i = k) {
		const struct event *first = &p->events[i];
		for (k = i; k < p->count && p->events[k].op->phase == first->op->phase &&
			 (p->events[k].micro == first->micro || first->op->phase == PLAN_OPTIMIZE);
			 k++)
			;
		const char *phase = plan_phase_word(first->op->phase);
		begin_event(w, p, phase, phase, first->begin_ns, p->events[k - 1].end_ns);
		json_field_i64(w, "micro_batch", first->micro);
		end_event(w);
	}
}

static void put_step(
	struct json_writer *w, const struct profile *p, const struct engine_step *s, int64_t end_ns)
{
	char name[FILE_NAME_MAX];
	snprintf(name, sizeof(name), "step %lld", (long long)s->step);
	begin_event(w, p, name, "step", p->begin_ns, end_ns);
	json_field_f64(w, "loss", s->loss);
	json_field_i64(w, "data_wait_us", s->wait_us);
	json_field_f64(w, "gflop_per_s", p->plan->flops_per_step / (double)(end_ns - p->begin_ns));
	json_field_i64(w, "events_dropped", p->dropped);
	end_event(w);
}

static void write_trace(
	const struct profile *p, const struct engine_step *s, int64_t end_ns, struct buf *out)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_field_str(&w, "displayTimeUnit", "ms");
	json_key(&w, "otherData");
	json_begin_object(&w);
	json_field_str(&w, "flop_convention", PLAN_FLOP_CONVENTION);
	json_end_object(&w);
	json_key(&w, "traceEvents");
	json_begin_array(&w);
	json_begin_object(&w);
	json_field_str(&w, "name", "process_name");
	json_field_str(&w, "ph", "M");
	json_field_i64(&w, "pid", PROCESS);
	json_field_i64(&w, "tid", THREAD);
	json_key(&w, "args");
	json_begin_object(&w);
	json_field_str(&w, "name", "trainyard-trainer");
	json_end_object(&w);
	json_end_object(&w);
	put_step(&w, p, s, end_ns);
	put_phases(&w, p);
	for (int64_t i = 0; i < p->count; i++)
		put_op(&w, p, &p->events[i]);
	json_end_array(&w);
	json_end_object(&w);
	buf_char(out, '\n');
}

static int write_file(
	const struct profile *p, const char *name, const struct buf *text, struct err *err)
{
	if (text->failed != 0)
		return err_set(err, text->failed, NULL, "%s is too large", name);
	return file_write_atomic(p->dir, name, text->data, text->len, err);
}

int profile_end(struct profile *p, const struct engine_step *step, struct err *err)
{
	char name[FILE_NAME_MAX];
	int64_t end_ns = now_ns();
	cleanup(buf_finish) struct buf text;
	buf_init(&text, PROFILE_TEXT_MAX);
	write_trace(p, step, end_ns, &text);
	snprintf(name, sizeof(name), "step-%lld.json", (long long)step->step);
	p->steps_left--;
	p->steps_done++;
	return write_file(p, name, &text, err);
}

/* ------------------------------------------------------------------------------ the summary */

static int by_time(const void *a, const void *b)
{
	int64_t x = ((const struct total *)a)->ns, y = ((const struct total *)b)->ns;
	return (x < y) - (x > y);
}

int profile_summary(const struct profile *p, struct err *err)
{
	struct total sorted[PLAN_OP_COUNT * PHASES];
	struct json_writer w;
	cleanup(buf_finish) struct buf text;
	double all = 0;
	memcpy(sorted, p->totals, sizeof(sorted));
	qsort(sorted, ARRAY_LEN(sorted), sizeof(*sorted), by_time);
	for (size_t i = 0; i < ARRAY_LEN(sorted); i++)
		all += (double)sorted[i].ns;
	buf_init(&text, SUMMARY_TEXT_MAX);
	json_writer_init(&w, &text);
	json_begin_object(&w);
	json_field_i64(&w, "steps", p->steps_done);
	json_field_str(&w, "flop_convention", PLAN_FLOP_CONVENTION);
	json_key(&w, "operations");
	json_begin_array(&w);
	for (size_t i = 0; i < ARRAY_LEN(sorted) && sorted[i].count > 0; i++) {
		const struct total *t = &sorted[i];
		json_begin_object(&w);
		json_field_str(&w, "kind", plan_op_word(t->kind));
		json_field_str(&w, "phase", plan_phase_word(t->phase));
		json_field_i64(&w, "count", t->count);
		json_field_f64(&w, "ms_per_step", (double)t->ns / 1e6 / (double)num_max(p->steps_done, 1));
		json_field_f64(&w, "share", all > 0 ? (double)t->ns / all : 0);
		json_field_f64(&w, "gflop_per_s", t->ns > 0 ? t->flops / (double)t->ns : 0);
		json_field_f64(&w, "gbyte_per_s", t->ns > 0 ? t->bytes / (double)t->ns : 0);
		json_end_object(&w);
	}
	json_end_array(&w);
	json_end_object(&w);
	buf_char(&text, '\n');
	return write_file(p, "summary.json", &text, err);
}
