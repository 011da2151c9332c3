/* SPDX-License-Identifier: Apache-2.0
 * Wakes those who wait: event streams of jobs and agents' long polls. Topics are "job:<id>" and
 * "agent:<id>". A write in this process wakes at once through hub_touch; writes by other servers
 * are found by one thread that asks the database for all waited-for topics together, several times
 * a second (no LISTEN/NOTIFY: it serialises commits). Thread-safe. */
#pragma once

#include "core/base/attr.h"

struct hub;

/* Something about the topic changed. Cheap; never blocks on the database. */
void hub_touch(struct hub *hub, const char *topic);
