/* SPDX-License-Identifier: Apache-2.0
 * Devices: in service from registration to deregistration, listed for operators. What a device
 * does in between is segment.c's. Called by handlers. A connection belongs to one thread. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/db/db.h"
#include "core/json/writer.h"
#include "core/model/page.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	DEVICE_STORE_MAX = 64, /* of one machine */
	DEVICE_STORE_NAME_MAX = 100,
};

struct device_listed {
	int64_t index;
	const char *name;
	const char *uuid; /* of a GPU or a MIG instance; NULL for a CPU device */
	int64_t memory_bytes;
	char id[IDENT_MAX]; /* out; "" while an old device of this index is still busy */
};

/* Brings the agent's devices in line with the list: new ones enter service, those that are not
 * listed (or are of another type, UUID or memory now) leave it, at once when idle, otherwise as
 * soon as they are. Listing the same again changes nothing. A GPU that comes back is cordoned if it
 * was. */
int device_store_sync(struct db_conn *conn, const char *agent_id, struct device_listed *listed,
	int count, struct err *err) must_check;

/* The agent says that the device must not be used: nothing more is placed on it. *ret_new: it was
 * not cordoned before. A device that it does not have (any more) is left alone. */
int device_store_cordon(struct db_conn *conn, const char *agent_id, int64_t index, const char *uuid,
	const char *reason, bool *ret_new, struct err *err) must_check;
/* Live attempts on the agent's cordoned devices that its list (a text[] of attempts' ids) lacks: it
 * has not heard of them yet. Each row: id, epoch, the lowest such rank, the reason. */
int device_store_doomed(struct db_conn *conn, const char *agent_id, const char *agent_has,
	struct db_result **ret, struct err *err) must_check;
/* An operator says that it may be used again; doing it twice changes nothing. NOT_FOUND. */
int device_store_return(struct db_conn *conn, const char *device_id, bool *ret_was_cordoned,
	struct err *err) must_check;

/* Operators' list object. Each device has the milliseconds it spent in each state, which add up
 * to its time in service, and its last DEVICE_STORE_EVENTS_MAX events; with_segments adds its last
 * DEVICE_STORE_SEGMENTS_MAX segments. */
enum { DEVICE_STORE_SEGMENTS_MAX = 100, DEVICE_STORE_EVENTS_MAX = 20 };
int device_store_list(struct db_conn *conn, const struct page *page, bool with_segments,
	struct json_writer *w, struct err *err) must_check;
