/* SPDX-License-Identifier: Apache-2.0
 * Finds NCCL when the program runs, and says what its results mean. Called by comm_nccl*.c. */
#include "workers/comm/comm_nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	OLDEST = 21903, /* finalize, abort and registration of groups that do not block */
};

static const char default_name[] = "libnccl.so.2";
static const char toolkit_name[] = "/usr/local/cuda/lib64/libnccl.so.2"; /* where CUDA puts it */

static struct {
	pthread_once_t once;
	int rc;
	struct err err;
	struct comm_nccl_library library;
} loaded = { .once = PTHREAD_ONCE_INIT };

static int unavailable(const char *why)
{
	return err_set(&loaded.err, ERR_UNAVAILABLE, NULL,
		"NCCL, which joins GPUs, cannot be used: %.400s (install libnccl2, or name the library in "
		"TRAINYARD_NCCL_LIBRARY)",
		why != NULL ? why : "unknown");
}

/* dlerror's texts name the library. */
static int find(void)
{
	struct comm_nccl_library *l = &loaded.library;
	const char *named = getenv("TRAINYARD_NCCL_LIBRARY"), *why;
	bool standard = named == NULL || named[0] == '\0';
	char first[400] = "";
	void *library = dlopen(standard ? default_name : named, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL && (why = dlerror()) != NULL)
		snprintf(first, sizeof(first), "%s", why);
	if (library == NULL && standard)
		library = dlopen(toolkit_name, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return unavailable(first);
#define X(function)                                              \
	*(void **)(&l->function) = dlsym(library, "nccl" #function); \
	if (l->function == NULL)                                     \
		return unavailable(dlerror());
	COMM_NCCL_LIST(X)
#undef X
	if (l->GetVersion(&l->version) != ncclSuccess || l->version < OLDEST)
		return unavailable("its version is older than 2.19.3");
	return 0;
}

static void load(void)
{
	loaded.rc = find();
}

int comm_nccl_library(const struct comm_nccl_library **ret, struct err *err)
{
	pthread_once(&loaded.once, load);
	if (loaded.rc < 0) {
		if (err != NULL)
			*err = loaded.err;
		return loaded.rc;
	}
	*ret = &loaded.library;
	return 0;
}

static int code_of(ncclResult_t rc)
{
	switch (rc) {
	case ncclRemoteError: return ERR_NETWORK;
	case ncclSystemError: return ERR_IO;
	case ncclInvalidArgument: return ERR_INVALID_VALUE;
	case ncclInvalidUsage: return ERR_CONFLICT;
	case ncclUnhandledCudaError:
	case ncclSuccess:
	case ncclInternalError:
	case ncclInProgress:
	case ncclNumResults: break;
	}
	return ERR_UNAVAILABLE;
}

int comm_nccl_failed(const struct comm_nccl_library *l, ncclComm_t nccl, ncclResult_t rc,
	const char *doing, struct err *err)
{
	const char *detail = l->GetLastError(nccl), *kind = l->GetErrorString(rc);
	bool told = detail != NULL && detail[0] != '\0';
	/* NCCL's own name of the kind has the hint with some kinds and not with others. */
	bool hinted = strstr(kind, "NCCL_DEBUG") != NULL;
	return err_set(err, code_of(rc), NULL, "%s: NCCL: %s%s%.300s%s", doing, kind, told ? ": " : "",
		told ? detail : "", hinted ? "" : " (NCCL_DEBUG=INFO shows more)");
}

int comm_nccl_cuda_failed(cudaError_t rc, const char *doing, struct err *err)
{
	(void)cudaGetLastError(); /* it was told: the thread's next call starts clean */
	return err_set(err, rc == cudaErrorMemoryAllocation ? ERR_NO_MEMORY : ERR_UNAVAILABLE, NULL,
		"%s: CUDA: %s", doing, cudaGetErrorString(rc));
}
