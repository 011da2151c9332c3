/* SPDX-License-Identifier: Apache-2.0
 * A library's matrix product to measure ours against, where one is installed: meson chooses
 * gemm_peer_dnnl.c or gemm_peer_none.c. Used by bench_gemm.c alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gemm_peer;

const char *gemm_peer_name(void); /* NULL: there is none */

/* c[m,n] fp32 = a[m,k] b[n,k]', both fp32 or both bf16; b is packed as the library likes, at once.
 * NULL when the library refuses. */
struct gemm_peer *gemm_peer_create(
	int64_t m, int64_t n, int64_t k, bool bf16, void *a, void *b, float *c);
void gemm_peer_run(struct gemm_peer *p);
void gemm_peer_destroy(struct gemm_peer *p);
