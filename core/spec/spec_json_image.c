/* SPDX-License-Identifier: Apache-2.0
 * The configs of mlp and cnn. Called by spec_json_model.c. */
#include "core/spec/spec_json_private.h"

enum {
	CHANNELS_IN_MAX = 1024,
	SIDE_MAX = 8192,
	CLASSES_MAX = 64 * 1024,
	BLOCKS_DEFAULT = 2,
};

/* null or "auto" stays 0: known once the data has been read. */
static void data_i64(struct json_obj *o, const char *key, int64_t max, int64_t *ret)
{
	if (!spec_json_is_auto(o, key))
		json_obj_i64(o, key, 1, max, ret);
}

static void read_sample_shape(struct json_obj *o, struct spec_model *m)
{
	data_i64(o, "in_channels", CHANNELS_IN_MAX, &m->in_channels);
	data_i64(o, "in_height", SIDE_MAX, &m->in_height);
	data_i64(o, "in_width", SIDE_MAX, &m->in_width);
	data_i64(o, "n_classes", CLASSES_MAX, &m->n_classes);
	if (!o->code && m->in_channels * m->in_height * m->in_width > SPEC_SAMPLE_VALUES_MAX)
		json_obj_fail(o, ERR_INVALID_VALUE, "in_height",
			"%s: a sample of %lld x %lld x %lld has more than %d values", o->path,
			(long long)m->in_channels, (long long)m->in_height, (long long)m->in_width,
			SPEC_SAMPLE_VALUES_MAX);
}

void spec_json_mlp_read(struct json_obj *o, struct spec_model *m)
{
	json_obj_need(o, "hidden");
	spec_json_widths(
		o, "hidden", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->hidden, &m->hidden_count);
	read_sample_shape(o, m);
}

static void read_plain(struct json_obj *o, struct spec_model *m)
{
	static const char why[] = "stages of block \"plain\" have blocks_per_stage instead";
	m->blocks_per_stage = BLOCKS_DEFAULT;
	json_obj_i64(o, "blocks_per_stage", 1, SPEC_BLOCKS_MAX, &m->blocks_per_stage);
	spec_json_widths(
		o, "hidden", SPEC_LAYERS_MAX, SPEC_HIDDEN_UNITS_MAX, m->hidden, &m->hidden_count);
	spec_json_refuse(o, "stem", "a network of block \"plain\" has none");
	spec_json_refuse(o, "blocks", why);
}

static void read_residual(struct json_obj *o, struct spec_model *m)
{
	int stem = SPEC_STEM_3;
	int count = 0;
	json_obj_word(o, "stem", spec_json_stem_words, &stem);
	m->stem = (enum spec_stem)stem;
	json_obj_need(o, "blocks");
	spec_json_widths(o, "blocks", SPEC_CHANNELS_MAX, SPEC_LAYERS_MAX, m->blocks, &count);
	if (!o->code && count != m->channel_count)
		json_obj_fail(o, ERR_INVALID_VALUE, "blocks",
			"%s.blocks has %d stages, channels has %d: give one number for each", o->path, count,
			m->channel_count);
	spec_json_refuse(
		o, "blocks_per_stage", "a residual network has blocks, a number for each stage");
	spec_json_refuse(o, "hidden", "a residual network ends in a pool and the classifier");
}

void spec_json_cnn_read(struct json_obj *o, struct spec_model *m)
{
	int block = SPEC_BLOCK_PLAIN;
	json_obj_word(o, "block", spec_json_block_words, &block);
	m->block = (enum spec_block)block;
	json_obj_need(o, "channels");
	spec_json_widths(
		o, "channels", SPEC_CHANNELS_MAX, SPEC_CHANNEL_MAX, m->channels, &m->channel_count);
	if (!o->code && m->channel_count == 0)
		json_obj_fail(
			o, ERR_INVALID_VALUE, "channels", "%s.channels needs at least one stage", o->path);
	if (m->block == SPEC_BLOCK_PLAIN)
		read_plain(o, m);
	else
		read_residual(o, m);
	read_sample_shape(o, m);
}
