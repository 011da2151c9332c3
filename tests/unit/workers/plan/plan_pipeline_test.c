/* SPDX-License-Identifier: Apache-2.0
 * Plans of a pipeline's ranks: the stages have the model between them, each with what it needs and
 * in sections; layers are shared by cost; memory holds what is under way; what cannot be is
 * refused.
 */
#include "tests/unit/workers/plan/plan_fixture.h"

#include "workers/plan/plan_table.h"

#include <stdio.h>

enum { NUMBERS_MAX = 512, RANKS_MAX = 8 };

static struct job_spec spec_of(int layers)
{
	struct job_spec s = fixture_gpt2(layers, 4, 64, 32, 300);
	s.hyper.batch_size = 32;
	s.hyper.micro_batch_size = 2;
	return s;
}

static struct plan *compile_rank(const struct job_spec *s, int rank)
{
	struct plan *p = NULL;
	if (plan_compile_rank(s, NULL, rank, &p, &err))
		fail_msg("rank %d: %s (%s)", rank, err.message, err.param);
	return p;
}

/* Every parameter of the whole model is in one stage, a tied embedding in the first and the last.
 */
static void check_parameters(struct job_spec s, int pipeline, int interleave)
{
	int seen[NUMBERS_MAX] = { 0 };
	s.parallel = (struct spec_parallel){ 0 };
	struct plan *whole = fixture_compile(&s);
	assert_true(whole->param_count <= NUMBERS_MAX);
	s.parallel = (struct spec_parallel){ .pipeline = pipeline, .interleave = interleave };
	for (int rank = 0; rank < pipeline; rank++) {
		struct plan *p = compile_rank(&s, rank);
		assert_int_equal(p->parameter_count, whole->parameter_count);
		assert_int_equal(p->trained_count, whole->trained_count);
		for (int i = 0; i < p->param_count; i++) {
			const struct plan_param *pr = &p->params[i];
			assert_in_range(pr->number, 0, whole->param_count - 1);
			assert_string_equal(pr->name, whole->params[pr->number].name);
			assert_int_equal(pr->count, whole->params[pr->number].count);
			seen[pr->number]++;
			assert_true(!pr->ends || rank == 0 || rank == pipeline - 1);
		}
		plan_destroy(p);
	}
	for (int i = 0; i < whole->param_count; i++)
		assert_int_equal(seen[i], i == 0 && s.model.tied ? 2 : 1);
	plan_destroy(whole);
}

static void test_stages_have_the_model_between_them(void **state)
{
	static const char *const names[] = { "c_attn", "c_fc" };
	(void)state;
	struct job_spec s = spec_of(9), lora = s, llama = fixture_llama(8, 4, 2, 32, 48, 8, 256);
	fixture_lora(&lora, 2, 2, names);
	llama.hyper.batch_size = 32;
	for (int interleave = 1; interleave <= 2; interleave++)
		for (int pipeline = 2; pipeline <= 4; pipeline *= 2) {
			check_parameters(s, pipeline, interleave);
			check_parameters(lora, pipeline, interleave);
			check_parameters(llama, pipeline, interleave);
		}
}

/* Sections follow each other without gaps, each in its phase, and only what comes before body may
 * run beside another section: receives, and waits for what was sent. */
static void check_section(
	const struct plan *p, const struct plan_section *s, enum plan_phase phase, int *at)
{
	assert_int_equal(s->begin, *at);
	assert_true(s->begin <= s->body && s->body < s->end);
	for (int i = s->begin; i < s->end; i++) {
		enum plan_op_kind kind = p->ops[i].kind;
		assert_int_equal(p->ops[i].phase, phase);
		if (i < s->body)
			assert_true(kind == PLAN_OP_RECEIVE || kind == PLAN_OP_WAIT);
		else
			assert_int_not_equal(kind, PLAN_OP_RECEIVE);
	}
	*at = s->end;
}

static void check_sections(const struct plan *p)
{
	int at = 0;
	for (int c = 0; c < p->chunk_count; c++)
		check_section(p, &p->chunks[c].forward, PLAN_FORWARD, &at);
	assert_int_equal(at, p->backward_begin);
	for (int c = p->chunk_count - 1; c >= 0; c--)
		check_section(p, &p->chunks[c].backward, PLAN_BACKWARD, &at);
	assert_int_equal(at, p->optimize_begin);
}

static bool in_section(const struct plan *p, int a, int b)
{
	for (int c = 0; c < p->chunk_count; c++) {
		const struct plan_section *f = &p->chunks[c].forward, *k = &p->chunks[c].backward;
		bool last = p->mesh.pipeline_rank == p->mesh.pipeline - 1 && c == p->chunk_count - 1;
		int begin = f->begin, end = last ? k->end : f->end;
		if (a >= begin && a < end)
			return b < end;
		if (a >= k->begin && a < k->end)
			return b < k->end;
	}
	return a >= p->optimize_begin;
}

