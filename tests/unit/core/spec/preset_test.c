/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/preset.c. */
#include "core/spec/preset.h"
#include "tests/support/check.h"

static void every_row_is_found_by_its_name(void **state)
{
	size_t count = 0;
	const struct preset *all = preset_all(&count);
	assert_true(count >= 20);
	for (size_t i = 0; i < count; i++) {
		assert_ptr_equal(preset_find(all[i].name), &all[i]);
		assert_true(strlen(all[i].summary) > 10);
		assert_true(strlen(all[i].name) <= 32); /* the pattern of ModelId */
	}
	assert_null(preset_find("gpt2"));
	assert_null(preset_find(""));
}

/* ------------------------------------------------------------------ counted by hand */

static int64_t dense(const int64_t *widths, int count, int64_t in, int64_t out)
{
	int64_t sum = 0;
	for (int i = 0; i < count; i++) {
		sum += in * widths[i] + widths[i];
		in = widths[i];
	}
	return out ? sum + in * out + out : sum;
}

static int64_t gpt2(const struct spec_model *m)
{
	int64_t c = m->n_embd, inner = m->n_inner;
	int64_t attention = 4 * c * c + 4 * c, mlp = 2 * c * inner + inner + c;
	return m->n_layer * (attention + mlp + 4 * c) + (m->vocab_size + m->n_positions) * c + 2 * c;
}

static int64_t llama(const struct spec_model *m)
{
	int64_t c = m->n_embd, kv = c / m->n_head * m->n_kv_head;
	int64_t layer = 2 * c * c + 2 * c * kv + 3 * c * m->n_inner + 2 * c;
	return m->n_layer * layer + m->vocab_size * c * (m->tied ? 1 : 2) + c;
}

static int64_t plain(const struct spec_model *m)
{
	int64_t sum = 0, in = m->in_channels, side = m->in_height;
	for (int s = 0; s < m->channel_count; s++, side /= 2) {
		for (int b = 0; b < m->blocks_per_stage; b++) {
			sum += 9 * in * m->channels[s] + m->channels[s];
			in = m->channels[s];
		}
	}
	return sum + dense(m->hidden, m->hidden_count, in * side * side, m->n_classes);
}

/* He et al. 2015, option B; a batch norm of two numbers a channel follows each convolution. */
static int64_t residual(const struct spec_model *m)
{
	bool wide = m->block == SPEC_BLOCK_BOTTLENECK;
	int64_t in = 64, kernel = m->stem == SPEC_STEM_7 ? 49 : 9;
	int64_t sum = kernel * m->in_channels * in + 2 * in;
	for (int s = 0; s < m->channel_count; s++) {
		int64_t c = m->channels[s], out = wide ? 4 * c : c;
		for (int64_t b = 0; b < m->blocks[s]; b++) {
			if (wide)
				sum += in * c + 9 * c * c + c * out + 2 * (2 * c + out);
			else
				sum += 9 * in * c + 9 * c * c + 2 * 2 * c;
			if (in != out || (b == 0 && s > 0))
				sum += in * out + 2 * out;
			in = out;
		}
	}
	return sum + in * m->n_classes + m->n_classes;
}

static int64_t dlrm(const struct spec_model *m)
{
	int64_t rows = 0, vectors = m->table_count + 1;
	for (int i = 0; i < m->table_count; i++)
		rows += m->table_rows[i];
	int64_t pairs = vectors * (vectors - 1) / 2;
	return rows * m->embedding_dim + dense(m->hidden, m->hidden_count, m->dense_features, 0) +
		dense(m->top, m->top_count, pairs + m->embedding_dim, 1);
}

static int64_t parameters(const struct spec_model *m)
{
	switch (m->family) {
	case SPEC_GPT2: return gpt2(m);
	case SPEC_LLAMA: return llama(m);
	case SPEC_DLRM: return dlrm(m);
	case SPEC_CNN: return m->block == SPEC_BLOCK_PLAIN ? plain(m) : residual(m);
	default:
		return dense(
			m->hidden, m->hidden_count, m->in_channels * m->in_height * m->in_width, m->n_classes);
	}
}

static void the_counts_are_those_of_the_shapes(void **state)
{
	size_t count;
	const struct preset *all = preset_all(&count);
	for (size_t i = 0; i < count; i++) {
		if (parameters(&all[i].model) != all[i].parameters)
			fail_msg("%s has %lld parameters, not %lld", all[i].name,
				(long long)parameters(&all[i].model), (long long)all[i].parameters);
	}
}

/* Figures that others publish for the same shapes. */
static void the_counts_are_the_published_ones(void **state)
{
	static const struct {
		const char *name;
		int64_t parameters;
	} published[] = {
		{ "gpt2-124m", 124439808 },
		{ "gpt2-350m", 354823168 },
		{ "gpt2-774m", 774030080 },
		{ "gpt2-1.5b", 1557611200 },
		{ "llama-1b", 1235814400 },
		{ "llama-7b", 6738415616 },
		{ "llama-8b", 8030261248 },
		{ "llama-13b", 13015864320 },
		{ "llama-70b", 68976648192 },
		{ "resnet-18", 11689512 },
		{ "resnet-50", 25557032 },
	};
	for (size_t i = 0; i < ARRAY_LEN(published); i++)
		assert_true(preset_find(published[i].name)->parameters == published[i].parameters);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_is_found_by_its_name),
		cmocka_unit_test(the_counts_are_those_of_the_shapes),
		cmocka_unit_test(the_counts_are_the_published_ones),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
