/* SPDX-License-Identifier: Apache-2.0
 * Writing safetensors: the header with names in file order, padded to 8 bytes, then the bytes. */
#include "workers/trainer/safetensors.h"

#include "core/json/writer.h"
#include "workers/trainer/files.h"

#include <endian.h>

static void write_header(struct buf *out, const struct safetensors_tensor *tensors, int count)
{
	struct json_writer w;
	json_writer_init(&w, out);
	json_begin_object(&w);
	json_key(&w, "__metadata__");
	json_begin_object(&w);
	json_field_str(&w, "format", "pt");
	for (int i = 0; i < count; i++)
		if (tensors[i].note[0] != '\0')
			json_field_str(&w, tensors[i].name, tensors[i].note);
	json_end_object(&w);
	int64_t at = 0;
	for (int i = 0; i < count; i++) {
		const struct safetensors_tensor *t = &tensors[i];
		json_key(&w, t->name);
		json_begin_object(&w);
		json_field_str(&w, "dtype", t->dtype);
		json_key(&w, "shape");
		json_begin_array(&w);
		for (int d = 0; d < t->rank; d++)
			json_put_i64(&w, t->shape[d]);
		json_end_array(&w);
		json_key(&w, "data_offsets");
		json_begin_array(&w);
		json_put_i64(&w, at);
		at += t->bytes;
		json_put_i64(&w, at);
		json_end_array(&w);
		json_end_object(&w);
	}
	json_end_object(&w);
	while (out->len % 8 != 0 && out->failed == 0)
		buf_char(out, ' ');
}

static int write_tensor(struct files_out *out, const struct safetensors_tensor *t, int i,
	safetensors_source_fn source, void *ctx, struct err *err)
{
	const void *data = NULL;
	int rc = 0;
	for (int64_t at = 0, bytes = 0; at < t->bytes && rc == 0; at += bytes) {
		rc = source(ctx, i, at, &data, &bytes, err);
		if (rc == 0)
			rc = files_out_write(out, data, (size_t)bytes, err);
	}
	return rc;
}

int safetensors_write_from(const char *path, const struct safetensors_tensor *tensors, int count,
	safetensors_source_fn source, void *ctx, struct err *err)
{
	cleanup(buf_finish) struct buf header;
	cleanup(files_out_abort) struct files_out out = FILES_OUT_INIT;
	buf_init(&header, SAFETENSORS_HEADER_MAX);
	write_header(&header, tensors, count);
	if (header.failed != 0)
		return err_set(err, header.failed, NULL, "the header of %s is too large", path);

	int rc = files_out_open(&out, path, err);
	if (rc < 0)
		return rc;
	uint64_t length = htole64((uint64_t)header.len);
	rc = files_out_write(&out, &length, sizeof(length), err);
	if (rc == 0)
		rc = files_out_write(&out, header.data, header.len, err);
	for (int i = 0; i < count && rc == 0; i++)
		rc = write_tensor(&out, &tensors[i], i, source, ctx, err);
	return rc < 0 ? rc : files_out_close(&out, err);
}

static int from_memory(
	void *ctx, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err)
{
	const struct safetensors_tensor *t = (const struct safetensors_tensor *)ctx + i;
	(void)err;
	*ret = (const char *)t->data + at;
	*ret_bytes = t->bytes - at;
	return 0;
}

int safetensors_write(
	const char *path, const struct safetensors_tensor *tensors, int count, struct err *err)
{
	return safetensors_write_from(path, tensors, count, from_memory, (void *)tensors, err);
}