static bool overlap(const struct plan_buffer *a, const struct plan_buffer *b)
{
	int64_t end_a = a->offset + (a->slots - 1) * a->slot_stride + a->bytes;
	int64_t end_b = b->offset + (b->slots - 1) * b->slot_stride + b->bytes;
	return a->offset < end_b && b->offset < end_a;
}

/* What lives on from one section to another shares bytes with nothing; the rest lives inside one.
 */
static void check_memory(const struct plan *p)
{
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *a = &p->buffers[i];
		bool persists = a->first_op == 0 && a->last_op == p->op_count - 1;
		if (a->bytes == 0 || a->first_op < 0)
			continue;
		assert_true(persists || a->slots == 1);
		assert_true(!persists || a->kind != PLAN_WORKSPACE); /* gathered weights, gradients made */
		assert_true(persists || in_section(p, a->first_op, a->last_op));
		assert_true(a->offset + a->slots * a->slot_stride <= p->total_bytes);
		for (int k = 0; k < i && persists; k++) {
			const struct plan_buffer *b = &p->buffers[k];
			if (b->bytes > 0 && b->first_op >= 0 && overlap(a, b))
				fail_msg("%s and %s share bytes", a->name, b->name);
		}
	}
}

/* Tickets are waited for in the section that began the call, but for sends, receives, and what is
 * reduced once a step. */
static void check_waits(const struct plan *p)
{
	for (int i = 0; i < p->optimize_begin; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind != PLAN_OP_ALL_GATHER && op->kind != PLAN_OP_REDUCE_SCATTER)
			continue;
		int k = i + 1;
		while (
			k < p->op_count && (p->ops[k].kind != PLAN_OP_WAIT || p->ops[k].ticket != op->ticket))
			k++;
		assert_true(k < p->op_count);
		assert_true(op->last_micro || in_section(p, i, k));
	}
}

static void test_sections(void **state)
{
	(void)state;
	for (int llama = 0; llama < 2; llama++)
		for (int pipeline = 2; pipeline <= 4; pipeline *= 2)
			for (int interleave = 1; interleave <= 2; interleave++)
				for (int zero = 0; zero <= 3; zero++)
					for (int rank = 0; rank < 2 * pipeline; rank++) {
						struct job_spec s = spec_of(9);
						if (llama)
							s = fixture_llama(8, 4, 2, 32, 48, 8, 256);
						s.hyper.batch_size = 32;
						s.hyper.micro_batch_size = 2;
						s.precision = llama ? SPEC_BF16 : SPEC_FP32;
						s.parallel = (struct spec_parallel){ .data = 2,
							.pipeline = pipeline,
							.interleave = interleave,
							.zero_stage = zero,
							.bucket_bytes = 4096 };
						struct plan *p = compile_rank(&s, rank);
						check_sections(p);
						check_memory(p);
						check_waits(p);
						plan_destroy(p);
					}
}

static void layers_of(struct job_spec *s, int pipeline, int *ret_layers)
{
	s->parallel = (struct spec_parallel){ .pipeline = pipeline };
	for (int rank = 0; rank < pipeline; rank++) {
		struct plan *p = compile_rank(s, rank);
		ret_layers[rank] = p->chunks[0].layer_count;
		assert_int_equal(p->chunk_count, 1);
		plan_destroy(p);
	}
}

/* A small head: layers alone count, and what is left over goes to the last, which keep the fewest
 * micro-batches. A head as expensive as two layers: the last stage has two fewer. */
static void test_layers_are_shared_by_cost(void **state)
{
	(void)state;
	int layers[RANKS_MAX];
	struct job_spec s = fixture_gpt2(10, 4, 64, 8, 256);
	layers_of(&s, 4, layers);
	for (int i = 0; i < 4; i++)
		assert_int_equal(layers[i], i == 1 || i == 2 ? 3 : 2);
	s = fixture_gpt2(14, 4, 64, 8, 2 * 12 * 64);
	layers_of(&s, 4, layers);
	for (int i = 0; i < 4; i++)
		assert_int_equal(layers[i], i == 3 ? 2 : 4);
}

