/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/process.c. The program started is this test itself, which then tells what it
 * finds around it. */
#include "tests/unit/workers/agent/agent_fixture.h"

#include "core/base/file.h"
#include "workers/agent/process.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { WAIT_MS = 20000, LEAK = 77 };

extern char **environ;

/* ------------------------------------------------------------------------------ the child */

static int child_tell(char **argv)
{
	struct rlimit data, core;
	char cwd[512];
	sigset_t mask;
	int fds = 0;
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	while (d != NULL && (e = readdir(d)) != NULL)
		if (e->d_name[0] != '.' && strtol(e->d_name, NULL, 10) != dirfd(d))
			fds++;
	if (d != NULL)
		closedir(d);
	getrlimit(RLIMIT_DATA, &data);
	getrlimit(RLIMIT_CORE, &core);
	sigprocmask(SIG_BLOCK, NULL, &mask);
	if (getcwd(cwd, sizeof(cwd)) == NULL)
		return 1;
	FILE *out = fopen("told", "w");
	for (int i = 1; argv[i] != NULL; i++)
		fprintf(out, "%s\n", argv[i]);
	for (char **v = environ; *v != NULL; v++)
		fprintf(out, "%s\n", *v);
	fprintf(out, "cwd=%s\nfds=%d\nleader=%d\nprivs=%d\n", cwd, fds, getsid(0) == getpid(),
		prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	fprintf(out, "data=%lld\ncore=%lld\nblocked=%d\n", (long long)data.rlim_cur,
		(long long)core.rlim_cur, sigismember(&mask, SIGTERM));
	fclose(out);
	fprintf(stderr, "to the log\n");
	return write(3, "up", 2) == 2 ? 5 : 1;
}

/* Holds the lock until it is killed. */
static int child_hold(void)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open("lock", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || fcntl(fd, F_SETLK, &l) < 0)
		return PROCESS_EXIT_BUSY;
	if (write(3, "up", 2) != 2)
		return 1;
	for (;;)
		pause();
}

/* ------------------------------------------------------------------------------ the tests */

static pid_t start(void **state, int rank, int *ret_fd)
{
	static char self[512];
	struct err err = { 0 };
	int fds[2];
	pid_t pid = 0;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(n > 0);
	self[n] = '\0';
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	struct process_options o = { .program = self,
		.dir = *state,
		.log_path = fixture_path(state, "log.txt"),
		.rank = rank,
		.lease_until_ms = 123,
		.threads = 3,
		.memory_bytes = 1 << 20,
		.gpu = rank == 2 ? "GPU-aaaa" : NULL,
		.channel_fd = fds[1] };
	assert_int_equal(process_start(&o, &pid, &err), 0);
	close(fds[1]);
	*ret_fd = fds[0];
	return pid;
}

static void wait_up(int fd)
{
	char c[2];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(recv(fd, c, 2, MSG_WAITALL), 2);
}

static struct process_exit wait_end(pid_t pid, bool child, const char *lock)
{
	struct process_exit e = { 0 };
	for (int i = 0; i < WAIT_MS; i++) {
		if (process_ended(pid, child, lock, &e))
			return e;
		poll(NULL, 0, 1);
	}
	fail_msg("the process does not end");
	return e;
}

static void a_trainer_has_nothing_of_the_agents(void **state)
{
	struct err err = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	int fd = -1;
	assert_int_equal(setenv("TRAINYARD_AGENT_KEY", "ty_secret", 1), 0);
	assert_int_equal(setenv("LD_PRELOAD_X", "x", 1), 0);
	assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);
	assert_true(dup2(2, LEAK) == LEAK); /* not even close-on-exec */
	pid_t pid = start(state, 0, &fd);
	wait_up(fd);
	struct process_exit e = wait_end(pid, true, fixture_path(state, "lock"));
	assert_true(e.known);
	assert_int_equal(e.exit_code, 5);
	assert_int_equal(e.signal, -1);
	close(fd);
	close(LEAK);
	assert_int_equal(file_read(fixture_path(state, "told"), 10000, &text, &bytes, &err), 0);
	assert_null(strstr(text, "secret"));
	assert_null(strstr(text, "LD_PRELOAD_X"));
	assert_null(strstr(text, "CUDA_VISIBLE_DEVICES"));
	char cwd[200];
	snprintf(cwd, sizeof(cwd), "cwd=%s\n", (const char *)*state);
	static const char *const expected[] = { "--rank=0\n", "--lease-until=123\n",
		"OMP_NUM_THREADS=3\n", "fds=4\n", "leader=1\n", "privs=1\n", "core=0\n", "blocked=0\n" };
	for (size_t i = 0; i < ARRAY_LEN(expected); i++)
		if (strstr(text, expected[i]) == NULL)
			fail_msg("%s is not in:\n%s", expected[i], text);
	assert_non_null(strstr(text, cwd));
