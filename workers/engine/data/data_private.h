/* SPDX-License-Identifier: Apache-2.0
 * What the files behind data.h share. A format (data_text.c, data_csv.c, ...) checks its files and
 * turns them into one of four shapes, which its reader copies into batches: a stream of tokens, a
 * list of documents, arrays of samples and labels, or rows of a table. */
#pragma once

#include "workers/engine/data.h"

#include <stddef.h>

struct tokenizer;

enum {
	DATA_FEATURES_MAX = 1 << 26, /* elements of one sample */
	DATA_THREADS_MAX = 256,
};
/* Of one scratch file: far more than the largest data set derives, far less than a small file can
 * promise. */
#define DATA_SCRATCH_MAX_BYTES (INT64_C(256) << 30)

struct data_map {
	const unsigned char *bytes;
	size_t size;
	char label[SPEC_NAME_MAX * 2];
};

/* What a format opens from, besides the mapped files. */
struct data_source {
	const struct job_spec *spec;
	const char *param; /* of errors */
	const char *scratch_dir;
	const char *tokenizer_path, *tokenizer_label;
	int threads; /* at least 1 */
};

/* A file that has no name any more: written while a data set is opened, then mapped. */
struct data_scratch {
	int fd;            /* -1 once it is mapped */
	const char *param; /* of errors */
	const unsigned char *bytes;
	int64_t size;
};

/* Tokens that follow each other, in pieces that lie apart. */
struct data_segment {
	const unsigned char *at;
	int64_t begin;   /* position of its first token in the stream */
	int token_bytes; /* 1, 2 or 4; little-endian, unsigned */
};
struct data_stream {
	struct data_segment *segment; /* malloc'ed; one more than count, which begins at the end */
	int64_t count;
};

/* Documents of tokens; each token's highest bit says that predicting it counts in the loss. Window
 * w holds the documents from first[w] up to first[w + 1], or document w where first is NULL. */
enum { DATA_TOKEN_MASK = 0x7fffffff };
#define DATA_TOKEN_TRAINED UINT32_C(0x80000000)
struct data_documents {
	const uint32_t *tokens;
	const int64_t *begin; /* one more than there are documents */
	const int64_t *first; /* one more than there are windows */
};

/* Elements in a mapped file, row-major: [items, ...]. */
enum data_array_type {
	DATA_U8,
	DATA_I8,
	DATA_I16,
	DATA_I32,
	DATA_I64,
	DATA_U16,
	DATA_U32,
	DATA_F32,
	DATA_F64,
};
enum { DATA_RANK_MAX = 4 };
struct data_array {
	const unsigned char *bytes; /* the first element */
	const char *label;          /* of the file */
	const char *shape_at;       /* where the file says its shape, for errors: "offset 4" */
	int64_t offset;             /* of the first element in the file, for errors */
	int64_t dim[DATA_RANK_MAX];
	enum data_array_type type;
	bool big_endian;
	int rank;
};

/* Rows of equal size: dense fp32 features, the label, then table_count * lookups row ids. */
struct data_rows {
	const unsigned char *bytes;
	int64_t row_bytes, dense, lookups;
	int table_count;
};

/* How a shape is read. index and slot as in data.h. */
struct data_reader {
	void (*read)(const struct data *d, int64_t index, int64_t slot, uint64_t draw,
		const struct data_batch *b);
	void (*blank)(const struct data *d, int64_t slot, const struct data_batch *b);
	int64_t (*valid_rows)(const struct data *d, int64_t index);
};

enum { DATA_SCRATCHES = 3 };

struct data {
	enum spec_task task;
	enum spec_format format;
	struct data_info info;
	int map_count;
	struct data_map map[SPEC_FILES_MAX];
	struct data_scratch scratch[DATA_SCRATCHES];
	const struct data_reader *reader;
	int64_t window; /* sequence_length */
	struct data_stream stream;
	struct data_documents documents;
	struct data_array samples, labels;
	int64_t features; /* elements of one sample */
	struct data_rows rows;
	bool flip;
	int64_t crop_padding;
	char *header; /* csv: malloc'ed, the names of the columns, a NUL behind each */
	size_t header_bytes;
	char *class_names; /* image_tar: malloc'ed, each ends in a newline; NULL without folders */
};

