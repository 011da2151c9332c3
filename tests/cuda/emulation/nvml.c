/* SPDX-License-Identifier: Apache-2.0
 * A stand-in of NVML: GPUs, MIG instances, versions and errors are lines of the file that
 * TRAINYARD_EMULATION_NVML names, read anew at each call, so that a test adds an error while the
 * agent runs. Loaded by the agent; any thread. Its declarations are its own: were the agent's
 * wrong, both would have to be wrong in the same way. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	OK = 0,
	INVALID = 2,
	UNSUPPORTED = 3,
	MISSING = 6,
	TOO_SMALL = 7,
	NO_DRIVER = 9,
	LATE = 10,
	LOST = 15
};
enum { SLOTS = 128, LINE = 256, WORDS = 6, STEP_MS = 20 };

/* The lines of the file:
 *   driver 580.65.06 13000                   version; the CUDA that it speaks
 *   gpu UUID BYTES NAME                      a GPU; mig=on behind the name: in MIG mode
 *   mig UUID GPU_UUID INSTANCE BYTES NAME    an instance of it
 *   processes UUID COUNT                     so many hold memory there
 *   rows UUID PENDING FAILED                 memory rows to be, and that could not be, remapped
 *   lost UUID                                no longer answers
 *   xid GPU_UUID NUMBER [INSTANCE]           an event; each line happens once
 *   ecc GPU_UUID                             the same: a double-bit error */

#define EXPORT __attribute__((visibility("default")))

/* A handle: the same for a UUID, however often it is asked for. */
struct nvmlDevice_st {
	char uuid[96];
};
static struct nvmlDevice_st slots[SLOTS];

struct line {
	char text[LINE];
	char *word[WORDS];
	int words;
};

static FILE *open_file(void)
{
	const char *path = getenv("TRAINYARD_EMULATION_NVML");
	return path != NULL ? fopen(path, "re") : NULL;
}

/* The next line of a kind, cut into its words; the last one has all that is left. */
static bool next_line(FILE *f, const char *kind, int words, struct line *ret)
{
	while (fgets(ret->text, sizeof(ret->text), f) != NULL) {
		char *at = ret->text;
		ret->text[strcspn(ret->text, "\n")] = '\0';
		ret->words = 0;
		while (*at != '\0' && ret->words < words) {
			ret->word[ret->words++] = at;
			at = ret->words < words ? at + strcspn(at, " ") : at + strlen(at);
			if (*at == ' ')
				*at++ = '\0';
		}
		if (ret->words > 1 && strcmp(ret->word[0], kind) == 0)
			return true;
	}
	return false;
}

/* The first line of a kind whose word `at` is `value`. */
static bool find_line(const char *kind, int words, int at, const char *value, struct line *ret)
{
	FILE *f = open_file();
	bool found = false;
	while (f != NULL && !found && next_line(f, kind, words, ret))
		found = ret->words > at && strcmp(ret->word[at], value) == 0;
	if (f != NULL)
		fclose(f);
	return found;
}

static int nth(const char *kind, int words, const char *parent, unsigned index, struct line *ret)
{
	FILE *f = open_file();
	unsigned seen = 0;
	bool found = false;
	while (f != NULL && !found && next_line(f, kind, words, ret))
		if (parent == NULL || strcmp(ret->word[2], parent) == 0)
			found = seen++ == index;
	if (f != NULL)
		fclose(f);
	return found ? OK : MISSING;
}

static struct nvmlDevice_st *slot(const char *uuid)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int i = 0;
	pthread_mutex_lock(&lock);
	while (i < SLOTS - 1 && slots[i].uuid[0] != '\0' && strcmp(slots[i].uuid, uuid) != 0)
		i++;
	if (slots[i].uuid[0] == '\0')
		snprintf(slots[i].uuid, sizeof(slots[i].uuid), "%s", uuid);
	pthread_mutex_unlock(&lock);
	return &slots[i];
}

static int status_of(const struct nvmlDevice_st *device)
{
	struct line l;
	return find_line("lost", 2, 1, device->uuid, &l) ? LOST : OK;
}

static int put(char *out, unsigned bytes, const char *text)
{
	if (strlen(text) >= bytes)
		return TOO_SMALL;
	snprintf(out, bytes, "%s", text);
	return OK;
}

/* Its line, of whichever kind: the bytes and the name. */
static int describe(
	const struct nvmlDevice_st *device, struct line *l, const char **bytes, char **name)
{
	if (find_line("gpu", 4, 1, device->uuid, l)) {
		*bytes = l->word[2];
		*name = l->word[3];
		char *mode = strstr(*name, " mig=on");
		if (mode != NULL)
			*mode = '\0';
		return status_of(device);
	}
	if (!find_line("mig", 6, 1, device->uuid, l))
		return INVALID;
	*bytes = l->word[4];
	*name = l->word[5];
	return OK;
}

/* ------------------------------------------------------------------------------ the library */

EXPORT const char *nvmlErrorString(int rc)
{
	switch (rc) {
	case OK: return "Success";
	case UNSUPPORTED: return "Not Supported";
	case NO_DRIVER: return "Driver Not Loaded";
	case LATE: return "Timeout";
	case LOST: return "GPU is lost";
	default: return "Unknown Error";
	}
}

