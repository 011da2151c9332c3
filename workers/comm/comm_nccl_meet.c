/* SPDX-License-Identifier: Apache-2.0
 * How the ranks of a group in device memory find each other: rank 0 puts NCCL's identifier into the
 * store, the others read it, and NCCL connects them. Called by comm_nccl.c. */
#include "core/base/clock.h"
#include "core/base/num.h"
#include "workers/comm/comm_nccl_private.h"
#include "workers/comm/comm_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	MAGIC = 0x4c43434e,
	POLL_US_MIN = 100,
	POLL_US_MAX = 10000,
};

struct hello {
	uint32_t magic, version, size, reserved;
	ncclUniqueId id;
};

static void key_of(const struct comm_options *o, char ret_key[static COMM_STORE_KEY_MAX])
{
	snprintf(ret_key, COMM_STORE_KEY_MAX, "%s.nccl", o->name);
}

static void who(const struct comm_options *o, char ret[static COMM_NCCL_WHERE_MAX])
{
	snprintf(ret, COMM_NCCL_WHERE_MAX, "group %s (rank %d of %d)", o->name, o->rank, o->size);
}

static int64_t open_ms(const struct comm_options *o)
{
	return o->open_ms > 0 ? o->open_ms : COMM_OPEN_MS;
}

static int publish(const struct comm_options *o, const struct comm_nccl_library *l,
	ncclUniqueId *ret_id, struct err *err)
{
	char key[COMM_STORE_KEY_MAX], where[COMM_NCCL_WHERE_MAX];
	struct hello h = { MAGIC, (uint32_t)l->version, (uint32_t)o->size, 0, { { 0 } } };
	ncclResult_t rc = l->GetUniqueId(&h.id);
	who(o, where);
	if (rc != ncclSuccess)
		return comm_nccl_failed(l, NULL, rc, where, err);
	key_of(o, key);
	*ret_id = h.id;
	return comm_store_put(o->store, key, &h, sizeof(h), err);
}

int comm_nccl_exchange(const struct comm_options *o, const struct comm_nccl_library *l,
	int64_t deadline_us, ncclUniqueId *ret_id, struct err *err)
{
	char key[COMM_STORE_KEY_MAX], where[COMM_NCCL_WHERE_MAX];
	cleanup(freep) char *value = NULL;
	size_t bytes = 0;
	struct hello h = { 0 };
	if (o->rank == 0)
		return publish(o, l, ret_id, err);
	key_of(o, key);
	who(o, where);
	int64_t left_ms = num_max(0, (deadline_us - comm_nccl_now_us()) / 1000);
	int rc = comm_store_get(o->store, key, left_ms, &value, &bytes, err);
	if (rc == ERR_TIMEOUT)
		return err_set(err, rc, NULL, "%s: rank 0 did not make the group's identifier in %lld ms",
			where, (long long)open_ms(o));
	if (rc < 0)
		return rc;
	memcpy(&h, value, bytes < sizeof(h) ? bytes : sizeof(h));
	if (bytes != sizeof(h) || h.magic != MAGIC || h.size != (uint32_t)o->size)
		return err_set(err, ERR_CONFLICT, NULL, "%s: rank 0 opened it with other options", where);
	if (h.version != (uint32_t)l->version)
		return err_set(err, ERR_CONFLICT, NULL,
			"%s: the NCCL of rank 0 is %u, here it is %d: all machines of a job need the same",
			where, h.version, l->version);
	*ret_id = h.id;
	return 0;
}

static void pause_us(int64_t us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };
	(void)nanosleep(&t, NULL);
}

/* Until the ranks are connected. NCCL tells nobody when a rank does not come; the host group does
 * when one goes. */
static int await(const struct comm_options *o, const struct comm_nccl_library *l, struct comm *host,
	ncclComm_t nccl, int64_t deadline_us, struct err *err)
{
	char where[COMM_NCCL_WHERE_MAX];
	who(o, where);
	for (int64_t us = POLL_US_MIN;; us = num_min(us * 2, POLL_US_MAX)) {
		ncclResult_t state = ncclSuccess;
		ncclResult_t rc = l->CommGetAsyncError(nccl, &state);
		if (rc != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
			return comm_nccl_failed(l, nccl, rc != ncclSuccess ? rc : state, where, err);
		if (state == ncclSuccess)
			return 0;
		bool of_a_call = false;
		struct err lost = { 0 };
		if (comm_queue_failure(host, &of_a_call, &lost) < 0)
			return err_set(err, lost.code, NULL, "%s: NCCL did not connect all ranks: %s", where,
				lost.message);
		if (comm_nccl_now_us() >= deadline_us)
			return err_set(err, ERR_TIMEOUT, NULL,
				"%s: NCCL did not connect all ranks in %lld ms (NCCL_DEBUG=INFO shows what it "
				"waits for)",
				where, (long long)open_ms(o));
		pause_us(us);
	}
}

int comm_nccl_meet(const struct comm_options *o, const struct comm_nccl_library *l,
	struct comm *host, int64_t deadline_us, ncclComm_t *ret, struct err *err)
{
	ncclUniqueId id;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t nccl = NULL;
	char where[COMM_NCCL_WHERE_MAX];
	int rc = comm_nccl_exchange(o, l, deadline_us, &id, err);
	if (rc < 0)
		return rc;
	config.blocking = 0;
	config.maxCTAs = COMM_NCCL_BLOCKS_MAX;
	config.commName = o->name; /* NCCL may keep the pointer */
	ncclResult_t begun = l->CommInitRankConfig(&nccl, o->size, id, o->rank, &config);
	if (begun != ncclSuccess && begun != ncclInProgress) {
		who(o, where);
		rc = comm_nccl_failed(l, NULL, begun, where, err);
	} else {
		comm_queue_watch(host, true);
		rc = await(o, l, host, nccl, deadline_us, err);
		comm_queue_watch(host, false);
	}
	if (rc < 0) {
		if (nccl != NULL)
			(void)l->CommAbort(nccl);
		return rc;
	}
	*ret = nccl;
	return 0;
}
