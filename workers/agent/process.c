/* SPDX-License-Identifier: Apache-2.0
 * Trainer processes. Between fork and exec only system calls: the agent has threads. */
#include "workers/agent/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	CHANNEL_FD = 3,
	FD_SAFE = 16, /* descriptors are moved above this before they are given their places */
	ARG_MAX_BYTES = 1200,
	ENV_COUNT = 9,
	GPU_MAX_BYTES = 128,
	EXEC_FAILED = 127,
#if defined(__SANITIZE_ADDRESS__)
	LIMIT_MEMORY = 0, /* the sanitizer reserves terabytes of address space */
#else
	LIMIT_MEMORY = 1,
#endif
};

struct launch {
	const struct process_options *o;
	char dir_arg[ARG_MAX_BYTES], rank_arg[32], lease_arg[48];
	char threads_env[48], gpu_env[GPU_MAX_BYTES], home_env[ARG_MAX_BYTES], tmp_env[ARG_MAX_BYTES];
	char *argv[5], *envp[ENV_COUNT];
	int null_fd, log_fd, channel_fd;
};

static int prepare(struct launch *l, const struct process_options *o, struct err *err)
{
	l->o = o;
	snprintf(l->dir_arg, sizeof(l->dir_arg), "--dir=%s", o->dir);
	snprintf(l->rank_arg, sizeof(l->rank_arg), "--rank=%d", o->rank);
	snprintf(
		l->lease_arg, sizeof(l->lease_arg), "--lease-until=%lld", (long long)o->lease_until_ms);
	snprintf(l->threads_env, sizeof(l->threads_env), "OMP_NUM_THREADS=%lld", (long long)o->threads);
	snprintf(l->home_env, sizeof(l->home_env), "HOME=%s", o->dir);
	snprintf(l->tmp_env, sizeof(l->tmp_env), "TMPDIR=%s", o->dir);
	/* By UUID: an index means another GPU to each program, and after each restart. */
	snprintf(
		l->gpu_env, sizeof(l->gpu_env), "CUDA_VISIBLE_DEVICES=%s", o->gpu != NULL ? o->gpu : "");
	char *argv[] = { (char *)o->program, l->rank_arg, l->dir_arg, l->lease_arg, NULL };
	char *envp[] = { (char *)"PATH=/usr/bin:/bin", (char *)"LANG=C.UTF-8",
		(char *)"OMP_DYNAMIC=false", l->threads_env, l->home_env, l->tmp_env,
		o->gpu != NULL ? l->gpu_env : NULL, NULL };
	memcpy(l->argv, argv, sizeof(argv));
	memcpy(l->envp, envp, sizeof(envp));

	int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int log_fd = open(o->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	l->null_fd = null_fd < 0 ? -1 : fcntl(null_fd, F_DUPFD_CLOEXEC, FD_SAFE);
	l->log_fd = log_fd < 0 ? -1 : fcntl(log_fd, F_DUPFD_CLOEXEC, FD_SAFE);
	l->channel_fd = fcntl(o->channel_fd, F_DUPFD_CLOEXEC, FD_SAFE);
	int errnum = errno;
	closep(&null_fd);
	closep(&log_fd);
	if (l->null_fd < 0 || l->log_fd < 0 || l->channel_fd < 0)
		return err_errno(err, ERR_IO, errnum, "no descriptors for a trainer");
	return 0;
}

static void limit(int what, rlim_t value)
{
	struct rlimit r = { value, value };
	(void)setrlimit(what, &r);
}

/* Runs in the child. */
static void become_trainer(const struct launch *l)
{
	sigset_t none;
	setsid();
	sigemptyset(&none);
	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(077);
	if (dup2(l->null_fd, 0) < 0 || dup2(l->log_fd, 1) < 0 || dup2(l->log_fd, 2) < 0 ||
		dup2(l->channel_fd, CHANNEL_FD) < 0 || chdir(l->o->dir) < 0)
		_exit(EXEC_FAILED);
	close_range(CHANNEL_FD + 1, ~0U, 0);
	limit(RLIMIT_CORE, 0);
	limit(RLIMIT_NOFILE, PROCESS_FILES_MAX);
	if (LIMIT_MEMORY)
		limit(RLIMIT_DATA, (rlim_t)l->o->memory_bytes + PROCESS_MEMORY_SLACK_BYTES);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		_exit(EXEC_FAILED);
	execve(l->o->program, l->argv, l->envp);
	_exit(EXEC_FAILED);
}

int process_start(const struct process_options *o, pid_t *ret_pid, struct err *err)
{
	struct launch l = { .null_fd = -1, .log_fd = -1, .channel_fd = -1 };
	int rc = prepare(&l, o, err);
	if (rc == 0) {
		pid_t pid = fork();
		if (pid == 0)
			become_trainer(&l);
		if (pid < 0)
			rc = err_errno(err, ERR_IO, errno, "a trainer cannot be started");
		else
			*ret_pid = pid;
	}
	closep(&l.null_fd);
	closep(&l.log_fd);
	closep(&l.channel_fd);
	return rc;
}

pid_t process_holder(const char *lock_path)
{
	cleanup(closep) int fd = open(lock_path, O_RDWR | O_CLOEXEC);
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (fd < 0 || fcntl(fd, F_GETLK, &l) < 0 || l.l_type == F_UNLCK)
		return 0;
	return l.l_pid;
}

bool process_ended(pid_t pid, bool child, const char *lock_path, struct process_exit *ret)
{
	int status = 0;
	struct process_exit e = { .exit_code = -1, .signal = -1 };
	if (child) {
		pid_t got = waitpid(pid, &status, WNOHANG);
		if (got == 0 || (got < 0 && errno == EINTR))
			return false;
		e.known = got == pid;
		if (got == pid && WIFEXITED(status))
			e.exit_code = WEXITSTATUS(status);
		if (got == pid && WIFSIGNALED(status))
			e.signal = WTERMSIG(status);
	} else if (process_holder(lock_path) == pid) {
		return false;
	}
	*ret = e;
	return true;
}

void process_kill(pid_t pid, bool child, const char *lock_path)
{
	if (pid > 0 && (child || process_holder(lock_path) == pid))
		kill(pid, SIGKILL);
}
