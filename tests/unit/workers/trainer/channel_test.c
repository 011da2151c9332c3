/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/channel.c over a real socket: numbers, resending, orders, a slow agent. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { WAIT_MS = 10000 };

struct talk {
	struct lease lease;
	struct channel *channel;
	int fd; /* the agent's end */
	char in[CHANNEL_LINE_MAX];
	size_t len;
	char path[100];
};

static void never(void)
{
	fail_msg("the lease must not run out");
}

static void begin(struct fixture *f, struct talk *t)
{
	struct err err = { 0 };
	int fds[2];
	memset(t, 0, sizeof(*t));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	snprintf(t->path, sizeof(t->path), "%s/control.sock", f->dir);
	assert_int_equal(lease_start(&t->lease, clock_system(), INT64_MAX / 2, never, &err), 0);
	struct channel_options o = { .fd = fds[1],
		.socket_path = t->path,
		.first_seq = 2,
		.clock = clock_system(),
		.lease = &t->lease };
	assert_int_equal(channel_create(&o, &t->channel, &err), 0);
	t->fd = fds[0];
}

static void finish(struct talk *t)
{
	channel_destroy(t->channel);
	lease_stop(&t->lease);
	close(t->fd);
}

static void say(struct talk *t, const char *line)
{
	assert_int_equal(send(t->fd, line, strlen(line), MSG_NOSIGNAL), strlen(line));
}

/* The next line from the trainer; NULL when it hangs up. */
static const char *hear(struct talk *t)
{
	static char line[CHANNEL_LINE_MAX];
	for (;;) {
		char *end = memchr(t->in, '\n', t->len);
		if (end != NULL) {
			size_t n = (size_t)(end - t->in);
			memcpy(line, t->in, n);
			line[n] = '\0';
			t->len -= n + 1;
			memmove(t->in, end + 1, t->len);
			return line;
		}
		struct pollfd p = { .fd = t->fd, .events = POLLIN };
		assert_int_equal(poll(&p, 1, WAIT_MS), 1);
		ssize_t n = recv(t->fd, t->in + t->len, sizeof(t->in) - t->len, 0);
		if (n <= 0)
			return NULL;
		t->len += (size_t)n;
	}
}

static bool silent(struct talk *t)
{
	struct pollfd p = { .fd = t->fd, .events = POLLIN };
	return t->len == 0 && poll(&p, 1, 100) == 0;
}

static void post(struct talk *t, const char *json)
{
	struct err err = { 0 };
	assert_int_equal(channel_post(t->channel, json, false, NULL, &err), 0);
}

static void reconnect(struct talk *t)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", t->path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(t->fd);
	t->fd = fd;
	t->len = 0;
}

static void nothing_is_said_before_hello(void **state)
{
	struct talk t;
	begin(*state, &t);
	post(&t, "{\"t\":\"training\"}");
	assert_true(silent(&t));
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	assert_string_equal(hear(&t), "{\"seq\":2,\"t\":\"training\"}");
	finish(&t);
}

static void what_is_not_acknowledged_is_sent_again(void **state)
{
	struct talk t;
	begin(*state, &t);
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	post(&t, "{\"t\":\"a\"}");
	post(&t, "{\"t\":\"b\"}");
	post(&t, "{\"t\":\"c\"}");
	for (int i = 0; i < 3; i++)
		assert_non_null(hear(&t));
	say(&t, "{\"t\":\"ack\",\"seq\":2}\n");
	reconnect(&t);
	assert_true(silent(&t));
	say(&t, "{\"t\":\"hello\",\"acked_seq\":3}\n");
	assert_string_equal(hear(&t), "{\"seq\":4,\"t\":\"c\"}");
	assert_int_equal(channel_acked_seq(t.channel), 3);
	post(&t, "{\"t\":\"d\"}");
	assert_string_equal(hear(&t), "{\"seq\":5,\"t\":\"d\"}");
	say(&t, "{\"t\":\"ack\",\"seq\":5}\n");
	assert_true(channel_drain(t.channel, -1));
	/* An agent cannot acknowledge what was never said. */
	say(&t,
		"{\"t\":\"ack\",\"seq\":99}\n{\"t\":\"hello\",\"acked_seq\":5}\n{\"t\":\"checkpoint\"}\n");
	for (int i = 0; !channel_take_checkpoint(t.channel) && i < WAIT_MS; i++)
		poll(NULL, 0, 1); /* until it has read the lines */
	post(&t, "{\"t\":\"e\"}");
	assert_string_equal(hear(&t), "{\"seq\":6,\"t\":\"e\"}");
	assert_int_equal(channel_acked_seq(t.channel), 5);
	finish(&t);
}

static void the_latest_connection_wins(void **state)
{
	struct talk t;
	begin(*state, &t);
	int old = dup(t.fd);
	reconnect(&t);
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	post(&t, "{\"t\":\"a\"}");
	assert_string_equal(hear(&t), "{\"seq\":2,\"t\":\"a\"}");
	char c;
	assert_int_equal(recv(old, &c, 1, 0), 0);
	close(old);
	finish(&t);
}

