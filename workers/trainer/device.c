/* SPDX-License-Identifier: Apache-2.0
 * Choosing between the engine's backends. */
#include "workers/trainer/device.h"

#include "workers/engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VISIBLE_MAX = 128 }; /* bytes of a device's name: "GPU-" and a UUID */

static const char visible[] = "CUDA_VISIBLE_DEVICES";

int device_parse(const char *word, const char *param, enum device_kind *ret, struct err *err)
{
	static const char *const words[] = { "auto", "cpu", "cuda" };
	for (int i = 0; i < (int)ARRAY_LEN(words); i++)
		if (word == NULL || strcmp(word, words[i]) == 0) {
			*ret = (enum device_kind)i;
			return 0;
		}
	return err_set(err, ERR_INVALID_VALUE, param, "\"%s\" is not " DEVICE_WORDS, word);
}

/* The rank-th name of a list like "0,1" or "GPU-5f1c…,GPU-77aa…"; "" where it ends before. */
static void name_at(const char *list, int rank, char ret[VISIBLE_MAX])
{
	size_t bytes = strcspn(list, ",");
	for (int i = 0; i < rank && bytes > 0; i++) {
		list += bytes + (list[bytes] == ',');
		bytes = strcspn(list, ",");
	}
	snprintf(ret, VISIBLE_MAX, "%.*s", (int)bytes, list);
}

int device_take(enum device_kind kind, int rank, struct err *err)
{
	const char *list = getenv(visible);
	char name[VISIBLE_MAX];
	if (kind == DEVICE_CPU)
		return 0;
	if (list != NULL)
		name_at(list, rank, name);
	else
		snprintf(name, sizeof(name), "%d", rank);
	if (setenv(visible, name, 1) < 0)
		return err_errno(err, ERR_NO_MEMORY, errno, "%s cannot be set", visible);
	return 0;
}

int device_choose(enum device_kind kind, enum device_kind *ret, struct err *err)
{
	struct err none = { 0 };
	if (kind == DEVICE_CPU) {
		*ret = kind;
		return 0;
	}
	int rc = engine_cuda_find(&none);
	if (rc == 0 || kind == DEVICE_AUTO) {
		*ret = rc == 0 ? DEVICE_CUDA : DEVICE_CPU;
		return 0;
	}
	return err_set(err, rc, "--device", "%s; or train on the processor: cpu", none.message);
}

const struct backend *device_backend(enum device_kind kind, enum plan_type type)
{
	return kind == DEVICE_CUDA ? engine_backend_cuda(type) : engine_backend_cpu(type);
}

bool device_is_apart(enum device_kind kind)
{
	return engine_is_apart(device_backend(kind, PLAN_F32));
}
