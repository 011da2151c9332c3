/* SPDX-License-Identifier: Apache-2.0
 * Images in memory: channels and size. Called by data_image_tar.c and the decoders. */
#include "workers/engine/data/data_image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void data_image_finish(struct data_image *i)
{
	free(i->pixels);
	*i = (struct data_image){ 0 };
}

int data_image_init(
	struct data_image *i, int64_t height, int64_t width, int64_t channels, struct err *err)
{
	unsigned char *pixels = malloc((size_t)(height * width * channels));
	if (!pixels)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for an image");
	*i = (struct data_image){ height, width, channels, pixels };
	return 0;
}

int data_image_channels(struct data_image *i, int64_t channels, struct err *err)
{
	if (i->channels == channels)
		return 0;
	struct data_image other;
	int rc = data_image_init(&other, i->height, i->width, channels, err);
	if (rc)
		return rc;
	for (int64_t k = 0; k < i->height * i->width; k++) {
		const unsigned char *p = i->pixels + k * i->channels;
		if (channels == 1)
			other.pixels[k] = (unsigned char)((299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000);
		else
			memset(other.pixels + k * channels, p[0], (size_t)channels);
	}
	data_image_finish(i);
	*i = other;
	return 0;
}

/* Which pixels of a line of the source make a pixel of the result. */
struct tap {
	int64_t first, count;
	float *weight; /* in the array of all */
};

/* One axis: `from` pixels become `into`, at a scale, cut evenly. One allocation; NULL: none. */
static struct tap *make_taps(int64_t from, int64_t into, double scale)
{
	double support = scale < 1 ? 1 / scale : 1;
	int64_t most = (int64_t)(2 * support) + 2;
	size_t bytes = (size_t)into * (sizeof(struct tap) + (size_t)most * sizeof(float));
	struct tap *tap = malloc(bytes);
	if (!tap)
		return NULL;
	float *weight = (float *)(tap + into);
	double begin = ((double)from - (double)into / scale) / 2;
	for (int64_t i = 0; i < into; i++, weight += most) {
		double centre = begin + ((double)i + 0.5) / scale, sum = 0;
		int64_t first = (int64_t)floor(centre - support), last = (int64_t)floor(centre + support);
		first = first < 0 ? 0 : first;
		last = last >= from ? from - 1 : last;
		struct tap t = { .first = first, .weight = weight };
		for (int64_t k = first; k <= last && t.count < most; k++, t.count++) {
			double distance = fabs((double)k + 0.5 - centre) / support;
			weight[t.count] = (float)(distance < 1 ? 1 - distance : 0);
			sum += (double)weight[t.count];
		}
		for (int64_t k = 0; k < t.count; k++)
			weight[k] = (float)((double)weight[k] / sum);
		tap[i] = t;
	}
	return tap;
}

/* Rows of the source become as wide as the result. */
static void across(const struct data_image *i, const struct tap *taps, int64_t width, float *into)
{
	for (int64_t y = 0; y < i->height; y++) {
		const unsigned char *row = i->pixels + y * i->width * i->channels;
		for (int64_t x = 0; x < width; x++)
			for (int64_t c = 0; c < i->channels; c++) {
				const struct tap *t = &taps[x];
				float sum = 0;
				for (int64_t k = 0; k < t->count; k++)
					sum += t->weight[k] * (float)row[(t->first + k) * i->channels + c];
				*into++ = sum;
			}
	}
}

static void down(
	const float *from, const struct tap *taps, int64_t row, int64_t height, unsigned char *into)
{
	for (int64_t y = 0; y < height; y++)
		for (int64_t x = 0; x < row; x++) {
			const struct tap *t = &taps[y];
			float sum = 0;
			for (int64_t k = 0; k < t->count; k++)
				sum += t->weight[k] * from[(t->first + k) * row + x];
			sum += 0.5f;
			*into++ = (unsigned char)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
		}
}

int data_image_resize(struct data_image *i, int64_t height, int64_t width, struct err *err)
{
	if (i->height == height && i->width == width)
		return 0;
	double scale = fmax((double)height / (double)i->height, (double)width / (double)i->width);
	cleanup(freep) struct tap *x = make_taps(i->width, width, scale);
	cleanup(freep) struct tap *y = make_taps(i->height, height, scale);
	cleanup(freep) float *rows = malloc((size_t)(i->height * width * i->channels) * sizeof(float));
	struct data_image other;
	if (!x || !y || !rows)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory to scale an image");
	int rc = data_image_init(&other, height, width, i->channels, err);
	if (rc)
		return rc;
	across(i, x, width, rows);
	down(rows, y, width * i->channels, height, other.pixels);
	data_image_finish(i);
	*i = other;
	return 0;
}
