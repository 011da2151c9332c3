/* SPDX-License-Identifier: Apache-2.0
 * The estimate against the plan it was read from, against the field's formulas for memory, bubbles
 * and bytes of collectives, and against itself: a step is the sum of its parts. */
#include "tests/support/check.h"
#include "tests/unit/workers/plan/scale_fixture.h"

static double kernel_flops(const struct scale_model *m, int way, bool recompute)
{
	double sum = 0;
	for (int part = 0; part < SCALE_PART_COUNT; part++)
		for (int pass = 0; pass < SCALE_PASS_COUNT; pass++) {
			const struct scale_kernels *k = &m->way[way].kernels[part][pass];
			for (int i = 0; i < k->count; i++)
				if (k->item[i].recompute == recompute)
					sum += k->item[i].flops * (part == SCALE_LAYER ? (double)m->layers : 1);
		}
	return sum;
}

/* The kernels that are costed are the plan's: every FLOP of it, once. */
static void test_kernels_are_the_plans(void **state)
{
	const char *const names[] = { "124m", "7b" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		for (int way = 0; way < SCALE_CHECKPOINTINGS; way++) {
			struct job_spec s = scale_fixture_spec(names[i], 1);
			s.hyper.micro_batch_size = 1;
			s.checkpointing = (enum spec_checkpointing)way;
			struct plan *p = fixture_compile(&s);
			struct scale_model *m = scale_fixture_model(&s);
			assert_near(kernel_flops(m, way, false), p->flops_per_step, 1e-9);
			assert_near(kernel_flops(m, way, true) + 1, p->recompute_flops_per_step + 1, 1e-9);
			assert_int_equal(scale_model_parameters(m), p->parameter_count);
			scale_model_destroy(m);
			plan_destroy(p);
		}
	(void)state;
}

/* On one device the memory is the plan's own total, and the context. */
static void test_memory_is_the_plans(void **state)
{
	const char *const names[] = { "124m", "7b" };
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 1, &c);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		for (int way = 0; way < SCALE_CHECKPOINTINGS; way++) {
			struct job_spec s = scale_fixture_spec(names[i], 8);
			s.hyper.micro_batch_size = 4;
			s.checkpointing = (enum spec_checkpointing)way;
			struct plan *p = fixture_compile(&s);
			struct scale_model *m = scale_fixture_model(&s);
			struct scale_mesh mesh = scale_fixture_mesh(1, 1, 1);
			mesh.micro_batch = 4;
			mesh.checkpointing = s.checkpointing;
			struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
			double ours = cost.memory_bytes - c.device.context_bytes;
			assert_near(ours, (double)p->total_bytes, 0.02);
			assert_near(cost.memory[SCALE_WEIGHTS], (double)p->kind_bytes[PLAN_WEIGHTS], 1e-6);
			scale_model_destroy(m);
			plan_destroy(p);
		}
	(void)state;
}

/* P parameters, N ranks, our bytes: 2 of weights, 4 of gradients, 12 of masters and moments.
 * Everything 18 P; ZeRO-1 (6 + 12/N) P; ZeRO-2 (2 + 16/N) P; ZeRO-3 18 P / N. */
static void test_memory_by_zero(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = scale_fixture_spec("7b", 64);
	struct scale_model *m = scale_fixture_model(&s);
	const double want[] = { 18, 6 + 12.0 / 8, 2 + 16.0 / 8, 18.0 / 8 };
	for (int zero = 0; zero < 4; zero++) {
		struct scale_mesh mesh = scale_fixture_mesh(8, 1, 1);
		mesh.zero = zero;
		struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
		double sum = cost.memory[SCALE_WEIGHTS] + cost.memory[SCALE_GRADIENTS] +
			cost.memory[SCALE_OPTIMIZER];
		assert_near(sum / (double)m->parameters, want[zero], 0.001);
	}
	/* Tensor and pipeline divide what there is of the model; the busiest stage has the head too. */
	struct scale_mesh mesh = scale_fixture_mesh(1, 4, 2);
	struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
	double sum =
		cost.memory[SCALE_WEIGHTS] + cost.memory[SCALE_GRADIENTS] + cost.memory[SCALE_OPTIMIZER];
	assert_near(sum / (double)m->parameters, 18.0 / 8, 0.05);
	scale_model_destroy(m);
	(void)state;
}

/* The same bytes as fp32 and an eighth of the time in products; attention stays, and is a share of
 * the peak that products have. */
