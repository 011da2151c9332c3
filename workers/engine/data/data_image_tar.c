/* SPDX-License-Identifier: Apache-2.0
 * Tars of PNG and JPEG images, plain or gzipped. An image's class is the number in the .cls file
 * beside it (a/7.cls for a/7.png), or else the rank of its folder's name among all folders' names,
 * sorted by their bytes. Other files are passed over. Images are decoded once, in the order of the
 * tar, into a scratch file. All have one size, or are brought to the model's. Called by data.c. */
#include "core/base/buf.h"
#include "workers/engine/data/data_image.h"
#include "workers/engine/data/data_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <archive.h>
#include <archive_entry.h>

enum {
	IMAGES_MAX = 1 << 24,
	IMAGE_FILE_MAX_BYTES = 64 << 20,
	NAME_MAX_BYTES = 4096,
	CLASS_FILE_MAX_BYTES = 32,
	TAR_BLOCK_BYTES = 512,
	BATCH_FILES_PER_THREAD = 16,
	BATCH_MAX_BYTES = 128 << 20,
	GZIP_RATIO_MAX = 64, /* bytes unpacked for each byte of the file, beyond the first ... */
	GZIP_FREE_BYTES = 64 << 20,
};

/* An image or a .cls file. */
struct record {
	size_t name, name_bytes; /* in the names: of the path without its extension */
	int64_t value;           /* image: its index; .cls: the class */
};
struct records {
	struct record *at;
	int64_t count, cap;
};

/* An image that waits to be decoded. */
struct waiting {
	unsigned char *bytes;
	size_t count;
	int64_t index;
	char name[NAME_MAX_BYTES];
};

struct tar {
	struct data *d;
	const struct data_source *source;
	const struct data_map *map; /* the tar at hand */
	struct archive *archive;
	struct buf names;
	struct records images, classes;
	struct waiting *waiting;
	int waiting_count, waiting_max;
	size_t waiting_bytes;
};

static int bad_entry(const struct tar *x, const char *name, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, x->source->param, "file %s, entry %s: %s", x->map->label,
		name, what);
}

static int bad_archive(const struct tar *x, struct err *err)
{
	const char *why = archive_error_string(x->archive);
	return err_set(err, ERR_INVALID_DATA, x->source->param, "file %s is no readable tar: %s",
		x->map->label, why ? why : "unknown form");
}

/* Text that the name at hand is told by, in the list of names. */
static int put_record(
	struct tar *x, struct records *r, const char *name, int64_t value, struct err *err)
{
	const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');
	size_t bytes = dot ? (size_t)(dot - name) : strlen(name);
	if (r->count == IMAGES_MAX)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s: more than %d images in the data", x->map->label, IMAGES_MAX);
	if (r->count == r->cap) {
		int64_t cap = r->cap ? r->cap * 2 : 1024;
		struct record *at = realloc(r->at, (size_t)cap * sizeof(*at));
		if (!at)
			return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the names of images");
		r->at = at;
		r->cap = cap;
	}
	r->at[r->count++] = (struct record){ x->names.len, bytes, value };
	if (buf_append(&x->names, name, bytes))
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for the names of images");
	return 0;
}

/* Zipped bytes that unpack to far more than images do. */
static int check_ratio(const struct tar *x, const char *name, int64_t more, struct err *err)
{
	int64_t unpacked;
	bool over = __builtin_add_overflow(archive_filter_bytes(x->archive, 0), more, &unpacked) ||
		unpacked > (int64_t)x->map->size * GZIP_RATIO_MAX + GZIP_FREE_BYTES;
	if (archive_filter_count(x->archive) > 1 && over)
		return bad_entry(x, name, "the file unpacks to more than 64 times its size", err);
	return 0;
}

static int read_entry(
	struct tar *x, const char *name, int64_t size, unsigned char **ret, struct err *err)
{
	cleanup(freep) unsigned char *bytes = malloc((size_t)size + 1);
	if (!bytes)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an image");
	int64_t have = 0;
	while (have < size) {
		la_ssize_t n = archive_read_data(x->archive, bytes + have, (size_t)(size - have));
		if (n < 0)
			return bad_archive(x, err);
		if (n == 0)
			return bad_entry(x, name, "it is truncated", err);
		have += n;
	}
	bytes[size] = 0;
	*ret = take_ptr(bytes);
	return 0;
}

