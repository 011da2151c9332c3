/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/trainer/safetensors.c and safetensors_write.c: what is written reads back, and no
 * header gets past the reader. */
#include "tests/unit/workers/trainer/trainer_fixture.h"

#include "workers/trainer/safetensors.h"

#include <endian.h>

static const char *write_file(
	struct fixture *f, uint64_t length, const char *header, size_t data_bytes)
{
	static char bytes[8192];
	const char *path = fixture_path(f, "x.safetensors");
	uint64_t le = htole64(length);
	size_t header_bytes = strlen(header);
	memset(bytes, 0, sizeof(bytes));
	memcpy(bytes, &le, 8);
	memcpy(bytes + 8, header, header_bytes);
	fixture_write(path, bytes, 8 + header_bytes + data_bytes);
	return path;
}

static void what_is_written_reads_back(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	cleanup(safetensors_closep) struct safetensors *s = NULL;
	float a[6] = { 1, 2, 3, 4, 5, 6 }, b[1] = { -0.5F };
	struct safetensors_tensor in[] = {
		{ .name = "z.first", .dtype = "F32", .rank = 2, .shape = { 2, 3 }, .bytes = 24, .data = a },
		{ .name = "a \"second\"", .dtype = "F32", .rank = 0, .bytes = 4, .data = b },
	};
	const char *path = fixture_path(f, "y.safetensors");
	assert_int_equal(safetensors_write(path, in, 2, &err), 0);
	assert_int_equal(safetensors_open(path, &s, &err), 0);
	assert_int_equal(safetensors_count(s), 2);
	const struct safetensors_tensor *t = safetensors_find(s, "z.first");
	assert_non_null(t);
	assert_int_equal(t->rank, 2);
	assert_int_equal(t->shape[1], 3);
	assert_memory_equal(t->data, a, sizeof(a));
	t = safetensors_find(s, "a \"second\"");
	assert_non_null(t);
	assert_memory_equal(t->data, b, sizeof(b));
	assert_null(safetensors_find(s, "missing"));
	assert_string_equal(safetensors_at(s, 0)->name, "a \"second\"");
	assert_string_equal(safetensors_at(s, 1)->name, "z.first");
}

static void refuses(struct fixture *f, uint64_t length, const char *header, size_t data_bytes)
{
	struct err err = { 0 };
	struct safetensors *s = NULL;
	int rc = safetensors_open(write_file(f, length, header, data_bytes), &s, &err);
	if (rc != ERR_INVALID_DATA)
		fail_msg("%s: %d", header, rc);
	assert_null(s);
	assert_true(err.message[0] != '\0');
}

static void hostile_headers_are_refused(void **state)
{
	static const char *const headers[] = {
		"",
		"[]",
		"{",
		"{\"a\":1}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,17]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}",
		"{\"a\":{\"dtype\":\"F99\",\"shape\":[4],\"data_offsets\":[0,16]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"more\":1}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
		/* products that overflow, to any total */
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905,4],\"data_offsets\":[0,16]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,16],\"data_offsets\":[0,16]}}",
		/* overlap, gap, bytes that belong to nobody */
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
		"{\"\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
		"{\"__metadata__\":{}}",
	};
	for (size_t i = 0; i < ARRAY_LEN(headers); i++)
		refuses(*state, strlen(headers[i]), headers[i], 16);
}

static void lengths_beyond_the_file_are_refused(void **state)
{
	static const char good[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
	struct err err = { 0 };
	cleanup(safetensors_closep) struct safetensors *s = NULL;
	assert_int_equal(safetensors_open(write_file(*state, sizeof(good) - 1, good, 16), &s, &err), 0);
	refuses(*state, UINT64_MAX, good, 16);
	refuses(*state, INT64_MAX, good, 16);
	refuses(*state, sizeof(good) + 16, good, 16);
	/* A file that ends with its page: one byte more would be a fault. */
	char page[4096 - 8 + 1];
	snprintf(page, sizeof(page), "%-*s", (int)sizeof(page) - 1, "{}");
	refuses(*state, 1 << 20, page, 0);
	refuses(*state, SAFETENSORS_HEADER_MAX + 1ULL, good, 16);
	refuses(*state, sizeof(good) - 1, good, 15);
	refuses(*state, sizeof(good) - 1, good, 17);
	refuses(*state, sizeof(good) - 2, good, 16);
}

static void files_too_short_are_refused(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	struct safetensors *s = NULL;
	const char *path = fixture_path(f, "short");
	fixture_write(path, "\1\0\0\0\0\0\0", 7);
	assert_int_equal(safetensors_open(path, &s, &err), ERR_INVALID_DATA);
	assert_int_equal(safetensors_open(f->dir, &s, &err), ERR_INVALID_DATA);
	assert_int_equal(safetensors_open(fixture_path(f, "none"), &s, &err), ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_reads_back),
		cmocka_unit_test(hostile_headers_are_refused),
		cmocka_unit_test(lengths_beyond_the_file_are_refused),
		cmocka_unit_test(files_too_short_are_refused),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