static void test_tf32_is_for_products(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_A100_80, 1, &c);
	struct job_spec s = scale_fixture_spec("124m", 8);
	struct scale_mesh mesh = scale_fixture_mesh(1, 1, 1);
	struct scale_cost cost[2];
	for (int i = 0; i < 2; i++) {
		s.precision = i ? SPEC_TF32 : SPEC_FP32;
		struct scale_model *m = scale_fixture_model(&s);
		cost[i] = scale_fixture_cost(m, &c, &mesh);
		assert_near(cost[i].mfu, cost[i].flops_s / (i ? 156e12 : 19.5e12), 1e-6);
		scale_model_destroy(m);
	}
	assert_true(cost[0].memory_bytes == cost[1].memory_bytes);
	double times = cost[0].compute_s / cost[1].compute_s;
	print_message("fp32 takes %.2f times as long as tf32\n", times);
	assert_true(times > 1.5 && times < 8); /* all in products: 8 */
	c.device.flops[SCALE_TF32] *= 1e3;
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_cost fast = scale_fixture_cost(m, &c, &mesh);
	c.device.flops[SCALE_FP32] /= 2;
	struct scale_cost slow = scale_fixture_cost(m, &c, &mesh);
	assert_true(slow.compute_s > 1.2 * fast.compute_s); /* which is attention */
	scale_model_destroy(m);
	(void)state;
}

/* Llama-3 8B: 145 GB whole, 60 GB by ZeRO-1 over 8, 18 GB by ZeRO-3 (the field's figures). */
static void test_memory_of_llama_8b(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = fixture_llama(32, 32, 8, 4096, 14336, 8192, 128256);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = 8;
	struct scale_model *m = scale_fixture_model(&s);
	const double want[] = { 145e9, 60e9, 0, 18e9 };
	for (int zero = 0; zero < 4; zero++) {
		struct scale_mesh mesh = scale_fixture_mesh(8, 1, 1);
		mesh.zero = zero;
		struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
		double sum = cost.memory[SCALE_WEIGHTS] + cost.memory[SCALE_GRADIENTS] +
			cost.memory[SCALE_OPTIMIZER];
		if (want[zero] > 0)
			assert_near(sum, want[zero], 0.03);
	}
	scale_model_destroy(m);
	(void)state;
}

/* Activations: a stage of p holds p micro-batches of L / p layers, so pipelining does not lower
 * them; interleaving adds (p-1)/(p v). */
static void test_activations_in_flight(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 4, &c);
	struct job_spec s = scale_fixture_spec("7b", 64);
	struct scale_model *m = scale_fixture_model(&s);
	double rest = m->way[0].kept_rest;
	struct scale_mesh mesh = scale_fixture_mesh(1, 1, 4);
	double plain = scale_fixture_cost(m, &c, &mesh).memory[SCALE_ACTIVATIONS] - rest;
	assert_near(plain, 32 * m->way[0].kept_layer, 0.05);
	mesh.interleave = 2;
	double chunks = scale_fixture_cost(m, &c, &mesh).memory[SCALE_ACTIVATIONS] - rest;
	assert_near(chunks / plain, 1 + 3.0 / (4 * 2), 1e-6);
	scale_model_destroy(m);
	(void)state;
}

/* (p - 1) / v of the time that a stage takes for a micro-batch. */
static void test_bubble(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 4, &c);
	struct job_spec s = scale_fixture_spec("7b", 16);
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh mesh = scale_fixture_mesh(1, 1, 4);
	struct scale_cost plain = scale_fixture_cost(m, &c, &mesh);
	assert_near(plain.bubble_s, 3 * plain.compute_s / 16, 1e-9);
	mesh.interleave = 4;
	struct scale_cost chunks = scale_fixture_cost(m, &c, &mesh);
	assert_near(chunks.bubble_s, plain.bubble_s / 4, 1e-9);
	mesh.interleave = 1;
	mesh.micro_batch =
		4; /* as many micro-batches as stages: 3/7 of the time of compute and bubble */
	struct scale_cost few = scale_fixture_cost(m, &c, &mesh);
	assert_near(few.bubble_s / (few.bubble_s + few.compute_s), 3.0 / 7, 1e-9);
	scale_model_destroy(m);
	(void)state;
}

/* Tensor parallel with sequence parallelism: 4 collectives a layer forward, 6 backward, 4 again
 * when the whole layer is recomputed; the buffer is the residual stream of the micro-batch. */