/* The plan of a job is that of the rank that needs most, and that what the trainer will need. */
static void test_the_largest_rank_is_what_counts(void **state)
{
	(void)state;
	struct job_spec s = spec_of(8), wide = spec_of(4);
	wide.model.vocab_size = 50000; /* the last stage is the largest: a head's scratch */
	struct job_spec *const all[] = { &s, &wide };
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		int64_t most = 0;
		all[i]->parallel = (struct spec_parallel){ .pipeline = 4 };
		struct plan *p = fixture_compile(all[i]);
		for (int rank = 0; rank < 4; rank++) {
			struct plan *one = compile_rank(all[i], rank);
			most = one->total_bytes > most ? one->total_bytes : most;
			plan_destroy(one);
		}
		assert_int_equal(p->total_bytes, most);
		plan_destroy(p);
	}
}

/* Activations of the first stage: of as many micro-batches as there are stages, or chunks of them.
 */
static void test_activations_of_what_is_under_way(void **state)
{
	(void)state;
	struct job_spec s = spec_of(8);
	s.model.vocab_size = 256;
	for (int pipeline = 2; pipeline <= 4; pipeline *= 2)
		for (int rank = 0; rank < pipeline; rank++) {
			s.parallel = (struct spec_parallel){ .pipeline = pipeline };
			struct plan *p = compile_rank(&s, rank);
			assert_int_equal(p->chunks[0].slots, pipeline - rank);
			for (int i = 0; i < p->buffer_count; i++) {
				const struct plan_buffer *b = &p->buffers[i];
				if (strstr(b->name, "qkv") && !strstr(b->name, ".d.") && rank < pipeline - 1)
					assert_int_equal(b->slots, pipeline - rank);
				if (strstr(b->name, "qkv") && rank == pipeline - 1)
					assert_int_equal(b->slots, 1);
			}
			plan_destroy(p);
		}
}

static void test_one_rank_is_as_before(void **state)
{
	(void)state;
	struct job_spec s = spec_of(4);
	struct plan *p = fixture_compile(&s);
	assert_int_equal(p->chunk_count, 1);
	check_sections(p);
	for (int i = 0; i < p->buffer_count; i++)
		assert_int_equal(p->buffers[i].slots, 1);
	plan_destroy(p);
}

static void test_the_table_tells_stages_and_bubble(void **state)
{
	(void)state;
	struct job_spec s = spec_of(8);
	s.hyper.batch_size = 16;
	s.parallel = (struct spec_parallel){ .pipeline = 2, .interleave = 2 };
	struct plan *p = compile_rank(&s, 0);
	struct buf text;
	buf_init(&text, 1 << 20);
	assert_int_equal(plan_table_write(p, &text, &err), 0);
	buf_char(&text, '\0');
	assert_non_null(strstr(text.data, "Bubble: 5.9%"));
	assert_non_null(strstr(text.data, "\n     2 4 to 5     2\n"));
	assert_non_null(strstr(text.data, "per token"));
	buf_finish(&text);
	plan_destroy(p);
}

static void test_refusals(void **state)
{
	(void)state;
	const struct {
		struct spec_parallel parallel;
		int64_t batch;
		bool mlp;
		const char *param, *says;
	} bad[] = {
		{ { .pipeline = 5 }, 16, false, "$.parallelism.pipeline", "the model has 4" },
		{ { .pipeline = 2, .interleave = 3 }, 16, false, "$.parallelism.interleave",
			"model has 4" },
		{ { .pipeline = 2, .interleave = 2 }, 6, false, "$.parallelism.interleave", "multiple" },
		{ { .interleave = 2 }, 16, false, "$.parallelism.interleave", "only be 1" },
		{ { .pipeline = 2, .interleave = 65 }, 16, false, "$.parallelism.interleave", "1 to 64" },
		{ { .pipeline = 2 }, 16, true, "$.parallelism.pipeline", "gpt2 and llama" },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct job_spec s = bad[i].mlp ? fixture_mlp() : spec_of(4);
		struct plan *p = NULL;
		s.hyper.batch_size = bad[i].batch;
		s.hyper.micro_batch_size = 2;
		s.parallel = bad[i].parallel;
		err = (struct err){ 0 };
		assert_int_equal(plan_compile(&s, NULL, &p, &err), ERR_INVALID_VALUE);
		assert_string_equal(err.param, bad[i].param);
		assert_non_null(strstr(err.message, bad[i].says));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stages_have_the_model_between_them),
		cmocka_unit_test(test_sections),
		cmocka_unit_test(test_layers_are_shared_by_cost),
		cmocka_unit_test(test_the_largest_rank_is_what_counts),
		cmocka_unit_test(test_activations_of_what_is_under_way),
		cmocka_unit_test(test_one_rank_is_as_before),
		cmocka_unit_test(test_the_table_tells_stages_and_bubble),
		cmocka_unit_test(test_refusals),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
