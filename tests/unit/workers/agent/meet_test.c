/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/meet.c: what cannot be told to the other machines ends the attempt, and is
 * not dropped. */
#include "tests/unit/workers/agent/agent_fixture.h"
#include "tests/unit/workers/agent/server_fixture.h"

#include "core/base/buf.h"
#include "core/base/clock.h"
#include "workers/agent/meet.h"

#include <time.h>

enum {
	KEYS = 8192, /* that an attempt may have; a file each */
	DEADLINE_S = 120,
};

struct world {
	struct server *server;
	struct settings_agent settings;
	struct agent agent;
	struct run *run;
	struct buf reply;
};

static void make(void **state, struct world *w)
{
	struct err err = { 0 };
	memset(w, 0, sizeof(*w));
	w->server = server_start();
	w->agent.settings = &w->settings;
	w->agent.clock = clock_system();
	w->agent.wake = -1; /* nobody waits */
	pthread_mutex_init(&w->agent.lock, NULL);
	pthread_cond_init(&w->agent.report_due, NULL);
	snprintf(w->settings.server_url, sizeof(w->settings.server_url), "%s", w->server->url);
	assert_int_equal(run_create("att_1", 1, fixture_path(state, "att_1"), &w->run, &err), 0);
	assert_int_equal(file_mkdir(w->run->dir, &err), 0);
	assert_int_equal(file_mkdir(fixture_path(state, "att_1/rendezvous"), &err), 0);
	w->run->parts = 2;
	buf_init(&w->reply, 1024 * 1024);
}

static void serve(struct world *w, const char *status, const char *body)
{
	buf_printf(
		&w->reply, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);
	assert_int_equal(w->reply.failed, 0);
	reply_with(w->server, buf_cstr(&w->reply));
}

/* Until the thread has left. */
static void meet(struct world *w)
{
	struct err err = { 0 };
	time_t begin = time(NULL);
	bool meeting = true;
	pthread_mutex_lock(&w->agent.lock);
	assert_int_equal(meet_start(&w->agent, w->run, &err), 0);
	pthread_mutex_unlock(&w->agent.lock);
	while (meeting && time(NULL) - begin < DEADLINE_S) {
		nanosleep(&(struct timespec){ .tv_nsec = 5 * 1000 * 1000 }, NULL); /* between looks */
		pthread_mutex_lock(&w->agent.lock);
		meeting = w->run->meeting;
		pthread_mutex_unlock(&w->agent.lock);
	}
	assert_false(meeting);
}

static void finish(struct world *w)
{
	server_stop(w->server);
	run_destroy(w->run);
	buf_finish(&w->reply);
}

static void a_key_too_many_ends_the_attempt(void **state)
{
	struct world w;
	cleanup(buf_finish) struct buf body;
	make(state, &w);
	buf_init(&body, 1024 * 1024);
	buf_str(&body, "{\"have\":1,\"entries\":[");
	for (int i = 0; i <= KEYS; i++)
		buf_printf(&body, "%s{\"key\":\"%x.k\",\"value\":\"\"}", i > 0 ? "," : "", i);
	buf_str(&body, "]}");
	serve(&w, "200 OK", buf_cstr(&body));
	meet(&w);
	assert_true(w.run->has_verdict);
	assert_string_equal(w.run->verdict.reason, "platform_error");
	assert_non_null(strstr(w.run->verdict.message, "at most 8192 things"));
	finish(&w);
}

static void what_the_yard_has_no_room_for_ends_it_too(void **state)
{
	struct world w;
	make(state, &w);
	serve(&w, "403 Forbidden", "{\"error\":{\"code\":\"quota_exceeded\",\"message\":\"full\"}}");
	meet(&w);
	assert_true(w.run->has_verdict);
	assert_string_equal(w.run->verdict.reason, "platform_error");
	finish(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_key_too_many_ends_the_attempt, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			what_the_yard_has_no_room_for_ends_it_too, fixture_setup, fixture_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
