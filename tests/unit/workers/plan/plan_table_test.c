/* SPDX-License-Identifier: Apache-2.0
 * The plan's table: its numbers are the plan's, and it names what it counts and assumes. */
#include "tests/unit/workers/plan/plan_fixture.h"
#include "workers/plan/plan_table.h"

#include <stdio.h>

static void expect(const struct buf *out, const char *fmt, ...) printf_like(2, 3);

static void expect(const struct buf *out, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!strstr(buf_cstr(out), text))
		fail_msg("\"%s\" is not in:\n%s", text, buf_cstr(out));
}

static void test_gpt2(void **state)
{
	struct job_spec s = fixture_gpt2(12, 12, 768, 1024, 50257);
	s.precision = SPEC_BF16;
	s.checkpointing = SPEC_FULL;
	struct plan *p = fixture_compile(&s);
	struct buf out;
	buf_init(&out, 64 * 1024);
	assert_int_equal(plan_table_write(p, &out, &err), 0);
	expect(&out, "124,439,808, of them trained 124,439,808");
	expect(&out, "8 (micro-batches: 2 of 4), sequences of 1,024 tokens");
	expect(&out, "steps            known with the data");
	for (int k = 0; k < PLAN_KIND_COUNT; k++)
		expect(&out, "%.1f\n", (double)p->kind_bytes[k] / (1024 * 1024));
	expect(&out, "allocated");
	expect(&out, "per token              %.4g", p->flops_per_token);
	expect(&out, "recomputed per step    %.4g", p->recompute_flops_per_step);
	expect(&out, "%s", PLAN_FLOP_CONVENTION);
	expect(&out, "were it bound by 700 GFLOP/s or 20 GB/s alone");
	/* Twelve layers and two micro-batches; 2 m k n FLOPs each. */
	expect(&out, " 12 %9.3g", 2 * 12 * 2 * 4096.0 * 768 * 3072 * 1e-9);
	expect(&out, "transformer.h.*.mlp.c_fc (again)\n");
	/* The head is the longest: 6 m k n. */
	const char *first = strstr(buf_cstr(&out), "operation ");
	assert_non_null(strstr(strchr(first, '\n'), "classifier"));
	buf_finish(&out);
	plan_destroy(p);
}

static void test_every_family(void **state)
{
	struct job_spec specs[] = { fixture_cnn(), fixture_mlp(), fixture_dlrm(),
		fixture_llama(2, 4, 2, 32, 48, 8, 256) };
	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		specs[i].hyper.max_steps = 12345;
		struct plan *p = fixture_compile(&specs[i]);
		struct buf out;
		buf_init(&out, 64 * 1024);
		assert_int_equal(plan_table_write(p, &out, &err), 0);
		expect(&out, "steps            12,345");
		expect(&out, p->head >= 0 ? "per sequence" : "per sample");
		assert_null(strstr(buf_cstr(&out), "nan"));
		assert_null(strstr(buf_cstr(&out), "unknown"));
		buf_finish(&out);
		buf_init(&out, 100);
		assert_int_equal(plan_table_write(p, &out, &err), ERR_TOO_LARGE);
		buf_finish(&out);
		plan_destroy(p);
	}
}

/* What has no row of its own is in one together: the shares still add up. */
static void test_others(void **state)
{
	enum { OPS = 600, NAME = 16 };
	struct job_spec s = fixture_mlp();
	struct plan *p = fixture_compile(&s), many = *p;
	char names[OPS][NAME];
	struct plan_op ops[OPS];
	for (int i = 0; i < OPS; i++) {
		snprintf(names[i], NAME, "op_%d", i);
		ops[i] = (struct plan_op){ .name = names[i], .kind = PLAN_OP_ADD, .flops = 1e9 };
		ops[i].phase = PLAN_OPTIMIZE;
	}
	many.ops = ops;
	many.op_count = OPS;
	struct buf out;
	buf_init(&out, 64 * 1024);
	assert_int_equal(plan_table_write(&many, &out, &err), 0);
	expect(&out, "%5.1f%% ", 100.0 * (OPS - 512) / OPS);
	expect(&out, " %6d %9.3g %9.3g  %-24s (others)\n", OPS - 512, OPS - 512.0, 0.0, "");
	buf_finish(&out);
	plan_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gpt2),
		cmocka_unit_test(test_every_family),
		cmocka_unit_test(test_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
