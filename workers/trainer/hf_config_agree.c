/* SPDX-License-Identifier: Apache-2.0
 * Comparing the config of a spec with that of the files it starts from. Part of hf_config.h. */
#include "workers/trainer/hf_config.h"

#include "core/spec/spec_json.h"

#include <stddef.h>
#include <string.h>

/* Numbers of a config, by family; lists have their count first. */
enum kind { NUMBER, REAL, FLAG, LIST, CHOICE };
struct field {
	const char *name;
	enum kind kind;
	size_t at, count_at;
};
#define AT(member) offsetof(struct spec_model, member)

static const struct field gpt2_fields[] = {
	{ "n_layer", NUMBER, AT(n_layer), 0 },
	{ "n_head", NUMBER, AT(n_head), 0 },
	{ "n_embd", NUMBER, AT(n_embd), 0 },
	{ "n_positions", NUMBER, AT(n_positions), 0 },
	{ "vocab_size", NUMBER, AT(vocab_size), 0 },
	{ "n_inner", NUMBER, AT(n_inner), 0 },
	{ "layer_norm_epsilon", REAL, AT(norm_eps), 0 },
};
static const struct field llama_fields[] = {
	{ "num_hidden_layers", NUMBER, AT(n_layer), 0 },
	{ "num_attention_heads", NUMBER, AT(n_head), 0 },
	{ "num_key_value_heads", NUMBER, AT(n_kv_head), 0 },
	{ "hidden_size", NUMBER, AT(n_embd), 0 },
	{ "intermediate_size", NUMBER, AT(n_inner), 0 },
	{ "max_position_embeddings", NUMBER, AT(n_positions), 0 },
	{ "vocab_size", NUMBER, AT(vocab_size), 0 },
	{ "rms_norm_eps", REAL, AT(norm_eps), 0 },
	{ "rope_theta", REAL, AT(rope_theta), 0 },
	{ "tie_word_embeddings", FLAG, AT(tied), 0 },
};
static const struct field image_fields[] = {
	{ "hidden", LIST, AT(hidden), AT(hidden_count) },
	{ "channels", LIST, AT(channels), AT(channel_count) },
	{ "blocks_per_stage", NUMBER, AT(blocks_per_stage), 0 },
	{ "block", CHOICE, AT(block), 0 },
	{ "stem", CHOICE, AT(stem), 0 },
	{ "blocks", LIST, AT(blocks), AT(channel_count) },
	{ "in_channels", NUMBER, AT(in_channels), 0 },
	{ "in_height", NUMBER, AT(in_height), 0 },
	{ "in_width", NUMBER, AT(in_width), 0 },
	{ "n_classes", NUMBER, AT(n_classes), 0 },
};
static const struct field dlrm_fields[] = {
	{ "dense_features", NUMBER, AT(dense_features), 0 },
	{ "embedding_dim", NUMBER, AT(embedding_dim), 0 },
	{ "lookups", NUMBER, AT(lookups), 0 },
	{ "table_rows", LIST, AT(table_rows), AT(table_count) },
	{ "bottom", LIST, AT(hidden), AT(hidden_count) },
	{ "top", LIST, AT(top), AT(top_count) },
};

static const struct field *fields_of(enum spec_family family, size_t *ret_count)
{
	switch (family) {
	case SPEC_GPT2: *ret_count = ARRAY_LEN(gpt2_fields); return gpt2_fields;
	case SPEC_LLAMA: *ret_count = ARRAY_LEN(llama_fields); return llama_fields;
	case SPEC_DLRM: *ret_count = ARRAY_LEN(dlrm_fields); return dlrm_fields;
	default: *ret_count = ARRAY_LEN(image_fields); return image_fields;
	}
}

/* True when the two are the same, or one leaves it open. */
static bool agree(const struct field *f, struct spec_model *spec, const struct spec_model *files)
{
	char *a = (char *)spec + f->at;
	const char *b = (const char *)files + f->at;
	int64_t left, right;
	int counts[2];
	switch (f->kind) {
	case NUMBER:
		memcpy(&left, a, sizeof(left));
		memcpy(&right, b, sizeof(right));
		if (left == 0)
			memcpy(a, b, sizeof(right));
		return left == right || left == 0 || right == 0;
	case REAL: return memcmp(a, b, sizeof(double)) == 0;
	case FLAG: return memcmp(a, b, sizeof(bool)) == 0;
	case CHOICE: return memcmp(a, b, sizeof(spec->block)) == 0;
	case LIST:
		memcpy(&counts[0], (const char *)spec + f->count_at, sizeof(int));
		memcpy(&counts[1], (const char *)files + f->count_at, sizeof(int));
		return counts[0] == counts[1] && memcmp(a, b, sizeof(int64_t) * (size_t)counts[0]) == 0;
	}
	return false;
}

int hf_config_agree(struct spec_model *spec, const struct spec_model *files, struct err *err)
{
	size_t count = 0;
	if (spec->family != files->family)
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.family",
			"$.model.config.family is %s, the files hold a model of the family %s",
			spec_family_word(spec->family), spec_family_word(files->family));
	const struct field *fields = fields_of(spec->family, &count);
	for (size_t i = 0; i < count; i++)
		if (!agree(&fields[i], spec, files))
			return err_set(err, ERR_INVALID_VALUE, "$.model.config",
				"$.model.config.%s is not that of the files which training starts from",
				fields[i].name);
	return 0;
}