static void test_tensor_collectives(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = scale_fixture_spec("7b", 16);
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh mesh = scale_fixture_mesh(1, 8, 1);
	mesh.micro_batch = 2;
	struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
	const struct scale_collective *line = scale_fixture_line(&cost, "activations");
	assert_non_null(line);
	assert_near(line->bytes, 2.0 * 2 * 4096 * 4096, 1e-9);
	assert_near(line->calls, 8 * (32 * 10 + 5), 1e-9);
	assert_near(line->seconds,
		line->calls * scale_collective_s(&c, SCALE_ALL_GATHER, line->bytes, 8, 8), 1e-9);
	assert_near(line->exposed_s, line->seconds, 1e-9);
	assert_near(cost.tensor_s, line->exposed_s, 1e-9);
	mesh.checkpointing = SPEC_FULL;
	struct scale_cost full = scale_fixture_cost(m, &c, &mesh);
	assert_near(scale_fixture_line(&full, "activations")->calls, 8 * (32 * 14 + 5), 1e-9);
	c.overlap.tensor = true;
	struct scale_cost hidden = scale_fixture_cost(m, &c, &mesh);
	assert_near(hidden.tensor_s, full.tensor_s / 8, 1e-6);
	scale_model_destroy(m);
	(void)state;
}

/* All of a rank's gradients are reduced and all its weights gathered: once a step, by ZeRO-2 the
 * gradients and by ZeRO-3 both in every micro-batch, the weights twice. */
static void test_data_collectives(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 64, &c);
	struct job_spec s = scale_fixture_spec("7b", 512);
	struct scale_model *m = scale_fixture_model(&s);
	double p = (double)m->parameters, steps = 512 / 64;
	const double gradients[] = { 1, 1, steps, steps }, weights[] = { 0, 1, 1, 2 * steps };
	for (int zero = 0; zero < 4; zero++) {
		struct scale_mesh mesh = scale_fixture_mesh(64, 1, 1);
		mesh.zero = zero;
		struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
		const struct scale_collective *g =
			scale_fixture_line(&cost, zero == 3 ? "gradients of a layer" : "gradients");
		const struct scale_collective *w =
			scale_fixture_line(&cost, zero == 3 ? "weights of a layer" : "new weights");
		assert_non_null(g);
		assert_near(g->bytes * g->calls, 4 * p * gradients[zero], 1e-6);
		assert_string_equal(g->operation, zero == 0 ? "all-reduce" : "reduce-scatter");
		assert_true(
			zero == 0 ? !w : w && fixture_near(w->bytes * w->calls, 2 * p * weights[zero], 0.001));
		/* Mostly hidden, never wholly; nothing is when nothing overlaps. */
		assert_true(g->exposed_s > 0 && g->exposed_s < g->seconds / 4);
		struct scale_cluster bare = c;
		bare.overlap = (struct scale_overlap){ .gradient_bytes = 4 };
		struct scale_cost open = scale_fixture_cost(m, &bare, &mesh);
		double all = 0;
		for (int i = 0; i < open.collective_count; i++)
			all += open.collective[i].seconds;
		assert_near(open.data_s, all, 1e-9);
		assert_true(open.contention_s == 0 && cost.contention_s > 0);
	}
	scale_model_destroy(m);
	(void)state;
}

/* Neighbouring stages: every micro-batch forward and backward through every chunk. */
static void test_pipeline_sends(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 64, &c);
	struct job_spec s = scale_fixture_spec("7b", 64);
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh mesh = scale_fixture_mesh(4, 2, 8);
	mesh.interleave = 2;
	struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
	const struct scale_collective *line =
		scale_fixture_line(&cost, "activations to the next stage");
	assert_non_null(line);
	assert_near(line->bytes, 2.0 * 4096 * 4096 / 2, 1e-9);
	assert_near(line->calls, 2 * 2 * 16, 1e-9);
	assert_near(line->exposed_s, 2 * 7 * scale_send_s(&c, line->bytes, false), 1e-9);
	c.overlap.pipeline = false;
	cost = scale_fixture_cost(m, &c, &mesh);
	line = scale_fixture_line(&cost, "activations to the next stage");
	assert_near(line->exposed_s, (2 * 7 + 64) * scale_send_s(&c, line->bytes, false), 1e-9);
	scale_model_destroy(m);
	(void)state;
}

static double stage_s(int64_t k, double layer, double extra)
{
	return (double)k * layer + extra;
}

