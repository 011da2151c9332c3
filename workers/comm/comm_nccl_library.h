/* SPDX-License-Identifier: Apache-2.0
 * NCCL as this program uses it: loaded when the first group in device memory is opened, so that a
 * machine without it runs the same program. The only user of nccl.h beside comm_nccl*.c. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <nccl.h>

/* The functions that are used; those whose name is not in the library make it too old. */
#define COMM_NCCL_LIST(X) \
	X(GetVersion)         \
	X(GetUniqueId)        \
	X(GetErrorString)     \
	X(GetLastError)       \
	X(CommInitRankConfig) \
	X(CommGetAsyncError)  \
	X(CommFinalize)       \
	X(CommDestroy)        \
	X(CommAbort)          \
	X(CommRegister)       \
	X(CommDeregister)     \
	X(AllReduce)          \
	X(ReduceScatter)      \
	X(AllGather)          \
	X(Broadcast)          \
	X(Send)               \
	X(Recv)               \
	X(GroupStart)         \
	X(GroupEnd)

struct comm_nccl_library {
	int version; /* as NCCL_VERSION_CODE */
#define X(name) __typeof__(nccl##name) *name;
	COMM_NCCL_LIST(X)
#undef X
};

/* Loads it at the first call: the library that TRAINYARD_NCCL_LIBRARY names, otherwise
 * libnccl.so.2. It stays until the process ends. UNAVAILABLE, with what to do. Any thread. */
int comm_nccl_library(const struct comm_nccl_library **ret, struct err *err) must_check;

/* What a result of NCCL, or of the CUDA runtime, is in our codes; `doing` is the message's
 * beginning. rc is not success. */
int comm_nccl_failed(const struct comm_nccl_library *l, ncclComm_t nccl, ncclResult_t rc,
	const char *doing, struct err *err);
int comm_nccl_cuda_failed(cudaError_t rc, const char *doing, struct err *err);
