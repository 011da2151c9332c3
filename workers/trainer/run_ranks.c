/* SPDX-License-Identifier: Apache-2.0
 * Starting the ranks of a job and waiting for them. */
#include "workers/trainer/run_ranks.h"

#include "workers/trainer/command.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIGNAL_STATUS = 128 };

struct ranks_run {
	pid_t *pid; /* 0: it has ended */
	int count, left;
	int status;        /* of the first that failed by itself */
	bool failed, told; /* one did; by itself */
};

static void send_all(const struct ranks_run *r, int signum)
{
	for (int i = 0; i < r->count; i++)
		if (r->pid[i] > 0)
			kill(r->pid[i], signum);
}

static void note_end(struct ranks_run *r, int rank, int status)
{
	int code = WIFSIGNALED(status) ? SIGNAL_STATUS + WTERMSIG(status) : WEXITSTATUS(status);
	r->pid[rank] = 0;
	r->left--;
	if (code == COMMAND_OK)
		return;
	r->failed = true;
	if (WIFSIGNALED(status) && !r->told)
		fprintf(stderr, "trainyard-trainer: rank %d was ended by signal %d (%s)\n", rank,
			WTERMSIG(status), strsignal(WTERMSIG(status)));
	/* Whoever only lost another one is not the cause. */
	if (!r->told && (r->status == COMMAND_OK || r->status == COMMAND_LOST_RANK))
		r->status = code;
	r->told = r->told || code != COMMAND_LOST_RANK;
}

static void reap(struct ranks_run *r)
{
	int status = 0;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < r->count; i++)
			if (r->pid[i] == pid)
				note_end(r, i, status);
}

/* Of the others, one has failed, and these do not leave. */
static void end_rest(const struct ranks_run *r)
{
	for (int i = 0; i < r->count; i++)
		if (r->pid[i] > 0)
			fprintf(stderr, "trainyard-trainer: rank %d does not leave and is ended\n", i);
	send_all(r, SIGKILL);
}

static void wait_all(struct ranks_run *r, const sigset_t *set)
{
	const struct timespec grace = { .tv_sec = RUN_RANKS_GRACE_S };
	while (r->left > 0) {
		int signum = r->failed ? sigtimedwait(set, NULL, &grace) : sigwaitinfo(set, NULL);
		if (signum == SIGINT || signum == SIGTERM)
			send_all(r, SIGTERM);
		else if (signum < 0 && errno == EAGAIN)
			end_rest(r);
		reap(r);
	}
}

/* In the child; true when the parent is gone already. */
static bool orphaned(pid_t parent)
{
	return prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent;
}

int run_ranks_start(int count, int *ret_rank, int *ret_status, struct err *err)
{
	struct ranks_run r = { .count = count };
	const pid_t parent = getpid();
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	cleanup(freep) pid_t *pids = r.pid = calloc((size_t)count, sizeof(*pids));
	if (pids == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for %d ranks", count);
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (orphaned(parent))
				_exit(COMMAND_FAILED);
			*ret_rank = i;
			return 0;
		}
		if (pid < 0) {
			int rc = err_errno(err, ERR_IO, errno, "rank %d cannot be started", i);
			send_all(&r, SIGKILL);
			wait_all(&r, &set);
			return rc;
		}
		r.pid[i] = pid;
		r.left++;
	}
	wait_all(&r, &set);
	*ret_rank = RUN_RANKS_PARENT;
	*ret_status = r.status;
	return 0;
}
