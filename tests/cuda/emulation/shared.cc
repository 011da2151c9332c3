/* SPDX-License-Identifier: Apache-2.0
 * Shared memory of the running block (shared.h): poison before each block, red zones between
 * arrays, the device's limits. */
#include "tests/cuda/emulation/shared.h"

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/report.h"

#include <stdlib.h>

enum {
	SHARED_ARRAYS_MAX = 64,
	SHARED_ALIGN = 128,
	SHARED_ZONE_BYTES = 128,
	SHARED_ROOM_BYTES = EMULATION_SHARED_MAX + 2 * SHARED_ARRAYS_MAX * SHARED_ZONE_BYTES,
};

struct shared_array {
	const void *place; /* NULL: the dynamic one */
	const char *name;
	unsigned char *p;
	size_t bytes;
	size_t zone_bytes; /* behind it */
};

struct shared_room {
	unsigned char *memory;
	size_t used; /* a zone stands before the first array */
	const char *kernel;
	size_t static_bytes;
	size_t dynamic_bytes;
	struct shared_array arrays[SHARED_ARRAYS_MAX];
	int arrays_count;
};

struct shared_room *shared_create(void)
{
	struct shared_room *room = static_cast<struct shared_room *>(calloc(1, sizeof(*room)));
	void *memory;
	if (room == nullptr || posix_memalign(&memory, SHARED_ALIGN, SHARED_ROOM_BYTES) != 0)
		emulation_report("no memory for a block's shared memory");
	room->memory = static_cast<unsigned char *>(memory);
	return room;
}

void shared_destroy(struct shared_room *room)
{
	if (room == nullptr)
		return;
	emulation_zone_clear(room->memory, SHARED_ROOM_BYTES);
	free(room->memory);
	free(room);
}

static void *shared_add(struct shared_room *room, const void *place, size_t bytes, const char *name)
{
	if (room->arrays_count == SHARED_ARRAYS_MAX)
		emulation_report(
			"kernel %s has more than %d shared arrays", room->kernel, SHARED_ARRAYS_MAX);
	if (room->static_bytes > EMULATION_SHARED_STATIC_MAX)
		emulation_report("kernel %s declares %zu bytes of shared memory, of at most %d",
			room->kernel, room->static_bytes, EMULATION_SHARED_STATIC_MAX);
	if (room->static_bytes + room->dynamic_bytes > EMULATION_SHARED_MAX)
		emulation_report("kernel %s takes %zu bytes of shared memory, of at most %d", room->kernel,
			room->static_bytes + room->dynamic_bytes, EMULATION_SHARED_MAX);
	size_t room_bytes = (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
	struct shared_array *array = &room->arrays[room->arrays_count++];
	array->place = place;
	array->name = name;
	array->p = room->memory + room->used;
	array->bytes = bytes;
	array->zone_bytes = room_bytes - bytes + SHARED_ZONE_BYTES;
	room->used += room_bytes + SHARED_ZONE_BYTES;
	emulation_zone_clear(array->p, bytes);
	emulation_poison(array->p, bytes);
	emulation_zone_set(array->p + bytes, array->zone_bytes);
	return array->p;
}

void shared_launch(struct shared_room *room, const char *kernel, size_t dynamic_bytes)
{
	emulation_zone_clear(room->memory, SHARED_ROOM_BYTES);
	emulation_zone_set(room->memory, SHARED_ZONE_BYTES);
	room->kernel = kernel;
	room->used = SHARED_ZONE_BYTES;
	room->static_bytes = 0;
	room->dynamic_bytes = dynamic_bytes;
	room->arrays_count = 0;
	if (dynamic_bytes > 0)
		shared_add(room, nullptr, dynamic_bytes, "(dynamic)");
}

void shared_block_begin(struct shared_room *room)
{
	for (int i = 0; i < room->arrays_count; i++)
		emulation_poison(room->arrays[i].p, room->arrays[i].bytes);
}

void shared_block_end(struct shared_room *room)
{
	if (room->arrays_count > 0 && emulation_zone_broken(room->memory, SHARED_ZONE_BYTES))
		emulation_report(
			"kernel %s wrote before shared array %s", room->kernel, room->arrays[0].name);
	for (int i = 0; i < room->arrays_count; i++) {
		const struct shared_array *array = &room->arrays[i];
		if (emulation_zone_broken(array->p + array->bytes, array->zone_bytes))
			emulation_report("kernel %s wrote beyond shared array %s of %zu bytes", room->kernel,
				array->name, array->bytes);
	}
}

void *shared_static(struct shared_room *room, const void *place, size_t bytes, const char *name)
{
	for (int i = 0; i < room->arrays_count; i++)
		if (room->arrays[i].place == place)
			return room->arrays[i].p;
	room->static_bytes += bytes;
	return shared_add(room, place, bytes, name);
}

void *shared_dynamic(struct shared_room *room)
{
	if (room->dynamic_bytes == 0)
		emulation_report(
			"kernel %s uses dynamic shared memory and was launched with none", room->kernel);
	return room->arrays[0].p;
}