EXPORT int nvmlInit_v2(void)
{
	FILE *f = open_file();
	if (f == NULL)
		return NO_DRIVER;
	fclose(f);
	return OK;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct line l;
	int rc = nth("driver", 3, NULL, 0, &l);
	return rc == OK ? put(version, length, l.word[1]) : rc;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	struct line l;
	int rc = nth("driver", 3, NULL, 0, &l);
	if (rc == OK)
		*version = (int)strtol(l.word[2], NULL, 10);
	return rc;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
	struct line l;
	for (*count = 0; nth("gpu", 4, NULL, *count, &l) == OK;)
		++*count;
	return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct nvmlDevice_st **device)
{
	struct line l;
	int rc = nth("gpu", 4, NULL, index, &l);
	if (rc == OK)
		*device = slot(l.word[1]);
	return rc == OK ? status_of(*device) : rc;
}

EXPORT int nvmlDeviceGetUUID(struct nvmlDevice_st *device, char *uuid, unsigned int length)
{
	return put(uuid, length, device->uuid);
}

EXPORT int nvmlDeviceGetName(struct nvmlDevice_st *device, char *text, unsigned int length)
{
	struct line l;
	const char *bytes;
	char *name;
	int rc = describe(device, &l, &bytes, &name);
	return rc == OK ? put(text, length, name) : rc;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct nvmlDevice_st *device, unsigned long long *three)
{
	struct line l;
	const char *bytes;
	char *name;
	int rc = describe(device, &l, &bytes, &name);
	if (rc != OK)
		return rc;
	three[0] = strtoull(bytes, NULL, 10);
	three[1] = three[0] - 1024;
	three[2] = 1024;
	return OK;
}

EXPORT int nvmlDeviceGetMigMode(
	struct nvmlDevice_st *device, unsigned int *current, unsigned int *pending)
{
	struct line l;
	if (!find_line("gpu", 4, 1, device->uuid, &l))
		return UNSUPPORTED;
	*current = *pending = strstr(l.word[3], " mig=on") != NULL;
	return OK;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct nvmlDevice_st *device, unsigned int *count)
{
	(void)device;
	*count = 7;
	return OK;
}

/* As in the library the places of instances have gaps: the first one is empty. */
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(
	struct nvmlDevice_st *device, unsigned int index, struct nvmlDevice_st **instance)
{
	struct line l;
	int rc = index == 0 ? MISSING : nth("mig", 6, device->uuid, index - 1, &l);
	if (rc == OK)
		*instance = slot(l.word[1]);
	return rc;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct nvmlDevice_st *instance, unsigned int *id)
{
	struct line l;
	if (!find_line("mig", 6, 1, instance->uuid, &l))
		return INVALID;
	*id = (unsigned)strtoul(l.word[3], NULL, 10);
	return OK;
}

EXPORT int nvmlDeviceGetRemappedRows(struct nvmlDevice_st *device, unsigned int *correctable,
	unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
	struct line l;
	*correctable = *uncorrectable = *pending = *failed = 0;
	if (find_line("rows", 4, 1, device->uuid, &l)) {
		*pending = (unsigned)strtoul(l.word[2], NULL, 10);
		*failed = (unsigned)strtoul(l.word[3], NULL, 10);
	}
	return OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(
	struct nvmlDevice_st *device, unsigned int *count, void *list)
{
	struct line l;
	unsigned some = 0;
	if (find_line("processes", 3, 1, device->uuid, &l))
		some = (unsigned)strtoul(l.word[2], NULL, 10);
	bool fits = some == 0 || (list != NULL && *count >= some);
	*count = some;
	return fits ? OK : TOO_SMALL;
}

/* ------------------------------------------------------------------------------ events */

struct nvmlEventData_st {
	struct nvmlDevice_st *device;
	unsigned long long eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
};
static struct events {
	unsigned xids, eccs;               /* lines that have happened */
	unsigned long long watched[SLOTS]; /* types */
} events;

EXPORT int nvmlEventSetCreate(struct events **set)
{
	*set = &events;
	return OK;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(struct nvmlDevice_st *device, unsigned long long *types)
{
	(void)device;
	*types = 0x1 | 0x2 | 0x4 | 0x8;
	return OK;
}

EXPORT int nvmlDeviceRegisterEvents(
	struct nvmlDevice_st *device, unsigned long long types, struct events *set)
{
	if ((types & ~(0x2ULL | 0x8ULL)) != 0)
		return UNSUPPORTED; /* nothing else is made up here */
	set->watched[device - slots] = types;
	return status_of(device);
}

static bool take(struct events *set, struct nvmlEventData_st *data)
{
	struct line l;
	bool ecc = false;
	memset(data, 0xff, sizeof(*data));
	if (nth("xid", 4, NULL, set->xids, &l) == OK) {
		set->xids++;
	} else if (nth("ecc", 2, NULL, set->eccs, &l) == OK) {
		set->eccs++;
		ecc = true;
	} else {
		return false;
	}
	data->device = slot(l.word[1]);
	data->eventType = ecc ? 0x2 : 0x8;
	data->eventData = ecc ? 0 : strtoull(l.word[2], NULL, 10);
	data->gpuInstanceId = l.words > 3 ? (unsigned)strtoul(l.word[3], NULL, 10) : 0xffffffffU;
	return (set->watched[data->device - slots] & data->eventType) != 0;
}

EXPORT int nvmlEventSetWait_v2(
	struct events *set, struct nvmlEventData_st *data, unsigned int timeout_ms)
{
	const struct timespec step = { 0, STEP_MS * 1000000L };
	for (unsigned waited = 0; waited <= timeout_ms; waited += STEP_MS) {
		if (take(set, data))
			return OK;
		for (int i = 0; i < SLOTS; i++)
			if (set->watched[i] && status_of(&slots[i]) == LOST)
				return LOST;
		nanosleep(&step, NULL);
	}
	return LATE;
}
