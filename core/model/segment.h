/* SPDX-License-Identifier: Apache-2.0
 * The tiling of each device's time: one open interval per device (in devices), and immutable
 * segments for what is decided. Every instant comes from yard_now() and never runs backwards, so
 * segments of a device touch and never overlap. Called by attempt.c and device_store.c inside the
 * caller's transaction. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"

/* What a device is doing since open_since. */
enum segment_open { SEGMENT_IDLE, SEGMENT_STARTING, SEGMENT_TRAINING, SEGMENT_STOPPING };
/* What an interval has become. */
enum segment_state { SEGMENT_BILLED, SEGMENT_UNBILLED, SEGMENT_WAS_IDLE, SEGMENT_LOST };

/* Closes the open interval of every device that the attempt holds as `closed_as` with `reason`, at
 * one instant for all of them, and opens `to`. Closing as billed splits at price changes and at
 * UTC month boundaries, each piece pinned to the price in force at its start; time without a price
 * is unbilled. An interval of no length leaves no segment. */
int segment_switch(struct db_conn *conn, const char *attempt_id, enum segment_open to,
	enum segment_state closed_as, const char *reason, struct err *err) must_check;

/* Takes idle devices for an attempt (rows of attempt_devices, not released): idle until now, then
 * starting. DB_CONFLICT when one of them is not idle any more. */
int segment_take(struct db_conn *conn, const char *attempt_id, struct err *err) must_check;

/* Ends the attempt's hold: closes as above and opens idle. Devices that were withdrawn meanwhile
 * are deregistered at the same instant. */
int segment_release(struct db_conn *conn, const char *attempt_id, enum segment_state closed_as,
	const char *reason, struct err *err) must_check;

/* The same for what the attempt holds on one machine. */
int segment_release_machine(struct db_conn *conn, const char *attempt_id, const char *agent_id,
	enum segment_state closed_as, const char *reason, struct err *err) must_check;

/* Closes the tiling of an idle device for good; CONFLICT when it is not idle. */
int segment_deregister(struct db_conn *conn, const char *device_id, struct err *err) must_check;