static int read_class(struct tar *x, const char *name, int64_t size, struct err *err)
{
	if (size > CLASS_FILE_MAX_BYTES)
		return bad_entry(x, name, "a .cls file holds one whole number", err);
	cleanup(freep) unsigned char *bytes = NULL;
	int rc = read_entry(x, name, size, &bytes, err);
	if (rc)
		return rc;
	char *p = (char *)bytes;
	size_t spaces = strspn(p, " \t\r\n"), digits = strspn(p + spaces, "0123456789");
	if (digits == 0 || digits > 9 || p[spaces + digits + strspn(p + spaces + digits, " \t\r\n")])
		return bad_entry(x, name, "a .cls file holds one whole number", err);
	return put_record(x, &x->classes, name, strtol(p + spaces, NULL, 10), err);
}

static bool is_png(const struct waiting *w)
{
	return w->count >= 8 && memcmp(w->bytes, "\x89PNG\r\n\x1a\n", 8) == 0;
}

static int decode(const struct waiting *w, struct data_image *ret, struct err *err)
{
	if (is_png(w))
		return data_png_decode(w->bytes, w->count, ret, err);
	if (w->count >= 3 && memcmp(w->bytes, "\xff\xd8\xff", 3) == 0)
		return data_jpeg_decode(w->bytes, w->count, ret, err);
	return err_set(err, ERR_INVALID_DATA, NULL, "it is neither PNG nor JPEG");
}

/* UNAVAILABLE: this build has no decoder for it. */
static int bad_image(
	const struct tar *x, const struct waiting *w, int code, const struct err *why, struct err *err)
{
	return err_set(
		err, code, x->source->param, "file %s, entry %s: %s", x->map->label, w->name, why->message);
}

/* Decodes, and brings to the size of all. The first image may say what that is. */
static int decode_to_size(
	struct tar *x, const struct waiting *w, struct data_image *ret, struct err *err)
{
	const struct data_info *i = &x->d->info;
	struct data_image image = { 0 };
	int rc = decode(w, &image, err);
	bool scaled = x->source->spec->model.in_height > 0 && x->source->spec->model.in_width > 0;
	if (!rc && i->height > 0 && !scaled && (image.height != i->height || image.width != i->width))
		rc = err_set(err, ERR_INVALID_DATA, NULL,
			"it is %lldx%lld, the first image %lldx%lld (height, width); with in_height and "
			"in_width in the model's config images are scaled",
			(long long)image.height, (long long)image.width, (long long)i->height,
			(long long)i->width);
	if (!rc && i->channels > 0)
		rc = data_image_channels(&image, i->channels, err);
	if (!rc && i->height > 0)
		rc = data_image_resize(&image, i->height, i->width, err);
	if (rc)
		data_image_finish(&image);
	else
		*ret = image;
	return rc;
}

static int decode_waiting(void *ctx, int64_t i, struct err *err)
{
	struct tar *x = ctx;
	const struct waiting *w = &x->waiting[i];
	struct data_image image = { 0 };
	struct err why = { 0 };
	int rc = decode_to_size(x, w, &image, &why);
	if (rc == ERR_INVALID_DATA || rc == ERR_UNAVAILABLE)
		return bad_image(x, w, rc, &why, err);
	if (!rc) {
		int64_t bytes = image.height * image.width * image.channels;
		rc = data_scratch_write(
			&x->d->scratch[0], w->index * bytes, image.pixels, (size_t)bytes, &why);
	}
	data_image_finish(&image);
	if (rc && err)
		*err = why;
	return rc;
}

static void drop_waiting(struct tar *x)
{
	for (int i = 0; i < x->waiting_count; i++)
		free(x->waiting[i].bytes);
	x->waiting_count = 0;
	x->waiting_bytes = 0;
}

static int decode_batch(struct tar *x, struct err *err)
{
	int rc = data_parallel(x->source->threads, x->waiting_count, decode_waiting, x, err);
	drop_waiting(x);
	return rc;
}

/* Size and channels that all images get, from the spec or from the first image. */
static int find_size(struct tar *x, const struct waiting *w, struct err *err)
{
	struct data_info *i = &x->d->info;
	const struct spec_model *m = &x->source->spec->model;
	struct data_image image = { 0 };
	struct err why = { 0 };
	int rc = decode(w, &image, &why);
	if (rc == ERR_INVALID_DATA || rc == ERR_UNAVAILABLE)
		return bad_image(x, w, rc, &why, err);
	if (rc) {
		if (err)
			*err = why;
		return rc;
	}
	bool scaled = m->in_height > 0 && m->in_width > 0;
	i->height = scaled ? m->in_height : image.height;
	i->width = scaled ? m->in_width : image.width;
	i->channels = m->in_channels > 0 ? m->in_channels : image.channels;
	data_image_finish(&image);
	if (i->channels != 1 && i->channels != 3)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"images have 1 or 3 channels, the model takes %lld", (long long)i->channels);
	return 0;
}