extern const struct data_reader data_stream_reader, data_documents_reader, data_array_reader,
	data_rows_reader;

/* Formats: check everything and fill info, the reader and its shape; the files are mapped. */
typedef int (*data_format_fn)(struct data *d, const struct data_source *s, struct err *err);
int data_text_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_idx_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_jsonl_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_csv_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_npy_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_tokens_open(struct data *d, const struct data_source *s, struct err *err) must_check;
int data_image_tar_open(struct data *d, const struct data_source *s, struct err *err) must_check;

/* data_tokenizer.c: the spec's; its tokens must fit the model. */
int data_tokenizer_open(
	const struct data_source *s, struct tokenizer **ret, struct err *err) must_check;

/* INVALID_DATA with the offset and the line of the first byte that is not UTF-8. */
int data_check_utf8(const struct data_map *m, const char *param, struct err *err) must_check;

/* data_npy.c: the header of a .npy file; the file has exactly the bytes that it promises. */
int data_npy_read(const struct data_map *m, const char *param, struct data_array *ret,
	struct err *err) must_check;

/* data_array.c: checks samples against labels by the task and makes them the set's. */
int data_array_attach(struct data *d, const struct data_array *samples,
	const struct data_array *labels, const struct data_source *s, struct err *err) must_check;
int data_array_item_bytes(enum data_array_type type);
double data_array_item(const struct data_array *a, int64_t index);

/* data_augment.c: how an image is shifted (a crop of the padded image), then mirrored; draw 0: not
 * at all. */
struct data_shift {
	int64_t rows, columns;
	bool mirror;
};
struct data_shift data_augment_shift(const struct data *d, uint64_t draw);

/* Blank slot of tokens: each is a document of its own, without a label. */
void data_language_blank(const struct data *d, int64_t slot, const struct data_batch *b);

/* data_stream.c: takes pieces over (malloc'ed, begin not yet filled in); counts[i] tokens each. */
void data_stream_attach(
	struct data *d, struct data_segment *segments, const int64_t *counts, int64_t count);

/* data_scratch.c. Zero-initialised or closed is closed. */
int data_scratch_open(
	struct data_scratch *s, const struct data_source *source, struct err *err) must_check;
/* Any thread; the places written must not overlap. INVALID_DATA beyond DATA_SCRATCH_MAX_BYTES. */
int data_scratch_write(struct data_scratch *s, int64_t offset, const void *bytes, size_t count,
	struct err *err) must_check;
/* Ends the writing. */
int data_scratch_map(struct data_scratch *s, int64_t size, struct err *err) must_check;
void data_scratch_close(struct data_scratch *s);

/* Collects small writes that follow each other. */
enum { DATA_WRITER_BYTES = 256 * 1024 };
struct data_writer {
	struct data_scratch *scratch;
	int64_t offset; /* in the scratch file, of what was written out */
	unsigned char *buffer;
	size_t used;
};
int data_writer_open(
	struct data_writer *w, struct data_scratch *s, int64_t offset, struct err *err) must_check;
int data_writer_put(
	struct data_writer *w, const void *bytes, size_t count, struct err *err) must_check;
/* Bytes put so far, counted from the start of the file. */
int64_t data_writer_at(const struct data_writer *w);
int data_writer_flush(struct data_writer *w, struct err *err) must_check;
void data_writer_close(struct data_writer *w);

/* data_parallel.c: runs fn(ctx, i) for each i < count on up to `threads` threads, in any order, and
 * returns what the least failing i returned; those after it may not have run. */
typedef int (*data_parallel_fn)(void *ctx, int64_t i, struct err *err);
int data_parallel(
	int threads, int64_t count, data_parallel_fn fn, void *ctx, struct err *err) must_check;
