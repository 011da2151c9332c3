/* SPDX-License-Identifier: Apache-2.0
 * The collectives, as messages between ranks: each is one exchange of everyone with everyone (or
 * two), so that sums are taken in the order of ranks and the bytes sent are the fewest possible.
 * One thread, the group's. */
#pragma once

#include "workers/comm/comm_private.h"

struct comm_collect;

int comm_collect_create(const struct comm_options *o, struct comm_wire *wire,
	struct comm_collect **ret, struct err *err) must_check;
void comm_collect_destroy(struct comm_collect *k);

/* Runs one call to its end or to deadline_us. On an error *ret_peer is the rank it was about, or
 * -1: NETWORK, TIMEOUT, CANCELLED from the wire, CONFLICT from the comparison; the message begins
 * behind "rank N". */
int comm_collect_run(struct comm_collect *k, enum comm_op op, const struct comm_args *a,
	int64_t deadline_us, int *ret_peer, struct err *err) must_check;
/* Only compares, where the options say so. Errors as above. */
int comm_collect_compare(struct comm_collect *k, enum comm_op op, const struct comm_args *a,
	int64_t deadline_us, int *ret_peer, struct err *err) must_check;
/* Tells the others that nothing more comes and waits until they say so, or for a while. */
void comm_collect_goodbye(struct comm_collect *k, int64_t deadline_us);