static int read_image(struct tar *x, const char *name, int64_t size, struct err *err)
{
	if (size > IMAGE_FILE_MAX_BYTES || size < 1)
		return bad_entry(x, name, "an image has 1 byte to 64 MiB", err);
	struct waiting *w = &x->waiting[x->waiting_count];
	int rc = read_entry(x, name, size, &w->bytes, err);
	if (rc)
		return rc;
	w->count = (size_t)size;
	w->index = x->images.count;
	(void)snprintf(w->name, sizeof(w->name), "%s", name);
	x->waiting_count++;
	x->waiting_bytes += w->count;
	if (w->index == 0)
		rc = find_size(x, w, err);
	if (!rc)
		rc = put_record(x, &x->images, name, w->index, err);
	if (!rc && (x->waiting_count == x->waiting_max || x->waiting_bytes > BATCH_MAX_BYTES))
		rc = decode_batch(x, err);
	return rc;
}

static int one_entry(struct tar *x, struct archive_entry *entry, struct err *err)
{
	const char *name = archive_entry_pathname_utf8(entry);
	if (!name)
		name = archive_entry_pathname(entry);
	if (!name || strlen(name) >= NAME_MAX_BYTES)
		return bad_entry(x, "(unnamed)", "its name is missing or longer than 4095 bytes", err);
	if (archive_entry_filetype(entry) == AE_IFDIR)
		return 0;
	if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry))
		return bad_entry(x, name, "it is no regular file", err);
	int64_t size = archive_entry_size(entry);
	if (size < 0)
		return bad_entry(x, name, "its size is negative", err);
	int rc = check_ratio(x, name, size, err);
	const char *slash = strrchr(name, '/'), *leaf = slash ? slash + 1 : name;
	const char *dot = strrchr(leaf, '.');
	if (rc || !dot || leaf[0] == '.')
		return rc;
	if (strcasecmp(dot, ".cls") == 0)
		return read_class(x, name, size, err);
	if (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 ||
		strcasecmp(dot, ".jpeg") == 0)
		return read_image(x, name, size, err);
	return 0;
}

/* A tar ends in blocks of zeros; without them something may be missing. */
static int check_end(const struct tar *x, struct err *err)
{
	const struct data_map *m = x->map;
	size_t at = m->size >= TAR_BLOCK_BYTES ? m->size - TAR_BLOCK_BYTES : 0;
	while (at < m->size && m->bytes[at] == 0)
		at++;
	if (archive_filter_count(x->archive) > 1 || at == m->size)
		return 0;
	return err_set(err, ERR_INVALID_DATA, x->source->param,
		"file %s is truncated: it has no blocks of zeros at its end (offset %zu)", m->label,
		m->size);
}

static int read_entries(struct tar *x, struct err *err)
{
	/* archive_read_open_memory takes no const; nothing is written. */
	union {
		const unsigned char *in;
		void *out;
	} p = { .in = x->map->bytes };
	if (archive_read_support_format_tar(x->archive) != ARCHIVE_OK ||
		archive_read_support_filter_gzip(x->archive) < ARCHIVE_WARN ||
		archive_read_open_memory(x->archive, p.out, x->map->size) != ARCHIVE_OK)
		return bad_archive(x, err);
	for (;;) {
		struct archive_entry *entry;
		int got = archive_read_next_header(x->archive, &entry);
		if (got == ARCHIVE_EOF)
			return check_end(x, err);
		if (got < ARCHIVE_WARN)
			return bad_archive(x, err);
		int rc = one_entry(x, entry, err);
		if (rc)
			return rc;
	}
}

static int read_tar(struct tar *x, struct err *err)
{
	x->archive = archive_read_new();
	if (!x->archive)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a tar");
	int rc = read_entries(x, err);
	if (!rc)
		rc = decode_batch(x, err);
	drop_waiting(x);
	archive_read_free(x->archive);
	return rc;
}

static int compare_names(const void *a, const void *b, void *names)
{
	const struct record *x = a, *y = b;
	const char *all = names;
	size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
	int order = memcmp(all + x->name, all + y->name, n);
	return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static void sort(struct tar *x, struct records *r)
{
	qsort_r(r->at, (size_t)r->count, sizeof(*r->at), compare_names, x->names.data);
}

static int bad_record(
	const struct tar *x, const struct record *r, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID_DATA, x->source->param, "image %.*s: %s",
		r->name_bytes > 256 ? 256 : (int)r->name_bytes, x->names.data + r->name, what);
}

