/* SPDX-License-Identifier: Apache-2.0
 * A block's shared memory: one room a stream's thread, laid out anew for each launch. Used by
 * block.cc alone. */
#pragma once

#include <stddef.h>

struct shared_room;

struct shared_room *shared_create(void);
void shared_destroy(struct shared_room *room);
/* Forgets the launch before. */
void shared_launch(struct shared_room *room, const char *kernel, size_t dynamic_bytes);
/* Poisons all arrays that earlier blocks of this launch have used. */
void shared_block_begin(struct shared_room *room);
/* Looks at the red zones. */
void shared_block_end(struct shared_room *room);
void *shared_static(struct shared_room *room, const void *place, size_t bytes, const char *name);
void *shared_dynamic(struct shared_room *room);