/* The best of all ways to give the ends a and z layers and the rest to the middle evenly. */
static double brute_split(int64_t layers, int p, double layer, double first, double last)
{
	double best = INFINITY;
	for (int64_t a = 0; a <= layers; a++)
		for (int64_t z = 0; a + z <= layers; z++) {
			int64_t rest = layers - a - z;
			if (p == 2 && rest > 0)
				continue;
			int64_t middle = p > 2 ? (rest + p - 3) / (p - 2) : 0;
			double worst = fmax(stage_s(a, layer, first), stage_s(z, layer, last));
			best = fmin(best, fmax(worst, stage_s(middle, layer, 0)));
		}
	return best;
}

static void test_split_is_the_best(void **state)
{
	struct check_random r = check_random_start();
	for (int i = 0; i < 2000; i++) {
		int64_t layers = check_random_range(&r, 1, 60);
		int p = (int)check_random_range(&r, 2, layers > 12 ? 12 : layers > 2 ? layers : 2);
		double layer = 1 + (double)check_random_range(&r, 0, 100) / 50;
		double first = (double)check_random_range(&r, 0, 300) / 50;
		double last = (double)check_random_range(&r, 0, 300) / 50;
		struct scale_split s = scale_compute_split(layers, p, layer, first, last);
		double ours = stage_s(s.busiest, layer, s.first ? first : s.last ? last : 0);
		assert_true(s.most * p >= layers && s.most <= layers);
		assert_true((double)s.most * layer <= ours + 1e-6);
		assert_near(ours, brute_split(layers, p, layer, first, last), 1e-6);
	}
	(void)state;
}

/* llm-foundry's 7B (MPT, T 2,048): 10,643 tokens/s are 459.5 TFLOP/s by its own count. */
static void test_conventions(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = fixture_gpt2(32, 32, 4096, 2048, 50368);
	s.precision = SPEC_BF16;
	s.hyper.batch_size = 48;
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh mesh = scale_fixture_mesh(8, 1, 1);
	mesh.micro_batch = 6;
	mesh.zero = 3;
	struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
	assert_near(cost.source_flops_s / cost.tokens_s * 10643, 4.595e14, 0.002);
	assert_near(cost.source_mfu, cost.source_flops_s / 989e12, 1e-9);
	assert_near(cost.mfu * 989e12, cost.tokens_s * m->flops_token, 1e-9);
	assert_true(cost.mfu < cost.source_mfu); /* causal attention counts half */
	scale_model_destroy(m);
	(void)state;
}

static void test_a_step_is_the_sum_of_its_parts(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 64, &c);
	struct job_spec s = scale_fixture_spec("7b", 256);
	struct scale_model *m = scale_fixture_model(&s);
	struct check_random r = check_random_start();
	for (int i = 0; i < 300; i++) {
		int t = 1 << check_random_range(&r, 0, 3), p = 1 << check_random_range(&r, 0, 3);
		struct scale_mesh mesh = scale_fixture_mesh(64 / t / p, t, p);
		mesh.zero = mesh.data > 1 ? (int)check_random_range(&r, 0, 3) : 0;
		mesh.checkpointing = (enum spec_checkpointing)check_random_range(&r, 0, 2);
		struct scale_cost a = scale_fixture_cost(m, &c, &mesh), b;
		assert_near(a.step_s,
			a.compute_s + a.contention_s + a.tensor_s + a.data_s + a.pipeline_s + a.bubble_s +
				a.optimizer_s,
			1e-12);
		double exposed = 0;
		for (int k = 0; k < a.collective_count; k++) {
			assert_true(a.collective[k].exposed_s <= a.collective[k].seconds * (1 + 1e-12));
			exposed += a.collective[k].exposed_s;
		}
		assert_near(a.tensor_s + a.data_s + a.pipeline_s + 1e-9, exposed + 1e-9, 1e-6);
		assert_near(a.tokens_s * a.step_s * 64, 256.0 * 4096, 1e-9);
		b = scale_fixture_cost(m, &c, &mesh);
		assert_true(a.step_s == b.step_s && a.memory_bytes == b.memory_bytes);
	}
	scale_model_destroy(m);
	(void)state;
}

