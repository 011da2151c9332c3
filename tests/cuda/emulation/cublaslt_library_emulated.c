/* SPDX-License-Identifier: Apache-2.0
 * The stand-in of cuBLASLt (cublaslt.cc), linked instead of loaded: the twin of
 * workers/engine/cuda/cublaslt_library.c. */
#include "workers/engine/cuda/cublaslt_library.h"

int cublaslt_library(const struct cublaslt **ret, struct err *err)
{
	static const struct cublaslt library = {
#define X(name) .name = name,
		CUBLASLT_FUNCTIONS(X)
#undef X
	};
	*ret = &library;
	return 0;
}
