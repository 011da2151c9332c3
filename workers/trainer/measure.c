/* SPDX-License-Identifier: Apache-2.0
 * Timing of training steps. */
#include "workers/trainer/measure.h"

#include "workers/trainer/made_data.h"
#include "workers/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATUS_MAX = 8192, KIB = 1024 };

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* "VmRSS:" or "VmHWM:" of this process; 0 when the system does not tell. */
static int64_t resident(const char *key)
{
	char text[STATUS_MAX] = "";
	FILE *f = fopen("/proc/self/status", "re");
	if (f == NULL)
		return 0;
	size_t n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	const char *at = strstr(text, key);
	return at != NULL ? strtoll(at + strlen(key), NULL, 10) * KIB : 0;
}

/* The peak counts from here on. */
static void forget_peak(void)
{
	FILE *f = fopen("/proc/self/clear_refs", "we");
	if (f == NULL)
		return;
	fputs("5", f);
	fclose(f);
}

struct watch {
	struct measure *m;
	bool counts;
};

static void on_operation(
	void *ctx, const struct plan_op *op, int64_t micro, int64_t begin_ns, int64_t end_ns)
{
	struct watch *w = ctx;
	if (!w->counts)
		return;
	struct measure_kind *k = &w->m->kinds[op->kind];
	k->count++;
	k->ns += end_ns - begin_ns;
	k->flops += op->flops;
	k->bytes += op->bytes;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* What operations take. To know it, the engine waits for each: that changes how long steps take
 * where a device works behind its caller. */
static int time_operations(struct session *s, int64_t steps, struct watch *w, struct err *err)
{
	struct engine_step step;
	int rc = 0;
	engine_trace(s->engine, on_operation, w);
	for (int64_t i = 0; i < steps && rc == 0; i++)
		rc = engine_step(s->engine, &step, err);
	engine_trace(s->engine, NULL, NULL);
	return rc;
}

static int time_steps(
	struct session *s, int64_t warm, int64_t steps, struct measure *m, struct err *err)
{
	struct watch w = { .m = m };
	struct engine_step step = { 0 };
	bool behind = device_is_apart(s->device);
	cleanup(freep) double *ms = calloc((size_t)steps, sizeof(*ms));
	if (ms == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for %lld times", (long long)steps);
	engine_trace(s->engine, behind ? NULL : on_operation, &w);
	int rc = 0;
	for (int64_t i = -warm; i < steps && rc == 0; i++) {
		w.counts = i >= 0;
		int64_t begin = now_ns();
		rc = engine_step(s->engine, &step, err);
		if (i >= 0)
			ms[i] = (double)(now_ns() - begin) / 1e6;
	}
	engine_trace(s->engine, NULL, NULL);
	if (rc == 0 && behind)
		rc = time_operations(s, steps, &w, err);
	if (rc < 0)
		return rc;
	qsort(ms, (size_t)steps, sizeof(*ms), by_size);
	m->steps = steps;
	m->step_ms = (ms[(steps - 1) / 2] + ms[steps / 2]) / 2;
	m->step_ms_min = ms[0];
	m->step_ms_max = ms[steps - 1];
	m->samples = (double)step.samples;
	m->tokens = (double)step.tokens;
	m->loss = step.loss;
	return 0;
}

int measure_run(const struct job_spec *spec, enum device_kind device, int threads, int64_t warm,
	int64_t steps, struct measure *ret, struct err *err)
{
	struct job_spec made = *spec;
	struct session_inputs in = { .threads = threads, .device = device };
	struct measure m = { 0 };
	struct made_data data = { 0 };
	cleanup(session_closep) struct session *s = NULL;
	int rc = made_data_write(&data, &made, &in, err);
	forget_peak();
	int64_t before = resident("VmRSS:"), begin = now_ns();
	if (rc == 0)
		rc = session_open(&made, &in, &s, err);
	made_data_remove(&data);
	m.open_ms = (double)(now_ns() - begin) / 1e6;
	if (rc == 0)
		rc = time_steps(s, warm, steps, &m, err);
	if (rc < 0)
		return rc;
	m.flops_per_step = s->plan->flops_per_step;
	m.plan_bytes = s->plan->total_bytes;
	m.memory_bytes = engine_memory_bytes(s->engine);
	m.resident_bytes = resident("VmHWM:") - before;
	m.backend = engine_backend_name(device_backend(s->device, s->plan->type));
	*ret = m;
	return 0;
}
