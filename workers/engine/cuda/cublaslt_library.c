/* SPDX-License-Identifier: Apache-2.0
 * Loads cuBLASLt (cublaslt_library.h). Where a device is emulated, tests/cuda/emulation has a twin
 * of this file. */
#include "workers/engine/cuda/cublaslt_library.h"

#include <dlfcn.h>
#include <pthread.h>

#define LIBRARY_TEXT_OF(major) "libcublasLt.so." #major
#define LIBRARY_TEXT(major) LIBRARY_TEXT_OF(major)
#define LIBRARY LIBRARY_TEXT(CUBLAS_VER_MAJOR)

static struct cublaslt library;
static struct err failure;

static void load(void)
{
	void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		(void)err_set(&failure, ERR_UNAVAILABLE, NULL,
			"cuBLASLt, which multiplies on CUDA devices, cannot be loaded: %s", dlerror());
		return;
	}
	const struct {
		const char *name;
		void *to;
	} functions[] = {
#define X(name) { #name, &library.name },
		CUBLASLT_FUNCTIONS(X)
#undef X
	};
	for (size_t i = 0; i < ARRAY_LEN(functions); i++) {
		void *function = dlsym(handle, functions[i].name);
		if (!function) {
			(void)err_set(&failure, ERR_UNAVAILABLE, NULL,
				"%s has no %s: another version is needed", LIBRARY, functions[i].name);
			return;
		}
		*(void **)functions[i].to = function;
	}
}

int cublaslt_library(const struct cublaslt **ret, struct err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	(void)pthread_once(&once, load);
	if (failure.code < 0) {
		if (err)
			*err = failure;
		return failure.code;
	}
	*ret = &library;
	return 0;
}
