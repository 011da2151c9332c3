/* SPDX-License-Identifier: Apache-2.0
 * Tests core/spec/preset.c. */
#include "core/spec/preset.h"
#include "tests/support/check.h"

static void every_row_is_found_by_its_name(void **state)
{
	size_t count = 0;
	const struct preset *all = preset_all(&count);
	assert_true(count >= 4);
	for (size_t i = 0; i < count; i++) {
		assert_ptr_equal(preset_find(all[i].name), &all[i]);
		assert_true(strlen(all[i].summary) > 10);
		assert_true(strlen(all[i].name) < SPEC_ID_MAX);
	}
	assert_null(preset_find("gpt2"));
	assert_null(preset_find(""));
}

/* The name promises a size: 124 million parameters, tied embeddings counted once. */
static void gpt2_124m_has_124_million(void **state)
{
	const struct spec_model *m = &preset_find("gpt2-124m")->model;
	int64_t c = m->n_embd;
	int64_t block = 12 * c * c + 13 * c;
	int64_t total = m->n_layer * block + (m->vocab_size + m->n_positions) * c + 2 * c;
	assert_int_equal(total, 124439808);
	assert_int_equal(c % m->n_head, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_is_found_by_its_name),
		cmocka_unit_test(gpt2_124m_has_124_million),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
