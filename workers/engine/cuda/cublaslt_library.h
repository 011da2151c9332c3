/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt's functions, from the library that is there when the program runs: a machine without it
 * runs the same program. Included by cuda/gemm.c alone, and by the emulation's twin. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <cublasLt.h>

#define CUBLASLT_FUNCTIONS(X)               \
	X(cublasLtCreate)                       \
	X(cublasLtDestroy)                      \
	X(cublasLtGetStatusString)              \
	X(cublasLtMatmul)                       \
	X(cublasLtMatmulAlgoGetHeuristic)       \
	X(cublasLtMatmulDescCreate)             \
	X(cublasLtMatmulDescDestroy)            \
	X(cublasLtMatmulDescSetAttribute)       \
	X(cublasLtMatmulPreferenceCreate)       \
	X(cublasLtMatmulPreferenceDestroy)      \
	X(cublasLtMatmulPreferenceSetAttribute) \
	X(cublasLtMatrixLayoutCreate)           \
	X(cublasLtMatrixLayoutDestroy)          \
	X(cublasLtMatrixLayoutSetAttribute)

/* A member for each, under its own name. */
struct cublaslt {
#define X(name) __typeof__(&name) name;
	CUBLASLT_FUNCTIONS(X)
#undef X
};

/* Loaded by the first call, and kept. Any thread. */
int cublaslt_library(const struct cublaslt **ret, struct err *err) must_check;
