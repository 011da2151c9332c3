/* SPDX-License-Identifier: Apache-2.0
 * trainyard-agent: one per machine. Runs what the yard's list says, and nothing else. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "workers/agent/agent.h"
#include "workers/agent/http.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, TEXT_MAX = 64 * 1024 };

static const char usage[] =
	"trainyard-agent: runs a yard's training jobs on this machine\n"
	"\n"
	"  trainyard-agent [--KEY=VALUE …]\n"
	"  trainyard-agent --print-settings     the keys, their environment variables and defaults\n"
	"\n"
	"A settings file of `key = value` lines may be named in TRAINYARD_SETTINGS.\n"
	"SIGTERM ends the agent at once and leaves its trainers running: the next agent with the same\n"
	"work_dir takes them over within their lease.\n";

static int print_settings(void)
{
	struct buf text;
	buf_init(&text, TEXT_MAX);
	if (settings_print(settings_agent_table, settings_agent_count, &text) == 0)
		fputs(buf_cstr(&text), stdout);
	int status = text.failed != 0 ? EXIT_FAILED : 0;
	buf_finish(&text);
	return status;
}

/* Two agents must not share a work folder. The descriptor stays open for good. */
static int lock_work_dir(const struct settings_agent *s, struct err *err)
{
	char path[FILE_PATH_MAX];
	int rc = file_join(path, s->work_dir, "lock", err);
	if (rc < 0)
		return rc;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_errno(
			err, ERR_CONFLICT, errno, "the work folder %s is another agent's", s->work_dir);
	return 0;
}

static int run(struct agent *a, const struct settings_agent *s, struct err *err)
{
	int rc = lock_work_dir(s, err);
	if (rc == 0)
		rc = http_global_init(err);
	if (rc == 0)
		rc = agent_init(a, s, err);
	if (rc == 0)
		rc = agent_recover(a, err);
	if (rc == 0)
		rc = agent_serve(a, err);
	return rc;
}

int main(int argc, char **argv)
{
	static struct settings_agent settings; /* zero, and too large for comfort on the stack */
	static struct agent agent;
	struct err err = { 0 };
	int rest = argc;
	log_setup("trainyard-agent", LOG_INFO);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "--print-settings") == 0)
		return print_settings();
	umask(077);
	/* The key is in this process: its trainers, of the same user, must not look into it. */
	(void)prctl(PR_SET_DUMPABLE, 0);
	signal(SIGPIPE, SIG_IGN);
	if (settings_agent_load(argc, argv, &settings, &rest, &err) < 0) {
		fprintf(
			stderr, "trainyard-agent: %s%s%s\n", err.param, err.param[0] ? ": " : "", err.message);
		return EXIT_USAGE;
	}
	if (rest < argc) {
		fprintf(stderr, "trainyard-agent: the argument %s is not known\n\n%s", argv[rest], usage);
		return EXIT_USAGE;
	}
	int rc = run(&agent, &settings, &err);
	if (rc < 0)
		log_error("agent.failed", LOG_ERR(&err));
	/* At once, whatever the other threads are in the middle of: everything that matters is on disk,
	 * at the trainers or at the yard. */
	_exit(rc < 0 ? EXIT_FAILED : 0);
}