/* Both lists are sorted. */
static int match_classes(struct tar *x, int32_t *labels, struct err *err)
{
	int64_t k = 0;
	sort(x, &x->classes);
	for (int64_t i = 1; i < x->classes.count; i++)
		if (compare_names(&x->classes.at[i], &x->classes.at[i - 1], x->names.data) == 0)
			return bad_record(x, &x->classes.at[i], "there are two .cls files of this name", err);
	sort(x, &x->images);
	for (int64_t i = 0; i < x->images.count; i++) {
		const struct record *image = &x->images.at[i];
		while (k < x->classes.count && compare_names(&x->classes.at[k], image, x->names.data) < 0)
			k++;
		if (k == x->classes.count || compare_names(&x->classes.at[k], image, x->names.data) != 0)
			return bad_record(x, image, "there is no .cls file beside it, as beside others", err);
		labels[image->value] = (int32_t)x->classes.at[k].value;
	}
	return 0;
}

/* The name of the folder that an image lies in becomes the record's name. */
static int keep_folder(const struct tar *x, struct record *r, struct err *err)
{
	const char *name = x->names.data + r->name;
	const char *end = memrchr(name, '/', r->name_bytes);
	if (!end || end == name)
		return bad_record(
			x, r, "its class is unknown: it lies in no folder and has no .cls file beside it", err);
	const char *begin = memrchr(name, '/', (size_t)(end - name));
	begin = begin ? begin + 1 : name;
	r->name += (size_t)(begin - name);
	r->name_bytes = (size_t)(end - begin);
	return 0;
}

static int number_folders(struct tar *x, int32_t *labels, struct err *err)
{
	struct buf names = { 0 };
	buf_init(&names, SIZE_MAX / 2);
	for (int64_t i = 0; i < x->images.count; i++) {
		int rc = keep_folder(x, &x->images.at[i], err);
		if (rc)
			return rc;
	}
	sort(x, &x->images);
	int32_t class = -1;
	for (int64_t i = 0; i < x->images.count; i++) {
		const struct record *r = &x->images.at[i];
		if (i == 0 || compare_names(r, r - 1, x->names.data) != 0) {
			class ++;
			buf_append(&names, x->names.data + r->name, r->name_bytes);
			buf_char(&names, '\n');
		}
		labels[r->value] = class;
	}
	size_t ignored;
	x->d->class_names = buf_take(&names, &ignored);
	return x->d->class_names ? 0
							 : err_set(err, ERR_NO_MEMORY, NULL, "no memory for names of classes");
}

static int write_labels(struct tar *x, struct err *err)
{
	struct data *d = x->d;
	int64_t count = x->images.count;
	cleanup(freep) int32_t *labels = calloc((size_t)count, sizeof(*labels));
	if (!labels)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for labels");
	int rc = x->classes.count > 0 ? match_classes(x, labels, err) : number_folders(x, labels, err);
	size_t bytes = (size_t)count * sizeof(*labels);
	if (!rc)
		rc = data_scratch_open(&d->scratch[1], x->source, err);
	if (!rc)
		rc = data_scratch_write(&d->scratch[1], 0, labels, bytes, err);
	return rc ? rc : data_scratch_map(&d->scratch[1], (int64_t)bytes, err);
}

static int finish(struct tar *x, struct err *err)
{
	struct data *d = x->d;
	int64_t count = x->images.count;
	if (count == 0)
		return err_set(err, ERR_INVALID_DATA, x->source->param,
			"file %s has no entry that ends in .png, .jpg or .jpeg", d->map[0].label);
	int64_t bytes = count * d->info.height * d->info.width * d->info.channels;
	int rc = data_scratch_map(&d->scratch[0], bytes, err);
	if (!rc)
		rc = write_labels(x, err);
	if (rc)
		return rc;
	struct data_array pixels = { .bytes = d->scratch[0].bytes,
		.label = d->map[0].label,
		.shape_at = "its images",
		.dim = { count, d->info.height, d->info.width, d->info.channels },
		.type = DATA_U8,
		.rank = 4 };
	struct data_array labels = { .bytes = d->scratch[1].bytes,
		.label = d->map[0].label,
		.shape_at = "its entries",
		.dim = { count },
		.type = DATA_I32,
		.rank = 1 };
	return data_array_attach(d, &pixels, &labels, x->source, err);
}

int data_image_tar_open(struct data *d, const struct data_source *s, struct err *err)
{
	struct tar x = { .d = d, .source = s, .waiting_max = s->threads * BATCH_FILES_PER_THREAD };
	buf_init(&x.names, SIZE_MAX / 2);
	x.waiting = calloc((size_t)x.waiting_max, sizeof(*x.waiting));
	if (!x.waiting)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to read a tar");
	int rc = data_scratch_open(&d->scratch[0], s, err);
	for (int i = 0; i < d->map_count && !rc; i++) {
		x.map = &d->map[i];
		rc = read_tar(&x, err);
	}
	if (!rc)
		rc = finish(&x, err);
	free(x.waiting);
	free(x.images.at);
	free(x.classes.at);
	buf_finish(&x.names);
	return rc;
}
