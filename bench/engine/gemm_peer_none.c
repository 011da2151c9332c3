/* SPDX-License-Identifier: Apache-2.0
 * No library to measure against is installed. */
#include "bench/engine/gemm_peer.h"

#include <stddef.h>

const char *gemm_peer_name(void)
{
	return NULL;
}

struct gemm_peer *gemm_peer_create(
	int64_t m, int64_t n, int64_t k, bool bf16, void *a, void *b, float *c)
{
	return NULL;
}

void gemm_peer_run(struct gemm_peer *p) {}

void gemm_peer_destroy(struct gemm_peer *p) {}