static void test_meshes_that_divide_nothing(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 64, &c);
	struct job_spec s = scale_fixture_spec("70b", 96);
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh good = scale_fixture_mesh(8, 8, 1);
	struct scale_cost cost;
	assert_int_equal(scale_estimate(m, &c, &good, &cost, &err), 0);
	struct {
		struct scale_mesh mesh;
		const char *says;
	} bad[] = {
		{ scale_fixture_mesh(8, 8, 2), "devices" },
		{ scale_fixture_mesh(64, 1, 1), "batch" },
		{ scale_fixture_mesh(4, 16, 1), "key-value heads" },
		{ scale_fixture_mesh(0, 8, 8), "at least 1" },
		{ good, "ZeRO" },
		{ scale_fixture_mesh(16, 1, 4), "interleaving" },
		{ scale_fixture_mesh(32, 1, 2), "layers" },
	};
	bad[4].mesh.zero = 4;
	bad[5].mesh.interleave = 2; /* 6 micro-batches, 4 stages */
	bad[6].mesh.interleave = 41;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(scale_estimate(m, &c, &bad[i].mesh, &cost, &err), ERR_INVALID_VALUE);
		if (!strstr(err.message, bad[i].says))
			fail_msg("mesh %zu: \"%s\" does not say %s", i, err.message, bad[i].says);
	}
	scale_model_destroy(m);
	(void)state;
}

/* Other families: data parallel only, and all their FLOPs; tables' gradients go as rows. */
static void test_families_without_layers(void **state)
{
	struct job_spec specs[] = { fixture_mlp(), fixture_cnn(), fixture_dlrm() };
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 4, &c);
	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		specs[i].hyper.batch_size = 64;
		specs[i].hyper.micro_batch_size = 64;
		struct plan *p = fixture_compile(&specs[i]);
		struct scale_model *m = scale_fixture_model(&specs[i]);
		assert_near(kernel_flops(m, SPEC_KEEP_ALL, false) * 64, p->flops_per_step, 1e-9);
		struct scale_mesh mesh = scale_fixture_mesh(4, 1, 1);
		mesh.micro_batch = 16;
		struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
		assert_true(cost.fits && cost.step_s > 0);
		const struct scale_collective *rows =
			scale_fixture_line(&cost, "gradients of rows of tables");
		assert_int_equal(rows != NULL, specs[i].model.family == SPEC_DLRM);
		if (rows)
			assert_near(rows->bytes, 64.0 * 3 * (3 + 8) * 4, 1e-9);
		mesh = scale_fixture_mesh(2, 2, 1);
		assert_int_equal(scale_estimate(m, &c, &mesh, &cost, &err), ERR_INVALID_VALUE);
		scale_model_destroy(m);
		plan_destroy(p);
	}
	(void)state;
}

/* Of LoRA only the adapters have gradients to reduce; the base is not updated. */
static void test_lora(void **state)
{
	struct scale_cluster c;
	scale_cluster_known(SCALE_H100, 8, &c);
	struct job_spec s = scale_fixture_spec("7b", 8);
	fixture_lora(&s, 16, 2, (const char *const[]){ "q_proj", "v_proj" });
	struct scale_model *m = scale_fixture_model(&s);
	struct scale_mesh mesh = scale_fixture_mesh(8, 1, 1);
	struct scale_cost cost = scale_fixture_cost(m, &c, &mesh);
	const struct scale_collective *line = scale_fixture_line(&cost, "gradients");
	assert_non_null(line);
	assert_near(line->bytes * line->calls, 4.0 * 32 * 2 * 16 * (4096 + 4096), 1e-6);
	assert_true(cost.memory[SCALE_GRADIENTS] < 0.01 * cost.memory[SCALE_WEIGHTS]);
	scale_model_destroy(m);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernels_are_the_plans),
		cmocka_unit_test(test_memory_is_the_plans),
		cmocka_unit_test(test_memory_by_zero),
		cmocka_unit_test(test_tf32_is_for_products),
		cmocka_unit_test(test_memory_of_llama_8b),
		cmocka_unit_test(test_activations_in_flight),
		cmocka_unit_test(test_bubble),
		cmocka_unit_test(test_tensor_collectives),
		cmocka_unit_test(test_data_collectives),
		cmocka_unit_test(test_pipeline_sends),
		cmocka_unit_test(test_split_is_the_best),
		cmocka_unit_test(test_conventions),
		cmocka_unit_test(test_a_step_is_the_sum_of_its_parts),
		cmocka_unit_test(test_meshes_that_divide_nothing),
		cmocka_unit_test(test_families_without_layers),
		cmocka_unit_test(test_lora),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