static void posting_never_waits_and_steps_are_dropped_first(void **state)
{
	struct talk t;
	struct err err = { 0 };
	int64_t seq = 0, kept = 0, dropped = 0, last = 1;
	char text[4096];
	begin(*state, &t); /* nobody reads */
	memset(text, 'x', sizeof(text));
	memcpy(text, "{\"t\":\"", 6);
	memcpy(text + sizeof(text) - 3, "\"}", 3);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(channel_post(t.channel, text, true, &seq, &err), 0);
		if (seq == 0) {
			dropped++;
		} else {
			assert_int_equal(seq, last + 1); /* no gap where one was dropped */
			last = seq;
			kept++;
		}
	}
	assert_true(dropped > 0);
	assert_true(kept * (int64_t)sizeof(text) <= CHANNEL_DROPPABLE_MAX + (int64_t)sizeof(text));
	assert_int_equal(channel_post(t.channel, "{\"t\":\"end\"}", false, &seq, &err), 0);
	assert_int_equal(seq, last + 1);
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	const char *line = NULL;
	for (int64_t i = 0; i < kept + 1; i++)
		line = hear(&t);
	assert_non_null(strstr(line, "\"end\""));
	finish(&t);
}

static void orders_arrive(void **state)
{
	struct talk t;
	struct clock const *clock = clock_system();
	begin(*state, &t);
	assert_int_equal(channel_stop(t.channel), CHANNEL_STOP_NONE);
	assert_false(channel_take_checkpoint(t.channel));
	/* Cut in odd places, with lines between that mean nothing. */
	say(&t, "{\"t\":\"hello\",\"acked");
	say(&t, "_seq\":1}\nnot json\n{}\n[1]\n{\"t\":\"new\"}\n{\"t\":\"checkpoint\"}\n{\"t\":\"st");
	say(&t, "op\",\"why\":\"whim\"}\n{\"t\":\"stop\",\"why\":\"pause\"}\n");
	post(&t, "{\"t\":\"a\"}");
	assert_non_null(hear(&t));
	for (int i = 0; channel_stop(t.channel) == CHANNEL_STOP_NONE && i < WAIT_MS; i++)
		poll(NULL, 0, 1);
	assert_int_equal(channel_stop(t.channel), CHANNEL_STOP_PAUSE);
	assert_true(channel_take_checkpoint(t.channel));
	assert_false(channel_take_checkpoint(t.channel));

	int64_t now_ms = clock_boot_us(clock) / 1000;
	char line[200];
	snprintf(line, sizeof(line),
		"{\"t\":\"lease\",\"remaining_ms\":-5}\n"
		"{\"t\":\"lease\",\"remaining_ms\":900000,\"until_boot_ms\":%lld}\n",
		(long long)now_ms + 60000);
	say(&t, line);
	say(&t, "{\"t\":\"stop\",\"why\":\"cancel\"}\n");
	for (int i = 0; channel_stop(t.channel) != CHANNEL_STOP_CANCEL && i < WAIT_MS; i++)
		poll(NULL, 0, 1);
	int64_t left_ms = lease_remaining_us(&t.lease) / 1000;
	assert_true(left_ms > 30000 && left_ms <= 60000); /* the earlier of the two */
	finish(&t);
}

static void a_moving_loop_is_heard_of(void **state)
{
	struct talk t;
	begin(*state, &t);
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	channel_alive(t.channel, 41);
	channel_alive(t.channel, 42);
	assert_string_equal(hear(&t), "{\"t\":\"alive\",\"step\":42}");
	assert_true(silent(&t));
	finish(&t);
}

static void a_line_without_an_end_is_hung_up_on(void **state)
{
	struct talk t;
	static char flood[CHANNEL_LINE_MAX + 16384];
	begin(*state, &t);
	memset(flood, 'x', sizeof(flood));
	(void)send(t.fd, flood, sizeof(flood), MSG_NOSIGNAL);
	assert_null(hear(&t));
	reconnect(&t);
	say(&t, "{\"t\":\"hello\",\"acked_seq\":1}\n");
	post(&t, "{\"t\":\"a\"}");
	assert_non_null(hear(&t));
	finish(&t);
}

static void leaving_does_not_wait_for_an_absent_agent(void **state)
{
	struct talk t;
	begin(*state, &t);
	post(&t, "{\"t\":\"end\"}");
	close(t.fd);
	t.fd = -1;
	assert_false(channel_drain(t.channel, 50));
	finish(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_said_before_hello),
		cmocka_unit_test(what_is_not_acknowledged_is_sent_again),
		cmocka_unit_test(the_latest_connection_wins),
		cmocka_unit_test(posting_never_waits_and_steps_are_dropped_first),
		cmocka_unit_test(orders_arrive),
		cmocka_unit_test(a_moving_loop_is_heard_of),
		cmocka_unit_test(a_line_without_an_end_is_hung_up_on),
		cmocka_unit_test(leaving_does_not_wait_for_an_absent_agent),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
