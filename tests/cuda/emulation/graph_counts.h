/* SPDX-License-Identifier: Apache-2.0
 * What has become of captures, for tests: whether a graph was used at all. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct emulation_graph_counts {
	int captured; /* ended well */
	int invalid;  /* ended badly */
	int instantiated, updated, refused, launched;
};
/* Since the process began. */
struct emulation_graph_counts emulation_graph_counts(void);

#ifdef __cplusplus
}
#endif
