/* SPDX-License-Identifier: Apache-2.0
 * Bodies to disk: one file, hashed on the way, and small form fields around it in any order. Called
 * by event loops; a request's receiver belongs to its connection's loop. */
#include "server/http/upload.h"

#include "core/base/utf8.h"
#include "server/http/multipart_parser.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct upload_receiver {
	struct upload result;
	struct blob_store *blobs;
	struct digest *digest;
	int fd;
	int64_t file_max_bytes;
	bool is_multipart;
	struct multipart_parser parser;
	bool in_file;               /* the part at hand is the file */
	struct upload_field *field; /* or this field */
	size_t field_len;
};

const char *upload_field(const struct upload *u, const char *name)
{
	for (int i = 0; i < u->field_count; i++) {
		if (strcmp(u->fields[i].name, name) == 0)
			return u->fields[i].value;
	}
	return NULL;
}

static int file_begin(struct upload_receiver *u, struct err *err)
{
	int r = digest_create(&u->digest);
	if (r < 0)
		return err_set(err, r, NULL, "Out of memory");
	r = blob_store_temp(u->blobs, u->result.temp_path, sizeof(u->result.temp_path), &u->fd, err);
	if (r < 0)
		return r;
	u->result.has_file = true;
	return 0;
}

static int file_data(struct upload_receiver *u, const char *data, size_t bytes, struct err *err)
{
	if ((int64_t)bytes > u->file_max_bytes - u->result.bytes)
		return err_set(err, ERR_TOO_LARGE, u->result.file_field,
			"The file is larger than %" PRId64 " bytes", u->file_max_bytes);
	int r = digest_update(u->digest, data, bytes);
	if (r < 0)
		return err_set(err, r, NULL, "Hashing the file failed");
	u->result.bytes += (int64_t)bytes;
	while (bytes > 0) {
		ssize_t n = write(u->fd, data, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(err, ERR_IO, errno, "writing an uploaded file");
		data += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int file_end(struct upload_receiver *u, struct err *err)
{
	unsigned char sum[DIGEST_BYTES];
	int r = digest_final(u->digest, sum);
	if (r < 0)
		return err_set(err, r, NULL, "Hashing the file failed");
	digest_to_hex(sum, u->result.sha256);
	int fd = u->fd;
	u->fd = -1;
	if (close(fd) < 0)
		return err_errno(err, ERR_IO, errno, "writing an uploaded file");
	return 0;
}

/* The last component of whatever path the client gave, without control characters. */
static void base_name(const char *given, char ret[static UPLOAD_FILENAME_MAX])
{
	const char *from = given;
	for (const char *p = given; *p; p++) {
		if (*p == '/' || *p == '\\')
			from = p + 1;
	}
	size_t len = strlen(from);
	if (len >= UPLOAD_FILENAME_MAX)
		len = utf8_valid_prefix(from, UPLOAD_FILENAME_MAX - 1);
	for (size_t i = 0; i < len; i++)
		ret[i] = (unsigned char)from[i] < ' ' || from[i] == 0x7f ? '_' : from[i];
	ret[len] = '\0';
}

static int part_begin(void *ctx, const struct multipart_part *part, struct err *err)
{
	struct upload_receiver *u = ctx;
	u->in_file = part->has_filename;
	u->field = NULL;
	if (strlen(part->name) >= UPLOAD_FIELD_NAME_MAX)
		return err_set(err, ERR_INVALID_VALUE, NULL, "A form field's name is longer than %d bytes",
			UPLOAD_FIELD_NAME_MAX - 1);
	if (upload_field(&u->result, part->name) ||
		(u->result.has_file && strcmp(u->result.file_field, part->name) == 0))
		return err_set(
			err, ERR_INVALID_VALUE, part->name, "The form field %s is given twice", part->name);
	if (u->in_file) {
		if (u->result.has_file)
			return err_set(err, ERR_INVALID_VALUE, part->name, "The form has more than one file");
		memcpy(u->result.file_field, part->name, strlen(part->name) + 1);
		base_name(part->filename, u->result.filename);
		return file_begin(u, err);
	}
	if (u->result.field_count == UPLOAD_FIELDS_MAX)
		return err_set(
			err, ERR_TOO_LARGE, NULL, "The form has more than %d fields", UPLOAD_FIELDS_MAX);
	u->field = &u->result.fields[u->result.field_count++];
	u->field_len = 0;
	memcpy(u->field->name, part->name, strlen(part->name) + 1);
	return 0;
}

static int part_data(void *ctx, const char *data, size_t bytes, struct err *err)
{
	struct upload_receiver *u = ctx;
	if (u->in_file)
		return file_data(u, data, bytes, err);
	if (bytes >= UPLOAD_FIELD_VALUE_MAX - u->field_len)
		return err_set(err, ERR_TOO_LARGE, u->field->name,
			"The form field %s is longer than %d bytes (a file needs a filename)", u->field->name,
			UPLOAD_FIELD_VALUE_MAX - 1);
	memcpy(u->field->value + u->field_len, data, bytes);
	u->field_len += bytes;
	return 0;
}

static int part_end(void *ctx, struct err *err)
{
	struct upload_receiver *u = ctx;
	if (u->in_file)
		return file_end(u, err);
	u->field->value[u->field_len] = '\0';
	if (strlen(u->field->value) != u->field_len || !utf8_is_valid(u->field->value, u->field_len))
		return err_set(err, ERR_INVALID_VALUE, u->field->name, "The form field %s is not text",
			u->field->name);
	return 0;
}

static const struct multipart_sink sink = {
	.begin = part_begin,
	.data = part_data,
	.end = part_end,
};

int upload_receiver_create(struct blob_store *blobs, const char *content_type,
	int64_t file_max_bytes, struct upload_receiver **ret, struct err *err)
{
	char boundary[MULTIPART_BOUNDARY_MAX + 1];
	int r = content_type ? multipart_boundary(content_type, boundary, err) : 0;
	if (r < 0)
		return r;
	struct upload_receiver *u = calloc(1, sizeof(*u));
	if (!u)
		return err_set(err, ERR_NO_MEMORY, NULL, "Out of memory");
	u->blobs = blobs;
	u->fd = -1;
	u->file_max_bytes = file_max_bytes;
	u->is_multipart = content_type != NULL;
	if (content_type) {
		multipart_parser_init(&u->parser, boundary, &sink, u);
	} else {
		r = file_begin(u, err);
		if (r < 0) {
			upload_receiver_destroy(u);
			return r;
		}
	}
	*ret = u;
	return 0;
}

int upload_receiver_feed(struct upload_receiver *u, const char *data, size_t bytes, struct err *err)
{
	if (u->is_multipart)
		return multipart_parser_feed(&u->parser, data, bytes, err);
	return file_data(u, data, bytes, err);
}

int upload_receiver_end(struct upload_receiver *u, struct err *err)
{
	if (u->is_multipart)
		return multipart_parser_end(&u->parser, err);
	return file_end(u, err);
}

struct upload *upload_receiver_result(struct upload_receiver *u)
{
	return &u->result;
}

void upload_receiver_destroy(struct upload_receiver *u)
{
	if (!u)
		return;
	closep(&u->fd);
	if (u->result.has_file)
		(void)unlink(u->result.temp_path);
	digest_destroy(u->digest);
	free(u);
}
