/* SPDX-License-Identifier: Apache-2.0
 * The settings of trainyard-agent. Filled by main before threads start, read-only after. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/settings.h"

#include <stdint.h>

struct settings_agent {
	char server_url[SETTING_STR_MAX];
	char agent_key[SETTING_STR_MAX];
	char agent_key_file[SETTING_STR_MAX];
	char ca_file[SETTING_STR_MAX];
	char agent_name[SETTING_STR_MAX];
	char region[SETTING_STR_MAX];
	char instance_type[SETTING_STR_MAX];
	char device_kind[SETTING_STR_MAX];
	char nvml_library[SETTING_STR_MAX];
	int64_t devices;
	int64_t device_memory_bytes;
	int64_t device_threads;
	char work_dir[SETTING_STR_MAX];
	char trainer[SETTING_STR_MAX];
	char tokenizer_dir[SETTING_STR_MAX];
	int64_t cache_keep_s;
	int64_t transfer_retry_s;
	char host[SETTING_STR_MAX];
	int64_t comm_deadline_ms;
};

extern const struct setting settings_agent_table[];
extern const size_t settings_agent_count;

/* Loads and checks; work_dir and trainer become absolute, the key is read from its file. */
int settings_agent_load(
	int argc, char **argv, struct settings_agent *ret, int *ret_rest, struct err *err) must_check;
