/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/link.c and backoff.c. */
#include "tests/unit/workers/agent/agent_fixture.h"

#include "core/base/file.h"
#include "workers/agent/backoff.h"
#include "workers/agent/link.h"

#include <sys/socket.h>
#include <sys/un.h>

static void say(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void lines_come_whole_however_they_are_cut(void **state)
{
	struct err err = { 0 };
	struct link l;
	int other = -1;
	size_t bytes = 0;
	(void)state;
	link_init(&l);
	assert_int_equal(link_pair(&l, &other, &err), 0);
	assert_true(link_read(&l));
	assert_null(link_line(&l, &bytes));
	say(other, "one\ntw");
	assert_true(link_read(&l));
	assert_string_equal(link_line(&l, &bytes), "one");
	assert_int_equal(bytes, 3);
	assert_null(link_line(&l, &bytes));
	say(other, "o\n\nthree\n");
	assert_true(link_read(&l));
	assert_string_equal(link_line(&l, &bytes), "two");
	assert_string_equal(link_line(&l, &bytes), "");
	assert_string_equal(link_line(&l, &bytes), "three");
	assert_null(link_line(&l, &bytes));
	say(other, "last\n");
	close(other);
	assert_false(link_read(&l)); /* the peer is gone, its last words are not */
	assert_string_equal(link_line(&l, &bytes), "last");
	link_finish(&l);
}

static void a_flood_without_an_end_is_bounded(void **state)
{
	struct err err = { 0 };
	struct link l;
	int other = -1;
	size_t bytes = 0;
	static char flood[LINK_LINE_MAX + 8192];
	(void)state;
	link_init(&l);
	assert_int_equal(link_pair(&l, &other, &err), 0);
	memset(flood, 'x', sizeof(flood));
	assert_int_equal(send(other, flood, sizeof(flood), MSG_DONTWAIT), sizeof(flood));
	for (int i = 0; i < 10; i++)
		assert_true(link_read(&l));
	assert_null(link_line(&l, &bytes));
	assert_true(l.in.len > LINK_LINE_MAX && l.in.len <= l.in.max_bytes);
	close(other);
	link_finish(&l);
}

static void a_peer_that_does_not_read_loses_the_connection(void **state)
{
	struct err err = { 0 };
	struct link l;
	int other = -1;
	char line[1000];
	(void)state;
	link_init(&l);
	assert_int_equal(link_pair(&l, &other, &err), 0);
	memset(line, 'x', sizeof(line) - 1);
	line[sizeof(line) - 1] = '\0';
	int sent = 0;
	for (; l.fd >= 0 && sent < 10000; sent++)
		link_send(&l, line);
	assert_int_equal(l.fd, -1);
	assert_true(sent < 10000);
	link_send(&l, line); /* quietly nothing */
	close(other);
	link_finish(&l);
}

static void a_long_path_can_be_connected_to(void **state)
{
	struct err err = { 0 };
	struct link l;
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "control.sock" };
	char name[150], dir[FILE_PATH_MAX], back[FILE_PATH_MAX];
	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(file_join(dir, *state, name, &err), 0);
	assert_int_equal(file_mkdir(dir, &err), 0);
	assert_true(strlen(dir) > sizeof(a.sun_path));
	link_init(&l);
	assert_true(link_connect(&l, dir, &err) < 0);
	int server = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_non_null(getcwd(back, sizeof(back)));
	assert_int_equal(chdir(dir), 0);
	assert_int_equal(bind(server, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(chdir(back), 0);
	assert_int_equal(link_connect(&l, dir, &err), 0);
	close(server);
	link_finish(&l);
}

static void waiting_grows_to_its_maximum(void **state)
{
	struct backoff b = { .first_ms = 100, .max_ms = 1000 };
	(void)state;
	int64_t step = 100;
	for (int i = 0; i < 10; i++) {
		int64_t ms = backoff_next_ms(&b);
		assert_true(ms >= step / 2 && ms <= step);
		step = step * 2 < 1000 ? step * 2 : 1000;
	}
	backoff_reset(&b);
	assert_true(backoff_next_ms(&b) <= 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_come_whole_however_they_are_cut),
		cmocka_unit_test(a_flood_without_an_end_is_bounded),
		cmocka_unit_test(a_peer_that_does_not_read_loses_the_connection),
		cmocka_unit_test(a_long_path_can_be_connected_to),
		cmocka_unit_test(waiting_grows_to_its_maximum),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
