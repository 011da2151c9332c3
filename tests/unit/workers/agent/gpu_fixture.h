/* SPDX-License-Identifier: Apache-2.0
 * What the tests of GPU devices share: NVML's stand-in (tests/cuda/emulation/nvml.c), the file of
 * its GPUs, and the agent's settings. The stand-in's path is the test's first argument. */
#pragma once

#include "tests/unit/workers/agent/agent_fixture.h"

#include "workers/agent/device.h"
#include "workers/agent/settings.h"

enum { FIXTURE_BUILT_CUDA = 13000 };

static const char *fixture_nvml;
static struct settings_agent fixture_settings;

#define DRIVER "driver 580.65.06 13000\n"
#define GPU_0 "gpu GPU-aaaa 150754820096 NVIDIA H200\n"
#define GPU_1 "gpu GPU-bbbb 150754820096 NVIDIA H200\n"

/* The machine's GPUs are these from now on. */
FIXTURE_FN void fixture_gpus(void **state, const char *lines)
{
	const char *path = fixture_path(state, "gpus");
	fixture_write(path, lines, strlen(lines));
	setenv("TRAINYARD_EMULATION_NVML", path, 1);
}

FIXTURE_FN void fixture_add(void **state, const char *line)
{
	FILE *f = fopen(fixture_path(state, "gpus"), "ae");
	assert_non_null(f);
	fputs(line, f);
	fclose(f);
}

FIXTURE_FN const struct settings_agent *fixture_kind(const char *kind)
{
	struct settings_agent *s = &fixture_settings;
	memset(s, 0, sizeof(*s));
	snprintf(s->device_kind, sizeof(s->device_kind), "%s", kind);
	snprintf(s->nvml_library, sizeof(s->nvml_library), "%s", fixture_nvml);
	s->devices = 2;
	s->device_memory_bytes = 1 << 20;
	return s;
}