#if !defined(__SANITIZE_ADDRESS__)
	char data[64];
	snprintf(data, sizeof(data), "data=%lld\n", (1LL << 20) + PROCESS_MEMORY_SLACK_BYTES);
	assert_non_null(strstr(text, data));
#endif
	free(text);
	assert_int_equal(file_read(fixture_path(state, "log.txt"), 10000, &text, &bytes, &err), 0);
	assert_non_null(strstr(text, "to the log"));
	free(text);
}

static void a_trainer_sees_its_gpu_alone(void **state)
{
	struct err err = { 0 };
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	int fd = -1;
	assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);
	pid_t pid = start(state, 2, &fd);
	(void)wait_end(pid, true, fixture_path(state, "lock"));
	close(fd);
	assert_int_equal(file_read(fixture_path(state, "told"), 10000, &text, &bytes, &err), 0);
	assert_non_null(strstr(text, "\nCUDA_VISIBLE_DEVICES=GPU-aaaa\n"));
	assert_null(strstr(text, "CUDA_VISIBLE_DEVICES=3"));
}

static void the_lock_tells_who_lives(void **state)
{
	int fd = -1, second_fd = -1;
	const char *lock = fixture_path(state, "lock");
	assert_int_equal(process_holder(lock), 0); /* not even a file */
	pid_t pid = start(state, 1, &fd);
	wait_up(fd);
	struct process_exit e = { 0 };
	assert_int_equal(process_holder(lock), pid);
	assert_false(process_ended(pid, true, lock, &e));
	assert_false(process_ended(pid, false, lock, &e));
	/* A second one finds the place taken. */
	pid_t second = start(state, 1, &second_fd);
	e = wait_end(second, true, lock);
	assert_int_equal(e.exit_code, PROCESS_EXIT_BUSY);
	/* A pid that does not hold the lock is nobody of ours. */
	process_kill(getpid(), false, lock);
	process_kill(pid, false, lock);
	e = wait_end(pid, true, lock);
	assert_true(e.known);
	assert_int_equal(e.signal, SIGKILL);
	assert_int_equal(process_holder(lock), 0);
	assert_true(process_ended(pid, false, lock, &e));
	assert_false(e.known);
	close(fd);
	close(second_fd);
}

static void a_program_that_is_missing_ends_with_127(void **state)
{
	struct err err = { 0 };
	pid_t pid = 0;
	struct process_options o = { .program = "/nonexistent/trainer",
		.dir = *state,
		.log_path = fixture_path(state, "log.txt"),
		.threads = 1,
		.channel_fd = 0 };
	assert_int_equal(process_start(&o, &pid, &err), 0);
	assert_int_equal(wait_end(pid, true, fixture_path(state, "none")).exit_code, 127);
}

int main(int argc, char **argv)
{
	if (argc > 1 && (strcmp(argv[1], "--rank=0") == 0 || strcmp(argv[1], "--rank=2") == 0))
		return child_tell(argv);
	if (argc > 1 && strcmp(argv[1], "--rank=1") == 0)
		return child_hold();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trainer_has_nothing_of_the_agents),
		cmocka_unit_test(a_trainer_sees_its_gpu_alone),
		cmocka_unit_test(the_lock_tells_who_lives),
		cmocka_unit_test(a_program_that_is_missing_ends_with_127),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
