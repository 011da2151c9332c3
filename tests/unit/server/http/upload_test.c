/* SPDX-License-Identifier: Apache-2.0
 * Bodies to disk and the blob store behind them, in a folder of the test's own. */
#include "server/http/upload.h"
#include "server/storage/blob.h"
#include "tests/support/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TYPE "multipart/form-data; boundary=B"
#define PART(head, body) "--B\r\nContent-Disposition: form-data; " head "\r\n\r\n" body "\r\n"
#define HELLO_SHA256 "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

enum { FILE_MAX_BYTES = 100 };

struct place {
	char root[64];
	struct blob_store *blobs;
};

static int make_place(void **state)
{
	static struct place p;
	struct err err = { 0 };
	(void)snprintf(p.root, sizeof(p.root), "/tmp/trainyard-upload-XXXXXX");
	assert_non_null(mkdtemp(p.root));
	assert_int_equal(blob_store_create(p.root, &p.blobs, &err), 0);
	*state = &p;
	return 0;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

static int drop_place(void **state)
{
	struct place *p = *state;
	blob_store_destroy(p->blobs);
	return nftw(p->root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static int temp_files(const struct place *p)
{
	char path[128];
	(void)snprintf(path, sizeof(path), "%s/tmp", p->root);
	DIR *d = opendir(path);
	int count = 0;
	while (readdir(d))
		count++;
	(void)closedir(d);
	return count - 2;
}

static int receive(struct place *p, const char *type, const char *body,
	struct upload_receiver **ret, struct err *err)
{
	int r = upload_receiver_create(p->blobs, type, FILE_MAX_BYTES, ret, err);
	if (r == 0)
		r = upload_receiver_feed(*ret, body, strlen(body), err);
	if (r == 0)
		r = upload_receiver_end(*ret, err);
	return r;
}

static void parts_in_any_order(void **state)
{
	struct place *p = *state;
	static const char *const bodies[] = {
		PART("name=\"file\"; filename=\"C:\\dir\\a/b.txt\"", "hello")
			PART("name=purpose", "fine-tune") "--B--",
		PART("name=purpose", "fine-tune")
			PART("name=\"file\"; filename=\"b.txt\"", "hello") "--B--\r\n",
	};
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		struct upload_receiver *u = NULL;
		struct err err = { 0 };
		assert_int_equal(receive(p, TYPE, bodies[i], &u, &err), 0);
		const struct upload *up = upload_receiver_result(u);
		assert_true(up->has_file);
		assert_int_equal(up->bytes, 5);
		assert_string_equal(up->sha256, HELLO_SHA256);
		assert_string_equal(up->filename, "b.txt");
		assert_string_equal(up->file_field, "file");
		assert_string_equal(upload_field(up, "purpose"), "fine-tune");
		assert_null(upload_field(up, "file"));
		assert_int_equal(temp_files(p), 1);
		upload_receiver_destroy(u);
		assert_int_equal(temp_files(p), 0);
	}
}

static void what_is_refused(void **state)
{
	struct place *p = *state;
	static char long_value[UPLOAD_FIELD_VALUE_MAX + 100];
	static char long_name[2048];
	memset(long_value, 'x', sizeof(long_value) - 1);
	(void)snprintf(long_name, sizeof(long_name), PART("name=%.*s", "v") "--B--",
		UPLOAD_FIELD_NAME_MAX, long_value);
	char big_field[4096];
	char big_file[4096];
	(void)snprintf(big_field, sizeof(big_field), PART("name=a", "%s") "--B--", long_value);
	(void)snprintf(big_file, sizeof(big_file), PART("name=a; filename=a", "%.*s") "--B--",
		FILE_MAX_BYTES + 1, long_value);
	const struct {
		const char *body;
		int code;
	} cases[] = {
		{ PART("name=a", "1") PART("name=a", "2") "--B--", ERR_INVALID_VALUE },
		{ PART("name=a; filename=a", "1") PART("name=a", "2") "--B--", ERR_INVALID_VALUE },
		{ PART("name=a; filename=a", "1") PART("name=b; filename=b", "2") "--B--",
			ERR_INVALID_VALUE },
		{ PART("name=a", "\xff") "--B--", ERR_INVALID_VALUE },
		{ long_name, ERR_INVALID_VALUE },
		{ big_field, ERR_TOO_LARGE },
		{ big_file, ERR_TOO_LARGE },
		{ PART("name=a; filename=a", "1") "--B", ERR_INVALID_REQUEST },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct upload_receiver *u = NULL;
		struct err err = { 0 };
		assert_int_equal(receive(p, TYPE, cases[i].body, &u, &err), cases[i].code);
		upload_receiver_destroy(u);
		assert_int_equal(temp_files(p), 0);
	}
}

static void a_raw_body_is_the_file(void **state)
{
	struct place *p = *state;
	struct upload_receiver *u = NULL;
	struct err err = { 0 };
	assert_int_equal(receive(p, NULL, "hello", &u, &err), 0);
	assert_string_equal(upload_receiver_result(u)->sha256, HELLO_SHA256);
	upload_receiver_destroy(u);
	assert_int_equal(receive(p, NULL, "", &u, &err), 0);
	assert_int_equal(upload_receiver_result(u)->bytes, 0);
	upload_receiver_destroy(u);
	assert_int_equal(temp_files(p), 0);
}

static void published_once_open_by_tenant(void **state)
{
	struct place *p = *state;
	struct err err = { 0 };
	int fd = -1;
	int64_t bytes = 0;
	for (int i = 0; i < 2; i++) { /* known content is fine */
		struct upload_receiver *u = NULL;
		assert_int_equal(receive(p, NULL, "hello", &u, &err), 0);
		const struct upload *up = upload_receiver_result(u);
		assert_int_equal(
			blob_store_publish(p->blobs, up->temp_path, "tenant_1", up->sha256, &err), 0);
		upload_receiver_destroy(u);
		assert_int_equal(temp_files(p), 0);
		assert_int_equal(blob_store_open(p->blobs, "tenant_1", HELLO_SHA256, &fd, &bytes, &err), 0);
		assert_int_equal(bytes, 5);
		char text[8] = "";
		assert_int_equal(read(fd, text, sizeof(text) - 1), 5);
		assert_string_equal(text, "hello");
		(void)close(fd);
	}
	static const char *const tenants[] = { "tenant_2", "", "..", "a/b", "tmp", "../tenant_1" };
	for (size_t i = 0; i < ARRAY_LEN(tenants); i++)
		assert_int_equal(
			blob_store_open(p->blobs, tenants[i], HELLO_SHA256, &fd, &bytes, &err), ERR_NOT_FOUND);
	assert_int_equal(blob_store_open(p->blobs, "tenant_1", "../../etc/passwd", &fd, &bytes, &err),
		ERR_NOT_FOUND);
	assert_int_equal(blob_store_remove(p->blobs, "tenant_1", HELLO_SHA256, &err), 0);
	assert_int_equal(blob_store_remove(p->blobs, "tenant_1", HELLO_SHA256, &err), 0);
	assert_int_equal(
		blob_store_open(p->blobs, "tenant_1", HELLO_SHA256, &fd, &bytes, &err), ERR_NOT_FOUND);
}

static void leftovers_go_when_they_are_old(void **state)
{
	struct place *p = *state;
	struct err err = { 0 };
	char fresh[256];
	char old[256];
	int fd = -1;
	assert_int_equal(blob_store_temp(p->blobs, fresh, sizeof(fresh), &fd, &err), 0);
	(void)close(fd);
	assert_int_equal(blob_store_temp(p->blobs, old, sizeof(old), &fd, &err), 0);
	const struct timespec times[] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	assert_int_equal(futimens(fd, times), 0);
	(void)close(fd);
	struct blob_store *again = NULL;
	assert_int_equal(blob_store_create(p->root, &again, &err), 0);
	blob_store_destroy(again);
	assert_int_equal(access(old, F_OK), -1);
	assert_int_equal(access(fresh, F_OK), 0);
	assert_int_equal(unlink(fresh), 0);
}

static void links_are_not_followed(void **state)
{
	struct place *p = *state;
	struct err err = { 0 };
	char path[256];
	int fd = -1;
	int64_t bytes;
	(void)snprintf(path, sizeof(path), "%s/tenant_3", p->root);
	assert_int_equal(mkdir(path, 0700), 0);
	(void)snprintf(path, sizeof(path), "%s/tenant_3/2c", p->root);
	assert_int_equal(mkdir(path, 0700), 0);
	(void)snprintf(path, sizeof(path), "%s/tenant_3/2c/" HELLO_SHA256, p->root);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	assert_int_equal(
		blob_store_open(p->blobs, "tenant_3", HELLO_SHA256, &fd, &bytes, &err), ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_in_any_order),
		cmocka_unit_test(what_is_refused),
		cmocka_unit_test(a_raw_body_is_the_file),
		cmocka_unit_test(published_once_open_by_tenant),
		cmocka_unit_test(leftovers_go_when_they_are_old),
		cmocka_unit_test(links_are_not_followed),
	};
	return cmocka_run_group_tests(tests, make_place, drop_place);
}
