/* SPDX-License-Identifier: Apache-2.0
 * The safetensors file format: 8 bytes of header length, a JSON header, the tensors' bytes. The
 * reader trusts nothing: lengths are bounded, every sum is checked for overflow, bytes must equal
 * shape times type, tensors must tile the data without gap or overlap. Used by the checkpoint and
 * hf files. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	SAFETENSORS_HEADER_MAX = 16 * 1024 * 1024, /* bytes of the JSON header */
	SAFETENSORS_TENSORS_MAX = 64 * 1024,
	SAFETENSORS_NAME_MAX = 160,
	SAFETENSORS_RANK_MAX = 8,
	SAFETENSORS_NOTE_MAX = 128,
};

struct safetensors_tensor {
	char name[SAFETENSORS_NAME_MAX];
	char dtype[8];
	int rank;
	int64_t shape[SAFETENSORS_RANK_MAX];
	/* What the file's metadata say under the tensor's name; "": nothing, or nothing so short. */
	char note[SAFETENSORS_NOTE_MAX];
	int64_t begin, bytes; /* inside the data part */
	const void *data;     /* writer: what is written; reader: mapped, valid until close */
};

/* Writes the tensors in the order given; begin is ignored. The data are read once, and the file is
 * not synced (files_seal does that), so that they need to hold still for a short time only. */
int safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
	struct err *err) must_check;

/* Gives bytes of tensor i from byte `at` on: at least one, and valid until the next call. */
typedef int (*safetensors_source_fn)(
	void *ctx, int i, int64_t at, const void **ret, int64_t *ret_bytes, struct err *err);
/* The same, of tensors that are not in memory as a whole: their data come from `source`, tensor by
 * tensor and from front to back. */
int safetensors_write_from(const char *path, const struct safetensors_tensor *tensors, int count,
	safetensors_source_fn source, void *ctx, struct err *err) must_check;

struct safetensors; /* an open, mapped file */
/* INVALID_DATA, with what is wrong and where, for whatever is not exactly right. */
int safetensors_open(const char *path, struct safetensors **ret, struct err *err) must_check;
void safetensors_close(struct safetensors *s);
void safetensors_closep(struct safetensors **s);
int safetensors_count(const struct safetensors *s);
/* By name, 0 <= i < count. */
const struct safetensors_tensor *safetensors_at(const struct safetensors *s, int i);
/* NULL when there is none of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);
