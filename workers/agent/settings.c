/* SPDX-License-Identifier: Apache-2.0
 * The settings table of trainyard-agent. */
#include "workers/agent/settings.h"

#include "core/base/file.h"
#include "core/spec/region.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_FILE_MAX = 4096 };

#define STR(...) SETTING_ROW_STR(struct settings_agent, __VA_ARGS__)
#define SECRET(...) SETTING_ROW_SECRET(struct settings_agent, __VA_ARGS__)
#define I64(...) SETTING_ROW_I64(struct settings_agent, __VA_ARGS__)

const struct setting settings_agent_table[] = {
	STR(server_url, NULL, "URL of the servers' agent port, without a path"),
	SECRET(agent_key, "", "This machine's credential; never given to a trainer"),
	STR(agent_key_file, "", "File that holds agent_key, when it is not given itself"),
	STR(ca_file, "", "Certificates that https servers are checked with; empty = the system's"),
	STR(agent_name, "agent", "Name that operators see"),
	STR(region, NULL, "Region of this machine; must be the credential's"),
	STR(instance_type, "cpu-dev", "Instance type of its devices"),
	STR(device_kind, "cpu",
		"Its devices: cpu (as the next settings say), cuda (each GPU, or each MIG instance of one, "
		"that the driver shows; without one the agent does not start), or auto (GPUs where there "
		"are any, cpu elsewhere)"),
	STR(nvml_library, "libnvidia-ml.so.1", "The driver's library that GPUs are found with"),
	I64(devices, "1", 1, 64, "CPU devices that this machine offers"),
	I64(device_memory_bytes, "2147483648", 1048576, 1099511627776,
		"Memory of one CPU device in bytes"),
	I64(device_threads, "1", 1, 1024,
		"Compute threads of one device; the results do not depend on it"),
	STR(work_dir, NULL, "Folder of attempts and cached inputs; belongs to one agent"),
	STR(trainer, "trainyard-trainer", "Path of the trainer program"),
	STR(tokenizer_dir, "/usr/share/trainyard/tokenizers",
		"Folder of the tokenizers that jobs may name: gpt2.json"),
	I64(cache_keep_s, "600", 0, 86400, "Seconds that a job's inputs are kept after their last use"),
	I64(transfer_retry_s, "300", 1, 86400,
		"Seconds that a file's transfer is tried again while the yard answers with failures; then "
		"the attempt ends as platform_error"),
	STR(host, "127.0.0.1",
		"Address that trainers on other machines reach this one's at: of a private network, since "
		"what they say to each other is neither encrypted nor authenticated"),
	I64(comm_deadline_ms, "120000", 1000, 86400000,
		"Milliseconds after which a rank that the others of its job wait for counts as lost"),
};
const size_t settings_agent_count = ARRAY_LEN(settings_agent_table);

static int read_key(struct settings_agent *s, struct err *err)
{
	cleanup(freep) char *text = NULL;
	size_t bytes = 0;
	if (s->agent_key[0] != '\0')
		return 0;
	if (s->agent_key_file[0] == '\0')
		return err_set(err, ERR_MISSING_FIELD, "agent_key", "give agent_key or agent_key_file");
	int rc = file_read(s->agent_key_file, KEY_FILE_MAX, &text, &bytes, err);
	if (rc < 0)
		return rc;
	bytes = strcspn(text, " \t\r\n");
	if (bytes == 0 || bytes >= sizeof(s->agent_key))
		return err_set(err, ERR_INVALID_VALUE, "agent_key_file", "%s does not hold one key",
			s->agent_key_file);
	text[bytes] = '\0';
	snprintf(s->agent_key, sizeof(s->agent_key), "%s", text);
	return 0;
}

/* A program without a slash is looked for beside this one: they are installed together. */
static int find_trainer(struct settings_agent *s, struct err *err)
{
	cleanup(freep) char *self = realpath("/proc/self/exe", NULL);
	char path[2 * SETTING_STR_MAX];
	if (strchr(s->trainer, '/') != NULL || self == NULL)
		snprintf(path, sizeof(path), "%s", s->trainer);
	else
		snprintf(path, sizeof(path), "%.*s/%s", (int)(strrchr(self, '/') - self), self, s->trainer);
	cleanup(freep) char *found = realpath(path, NULL);
	if (found == NULL)
		return err_errno(err, ERR_INVALID_VALUE, errno, "the trainer %s", path);
	if (strlen(found) >= sizeof(s->trainer))
		return err_set(err, ERR_INVALID_VALUE, "trainer", "the path is too long");
	snprintf(s->trainer, sizeof(s->trainer), "%s", found);
	return 0;
}

static int find_work_dir(struct settings_agent *s, struct err *err)
{
	int rc = file_mkdir(s->work_dir, err);
	if (rc < 0)
		return rc;
	cleanup(freep) char *found = realpath(s->work_dir, NULL);
	if (found == NULL)
		return err_errno(err, ERR_IO, errno, "the folder %s", s->work_dir);
	if (strlen(found) >= sizeof(s->work_dir))
		return err_set(err, ERR_INVALID_VALUE, "work_dir", "the path is too long");
	snprintf(s->work_dir, sizeof(s->work_dir), "%s", found);
	return 0;
}

int settings_agent_load(
	int argc, char **argv, struct settings_agent *ret, int *ret_rest, struct err *err)
{
	int rc = settings_load(settings_agent_table, settings_agent_count, getenv("TRAINYARD_SETTINGS"),
		argc, argv, ret, ret_rest, err);
	if (rc < 0)
		return rc;
	if (!region_known(ret->region) || strcmp(ret->region, "any") == 0)
		return err_set(err, ERR_INVALID_VALUE, "region", "the region %s is not known", ret->region);
	size_t length = strlen(ret->server_url);
	while (length > 0 && ret->server_url[length - 1] == '/')
		ret->server_url[--length] = '\0';
	rc = read_key(ret, err);
	if (rc == 0)
		rc = find_work_dir(ret, err);
	if (rc == 0)
		rc = find_trainer(ret, err);
	return rc;
}
