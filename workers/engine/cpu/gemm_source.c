/* SPDX-License-Identifier: Apache-2.0
 * Reads lines of operands that are not plain matrices: grouped rows and patches of images. What is
 * read goes into a thread's scratch, where packing sees a plain matrix. Called by gemm.c. */
#include "workers/engine/cpu/gemm_private.h"

#include <string.h>

/* One line of patches: where its pixel's taps begin. */
struct pixel {
	const char *image;
	int64_t y, x; /* of tap 0, before holes */
};

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

/* The tensor's row that tap ky reads; NULL: outside or in a hole. */
static const char *tap_row(
	const struct gemm_patches *p, const struct pixel *at, int64_t ky, int64_t size)
{
	int64_t vy = at->y + ky * p->tap_step;
	if (vy < 0 || vy % p->hole != 0 || vy / p->hole >= p->h)
		return NULL;
	return at->image + vy / p->hole * p->w * p->c * size;
}

/* Bytes [begin, end) of the kernel's row, whose taps lie side by side in the tensor. */
static void read_row(const struct gemm_patches *p, const char *row, int64_t x, int64_t size,
	int64_t begin, int64_t end, char *dst)
{
	const int64_t pixel_bytes = p->c * size;
	int64_t inside = clamp(-x * pixel_bytes, begin, end);
	int64_t outside = clamp((p->w - x) * pixel_bytes, inside, end);
	if (inside > begin)
		memset(dst, 0, (size_t)(inside - begin));
	if (outside > inside)
		memcpy(dst + inside - begin, row + x * pixel_bytes + inside, (size_t)(outside - inside));
	if (end > outside)
		memset(dst + outside - begin, 0, (size_t)(end - outside));
}

/* The same tap by tap: with holes, or with the taps mirrored. */
static void read_taps(const struct gemm_patches *p, const char *row, int64_t x, int64_t size,
	int64_t begin, int64_t end, char *dst)
{
	const int64_t pixel_bytes = p->c * size;
	while (begin < end) {
		int64_t kx = begin / pixel_bytes, from = begin % pixel_bytes;
		int64_t bytes = pixel_bytes - from < end - begin ? pixel_bytes - from : end - begin;
		int64_t vx = x + kx * p->tap_step;
		if (vx < 0 || vx % p->hole != 0 || vx / p->hole >= p->w)
			memset(dst, 0, (size_t)bytes);
		else
			memcpy(dst, row + vx / p->hole * pixel_bytes + from, (size_t)bytes);
		dst += bytes;
		begin += bytes;
	}
}

static void read_pixel(const struct gemm_patches *p, const struct pixel *at, int64_t size,
	int64_t first, int64_t count, char *dst)
{
	const int64_t row_bytes = p->kernel_w * p->c * size;
	int64_t begin = first * size, end = (first + count) * size;
	while (begin < end) {
		int64_t ky = begin / row_bytes, from = begin % row_bytes;
		int64_t to = from + end - begin < row_bytes ? from + end - begin : row_bytes;
		const char *row = tap_row(p, at, ky, size);
		if (!row)
			memset(dst, 0, (size_t)(to - from));
		else if (p->hole == 1 && p->tap_step == 1)
			read_row(p, row, at->x, size, from, to, dst);
		else
			read_taps(p, row, at->x, size, from, to, dst);
		dst += to - from;
		begin += to - from;
	}
}

static void read_patches(const struct gemm_source *s, int64_t line, int64_t lines, int64_t size,
	int64_t first, int64_t count, char *dst, int64_t line_bytes)
{
	const struct gemm_patches *p = s->patches;
	int64_t ox = line % p->out_w, oy = line / p->out_w % p->out_h;
	int64_t image = line / p->out_w / p->out_h;
	for (int64_t i = 0; i < lines; i++, dst += line_bytes) {
		struct pixel at = { .image = (const char *)s->base + image * p->h * p->w * p->c * size,
			.y = oy * p->stride + p->origin_y,
			.x = ox * p->stride + p->origin_x };
		read_pixel(p, &at, size, first, count, dst);
		if (++ox < p->out_w)
			continue;
		ox = 0;
		if (++oy < p->out_h)
			continue;
		oy = 0;
		image++;
	}
}

void gemm_source_read(const struct gemm_source *s, int64_t line, int64_t lines, int64_t first,
	int64_t count, char *dst, int64_t line_bytes)
{
	const int64_t size = s->type == GEMM_F32 ? 4 : 2;
	if (s->patches) {
		read_patches(s, line, lines, size, first, count, dst, line_bytes);
		return;
	}
	for (int64_t i = 0; i < lines; i++, line++, dst += line_bytes) {
		int64_t at = s->group ? line / s->group * s->group_stride + line % s->group * s->row_stride
							  : line * s->row_stride;
		memcpy(dst, (const char *)s->base + (at + first) * size, (size_t)(count * size));
	}
}
