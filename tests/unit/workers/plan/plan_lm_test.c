/* SPDX-License-Identifier: Apache-2.0
 * Plans of language models: published sizes, the field's rules of thumb for memory and FLOPs, names
 * of Hugging Face's and PEFT's files, and what is recomputed or left out. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include <time.h>

static const double GIB = 1024.0 * 1024 * 1024;

static struct job_spec llama_7b(void)
{
	return fixture_llama(32, 32, 32, 4096, 11008, 4096, 32000);
}

static struct job_spec llama_8b(void)
{
	struct job_spec s = fixture_llama(32, 32, 8, 4096, 14336, 8192, 128256);
	s.hyper.batch_size = s.hyper.micro_batch_size = 1;
	return s;
}

static struct job_spec llama_13b(void)
{
	return fixture_llama(40, 40, 40, 5120, 13824, 4096, 32000);
}

static struct job_spec llama_70b(void)
{
	struct job_spec s = fixture_llama(80, 64, 8, 8192, 28672, 4096, 32000);
	s.hyper.batch_size = s.hyper.micro_batch_size = 1;
	s.precision = SPEC_BF16;
	return s;
}

/* Counted from the published weights. */
static void test_published_counts(void **state)
{
	const struct {
		struct job_spec spec;
		int64_t count;
	} models[] = {
		{ fixture_gpt2(12, 12, 768, 1024, 50257), 124439808 },
		{ fixture_gpt2(24, 16, 1024, 1024, 50257), 354823168 },
		{ fixture_gpt2(36, 20, 1280, 1024, 50257), 774030080 },
		{ fixture_gpt2(48, 25, 1600, 1024, 50257), 1557611200 },
		{ llama_7b(), 6738415616 },
		{ llama_8b(), 8030261248 },
		{ llama_13b(), 13015864320 },
		{ llama_70b(), 68976648192 },
	};
	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		struct plan *p = fixture_compile(&models[i].spec);
		assert_int_equal(p->parameter_count, models[i].count);
		assert_int_equal(p->trained_count, models[i].count);
		plan_destroy(p);
	}
}

/* Only what an operation can write whole goes without zeros: weights of dense layers and the head,
 * of which the tied embedding is one; biases, gains and positions are added to. */
static void test_gradients_that_need_no_zeros(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 64, 32, 300);
	struct plan *p = fixture_compile(&s);
	int64_t overwritten = 0;
	for (int i = 0; i < p->param_count; i++) {
		bool position = !strcmp(p->params[i].name, "transformer.wpe.weight");
		assert_int_equal(p->params[i].overwritten, p->params[i].rank == 2 && !position);
		overwritten += p->params[i].overwritten;
	}
	int64_t writers = 0;
	for (int i = 0; i < p->op_count; i++)
		writers += p->ops[i].overwrites;
	assert_int_equal(overwritten, 1 + 2 * 4);
	assert_int_equal(writers, overwritten);
	plan_destroy(p);
}

/* Elements of rank above 1, of the dense trained parameters and of all. */
static int64_t matrix_count(const struct plan *p, bool trained)
{
	int64_t n = 0;
	for (int i = 0; i < p->param_count; i++)
		if (p->params[i].rank > 1 && (!trained || p->params[i].role == PLAN_TRAINED))
			n += p->params[i].count;
	return n;
}

/* 7B in 16 bits is 12 to 14 GB of weights; 13B is 97 GiB where weights, gradients and both moments
 * have 16 bits (8 bytes a parameter). Ours are 2 of weight, 4 of master, 4 of gradient and 8 of
 * moments: 18, and 16 for the few that stay fp32. In fp32 Adam's state and the weights are three
 * times the weights. */
static void test_rules_of_thumb(void **state)
{
	struct job_spec s = llama_7b();
	s.precision = SPEC_FP16;
	struct plan *p = fixture_compile(&s);
	assert_true(p->kind_bytes[PLAN_WEIGHTS] > 12e9 && p->kind_bytes[PLAN_WEIGHTS] < 14e9);
	plan_destroy(p);
	s = llama_13b();
	s.precision = SPEC_BF16;
	p = fixture_compile(&s);
	assert_true(fabs(8 * (double)p->parameter_count / GIB - 97) < 0.1);
	int64_t narrow = matrix_count(p, true), wide = p->parameter_count - narrow;
	int64_t sum =
		p->kind_bytes[PLAN_WEIGHTS] + p->kind_bytes[PLAN_GRADIENTS] + p->kind_bytes[PLAN_OPTIMIZER];
	assert_int_equal(sum, 18 * narrow + 16 * wide);
	int64_t by_param = 0;
	for (int i = 0; i < p->param_count; i++)
		by_param += plan_param_bytes(p, &p->params[i]);
	assert_int_equal(by_param, sum);
	print_message("13B: %.1f GiB at 8 B a parameter, ours %.1f GiB\n",
		8 * (double)p->parameter_count / GIB, (double)sum / GIB);
	plan_destroy(p);
	s = llama_13b();
	p = fixture_compile(&s);
	assert_int_equal(p->kind_bytes[PLAN_WEIGHTS] + p->kind_bytes[PLAN_OPTIMIZER],
		3 * p->kind_bytes[PLAN_WEIGHTS]);
	plan_destroy(p);
}

/* Adapters of rank 16 on every linear module of Llama 3 8B are 41.9M parameters; the base is kept
 * in 16 bits alone. */
static void test_lora_saves(void **state)
{
	static const char *const targets[] = { "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
		"up_proj", "down_proj" };
	struct job_spec s = llama_8b();
	s.precision = SPEC_BF16;
	struct plan *whole = fixture_compile(&s);
	fixture_lora(&s, 16, 7, targets);
	struct plan *p = fixture_compile(&s);
	assert_int_equal(p->trained_count, 41943040);
	assert_int_equal(p->parameter_count - p->trained_count, whole->parameter_count);
	int64_t narrow = matrix_count(whole, false), wide = whole->parameter_count - narrow;
	int64_t sum =
		p->kind_bytes[PLAN_WEIGHTS] + p->kind_bytes[PLAN_GRADIENTS] + p->kind_bytes[PLAN_OPTIMIZER];
	assert_int_equal(sum, 2 * narrow + 4 * wide + 18 * p->trained_count);
	print_message("8B: %.1f GiB, with LoRA %.1f GiB\n", (double)whole->total_bytes / GIB,
		(double)p->total_bytes / GIB);
	assert_true(p->total_bytes < whole->total_bytes / 3);
	/* About 4 FLOPs a base parameter and token instead of 6, and 6 an adapter's; the first layer's
	 * queries, keys and values need no gradient of what they read. */
	double matrix = (double)matrix_count(whole, false) - 128256.0 * 4096;
	double unread = 2 * (4096.0 * (4096 + 1024 + 1024) + 3 * 16 * 4096.0);
	double expected = 4 * matrix + 6 * 41943040.0 + 6.0 * 32 * 4096 * 8192 - unread;
	assert_true(fixture_near(p->flops_per_token, expected, 1e-9));
	plan_destroy(whole);
	plan_destroy(p);
}

/* Bytes of activations that wait for the backward pass. */
static int64_t kept_bytes(const struct plan *p)
{
	int64_t sum = 0;
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *b = &p->buffers[i];
		bool persistent = b->first_op == 0 && b->last_op == p->op_count - 1;
		if (b->kind == PLAN_ACTIVATIONS && !persistent && b->first_op < p->backward_begin &&
			b->last_op >= p->backward_begin)
			sum += b->bytes;
	}
	return sum;
}

/* Of one layer: the difference that a layer more makes. */
static int64_t layer_bytes(struct job_spec s, enum spec_checkpointing mode)
{
	s.checkpointing = mode;
	s.precision = SPEC_BF16;
	int64_t kept[2];
	for (int i = 0; i < 2; i++) {
		s.model.n_layer = 2 + i;
		struct plan *p = fixture_compile(&s);
		kept[i] = kept_bytes(p);
		plan_destroy(p);
	}
	return kept[1] - kept[0];
}

/* Korthikanti et al. count sbh(34 + 5as/h) bytes a layer. Attention without its matrix drops the
 * second term; ours has no masks of dropout either (2 sbh, made again from counters): 32 sbh, the
 * statistics of two norms (four fp32 values a row) and of attention (one for each head). Selective
 * keeps the stream twice, queries, keys, values, attention's output and the mlp's inner value: 20;
 * full keeps the input: 2. */
static void test_activation_formulas(void **state)
{
	int64_t h = 256, a = 4, rows = 4 * 128;
	struct job_spec s = fixture_gpt2(2, a, h, 128, 512);
	int64_t statistics = rows * 4 * (4 + a);
	assert_int_equal(layer_bytes(s, SPEC_KEEP_ALL), 32 * rows * h + statistics);
	assert_int_equal(layer_bytes(s, SPEC_SELECTIVE), 20 * rows * h + statistics);
	assert_int_equal(layer_bytes(s, SPEC_FULL), 2 * rows * h);
	/* A wider mlp: 18 + 4 ffn / h of theirs, 16 + 4 of ours. */
	s.model.n_inner = 6 * h;
	assert_int_equal(layer_bytes(s, SPEC_KEEP_ALL), (16 + 4 * 6) * rows * h + statistics);
	/* llama: keys and values of half the heads, three inner values of 3h. */
	s = fixture_llama(2, a, 2, h, 3 * h, 128, 512);
	statistics = rows * 4 * (2 + a);
	assert_int_equal(layer_bytes(s, SPEC_KEEP_ALL), 2 * rows * (5 + 2 + 9) * h + statistics);
	assert_int_equal(layer_bytes(s, SPEC_SELECTIVE), 2 * rows * (3 + 2 + 6) * h + statistics);
	assert_int_equal(layer_bytes(s, SPEC_FULL), 2 * rows * h);
	/* A frozen module's input waits for nobody: only the adapted one's does. */
	fixture_lora(&s, 8, 1, (const char *const[]){ "q_proj" });
	assert_int_equal(
		layer_bytes(s, SPEC_KEEP_ALL), 2 * rows * (4 + 2 + 6) * h + 2 * rows * 8 + statistics);
}

/* Six FLOPs a matrix parameter and token (the tied head is one), six L C T for causal attention. */
static void test_flops(void **state)
{
	struct job_spec s = fixture_gpt2(12, 12, 768, 1024, 50257);
	struct plan *p = fixture_compile(&s);
	double layer = 12.0 * 768 * 768, head = 50257.0 * 768;
	double expected = 6 * (12 * layer + head) + 6.0 * 12 * 768 * 1024;
	assert_true(fixture_near(p->flops_per_token, expected, 1e-9));
	assert_true(fixture_near(p->flops_per_sample, 1024 * expected, 1e-9));
	assert_true(fixture_near(p->flops_per_step, 8 * 1024 * expected, 1e-9));
	assert_true(p->recompute_flops_per_step == 0);
	assert_true(p->bytes_per_step > 7 * 4 * 124439808.0);
	assert_int_equal(p->micro_steps, 2);
	double model_flops = p->flops_per_step;
	plan_destroy(p);
	/* Full recomputation repeats a layer but for its last product; selective repeats no product. */
	s.checkpointing = SPEC_FULL;
	p = fixture_compile(&s);
	double again = 12 * (2 * (layer - 4 * 768.0 * 768) + 2.0 * 768 * 1024);
	assert_true(fixture_near(p->recompute_flops_per_step, 8 * 1024 * again, 1e-9));
	assert_true(fixture_near(p->flops_per_step, model_flops, 1e-12));
	plan_destroy(p);
	s.checkpointing = SPEC_SELECTIVE;
	p = fixture_compile(&s);
	assert_true(
		p->recompute_flops_per_step == 0 && fixture_near(p->flops_per_step, model_flops, 1e-12));
	plan_destroy(p);
	s = llama_8b();
	p = fixture_compile(&s);
	double matrix = (double)p->parameter_count - 128256.0 * 4096 - 65.0 * 4096;
	expected = 6 * matrix + 6.0 * 32 * 4096 * 8192;
	assert_true(fixture_near(p->flops_per_token, expected, 1e-9));
	plan_destroy(p);
}

static void test_memory_shrinks(void **state)
{
	struct job_spec s = fixture_gpt2(12, 12, 768, 1024, 50257);
	s.precision = SPEC_BF16;
	int64_t bytes[3];
	for (int i = 0; i < 3; i++) {
		s.checkpointing = (enum spec_checkpointing)i;
		struct plan *p = fixture_compile(&s);
		bytes[i] = p->total_bytes;
		plan_destroy(p);
	}
	assert_true(bytes[1] < bytes[0] && bytes[2] < bytes[1]);
	/* PyTorch takes 4.3 GiB for this step. */
	s = fixture_gpt2(12, 12, 768, 1024, 50257);
	s.data.sequence_length = 256;
	struct plan *p = fixture_compile(&s);
	print_message("GPT-2 124M, 4 x 256, fp32: %.3f GiB\n", (double)p->total_bytes / GIB);
	assert_true((double)p->total_bytes < 0.6 * 4.3 * GIB);
	plan_destroy(p);
}

/* Printed for people; nothing is asserted about time. */
static void test_70b(void **state)
{
	struct job_spec s = llama_70b();
	double least = 1e9;
	struct plan *p = NULL;
	for (int i = 0; i < 5; i++) {
		struct timespec a, b;
		plan_destroyp(&p);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		p = fixture_compile(&s);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
		print_message("70B: %d operations, %d buffers, planned in %.2f ms\n", p->op_count,
			p->buffer_count, ms);
		least = ms < least ? ms : least;
	}
	assert_int_equal(p->kind_bytes[PLAN_WEIGHTS] / 1000000000, 137);
	plan_destroy(p);
}

static const struct plan_op *find_op(const struct plan *p, enum plan_op_kind kind, const char *name)
{
	for (int i = 0; i < p->op_count; i++)
		if (p->ops[i].kind == kind && strcmp(p->ops[i].name, name) == 0)
			return &p->ops[i];
	fail_msg("no %s of %s", plan_op_word(kind), name);
	return NULL;
}

static int count_ops(const struct plan *p, enum plan_op_kind kind)
{
	int n = 0;
	for (int i = 0; i < p->op_count; i++)
		n += p->ops[i].kind == kind;
	return n;
}

static void test_gpt2_fuses(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 16, 8, 256);
	struct plan *p = fixture_compile(&s);
	const struct plan_op *op = find_op(p, PLAN_OP_LINEAR, "transformer.h.1.mlp.c_fc");
	assert_int_equal(op->act, PLAN_ACT_GELU);
	int pre = op->operand[5];
	assert_true(pre >= 0 && op->scalar == 1 && !op->transposed);
	op = find_op(p, PLAN_OP_LINEAR_BACKWARD_DATA, "transformer.h.1.mlp.c_proj");
	assert_true(op->act == PLAN_ACT_GELU && op->operand[4] == pre);
	assert_true(find_op(p, PLAN_OP_LINEAR, "transformer.h.1.attn.c_proj")->operand[4] >= 0);
	assert_int_equal(count_ops(p, PLAN_OP_GELU) + count_ops(p, PLAN_OP_ADD), 0);
	assert_int_equal(count_ops(p, PLAN_OP_SOFTMAX_XENT), 0);
	op = find_op(p, PLAN_OP_CLASSIFIER, "lm_head");
	assert_int_equal(op->operand[6], fixture_param(p, "transformer.wte.weight")->gradient);
	assert_int_equal(op->dim[3], p->rows);
	assert_int_equal(p->hidden, op->operand[0]);
	assert_string_equal(p->params[p->head].name, "transformer.wte.weight");
	assert_true(p->inputs.positions < 0 && p->inputs.starts < 0 && p->rope < 0);
	plan_destroy(p);
	s.hyper.dropout = 0.1; /* dropout comes between a product and the residual stream */
	p = fixture_compile(&s);
	assert_int_equal(count_ops(p, PLAN_OP_DROPOUT), 5);
	assert_int_equal(count_ops(p, PLAN_OP_ADD), 4);
	assert_true(find_op(p, PLAN_OP_DROPOUT, "transformer.wte")->scalar == 0.1);
	plan_destroy(p);
}

/* Logits are made in even pieces of at most 64 MiB, but never of fewer than 64 rows. */
static void test_classifier_chunks(void **state)
{
	const struct {
		enum spec_precision precision;
		int64_t t, v, chunk;
	} cases[] = { { SPEC_FP32, 256, 50257, 256 }, { SPEC_BF16, 256, 50257, 512 },
		{ SPEC_FP32, 256, 1 << 20, 64 }, { SPEC_FP32, 10, 1 << 20, 40 },
		{ SPEC_FP32, 256, 256, 1024 }, { SPEC_FP32, 100, 50257, 208 } };
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct job_spec s = fixture_gpt2(1, 2, 16, cases[i].t, cases[i].v);
		s.precision = cases[i].precision;
		struct plan *p = fixture_compile(&s);
		assert_int_equal(find_op(p, PLAN_OP_CLASSIFIER, "lm_head")->dim[3], cases[i].chunk);
		plan_destroy(p);
	}
}

static void test_llama(void **state)
{
	struct job_spec s = fixture_llama(2, 4, 2, 32, 48, 8, 256);
	s.data.format = SPEC_FORMAT_JSONL;
	s.data.packing = true;
	struct plan *p = fixture_compile(&s);
	static const char *const names[] = { "model.embed_tokens.weight",
		"model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight",
		"model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight",
		"model.layers.1.self_attn.o_proj.weight", "model.layers.1.post_attention_layernorm.weight",
		"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
		"model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		(void)fixture_param(p, names[i]);
	assert_int_equal(p->param_count, 3 + 2 * 9);
	const struct plan_param *v = fixture_param(p, "model.layers.1.self_attn.v_proj.weight");
	assert_true(v->shape[0] == 16 && v->shape[1] == 32);
	/* Values follow 32 elements of queries and 16 of keys. */
	const struct plan_op *op = find_op(p, PLAN_OP_LINEAR, "model.layers.1.self_attn.v_proj");
	assert_true(op->transposed && op->shift[3] == 48 && op->dim[4] == 64 && op->dim[2] == 16);
	assert_int_equal(find_op(p, PLAN_OP_LINEAR, "model.layers.1.self_attn.k_proj")->shift[3], 32);
	op = find_op(p, PLAN_OP_LINEAR_BACKWARD_DATA, "model.layers.1.self_attn.v_proj");
	assert_true(op->shift[0] == 48 && op->dim[3] == 64);
	assert_int_equal(op->operand[3], op->operand[2]); /* added to what q and k left */
	op = find_op(p, PLAN_OP_LINEAR, "model.layers.1.mlp.up_proj");
	assert_true(op->shift[3] == 48 && op->dim[4] == 96);
	assert_int_equal(count_ops(p, PLAN_OP_ROPE), 4);
	op = find_op(p, PLAN_OP_ROPE, "model.layers.0.self_attn");
	assert_true(op->operand[1] == p->rope && op->operand[2] == p->inputs.positions);
	assert_int_equal(p->buffers[p->rope].bytes, 8 * 8 * 4);
	assert_true(p->inputs.positions >= 0 && p->staging[1].starts >= 0);
	op = find_op(p, PLAN_OP_ATTENTION, "model.layers.0.self_attn");
	assert_int_equal(op->operand[3], p->inputs.starts);
	assert_string_equal(p->params[p->head].name, "lm_head.weight");
	assert_true(p->rope_theta == 10000 && p->head_size == 8);
	plan_destroy(p);
	s.model.tied = true;
	p = fixture_compile(&s);
	assert_string_equal(p->params[p->head].name, "model.embed_tokens.weight");
	plan_destroy(p);
}

/* Narrow models start with larger weights: 0.02 at 768, the root of the share elsewhere; what
 * writes the residual stream is scaled by the number of its writers. */
static void test_fresh_weights(void **state)
{
	struct job_spec s = fixture_llama(2, 4, 2, 192, 48, 8, 256);
	struct plan *p = fixture_compile(&s);
	const struct plan_param *q = fixture_param(p, "model.layers.1.self_attn.q_proj.weight");
	assert_true(q->init == PLAN_INIT_NORMAL && fixture_near(q->init_scale, 0.04, 1e-12));
	q = fixture_param(p, "model.layers.1.mlp.down_proj.weight");
	assert_true(fixture_near(q->init_scale, 0.04 / 2, 1e-12));
	plan_destroy(p);
}

static void test_lora(void **state)
{
	struct job_spec s = fixture_gpt2(2, 2, 16, 8, 256);
	fixture_lora(&s, 4, 1, (const char *const[]){ "c_attn" });
	struct plan *p = fixture_compile(&s);
	const struct plan_param *a =
		fixture_param(p, "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight");
	assert_true(a->shape[0] == 4 && a->shape[1] == 16 && a->role == PLAN_TRAINED);
	assert_true(a->init == PLAN_INIT_UNIFORM && a->init_scale == 0.25);
	const struct plan_param *b =
		fixture_param(p, "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight");
	assert_true(b->shape[0] == 48 && b->shape[1] == 4 && b->init == PLAN_INIT_ZERO);
	const struct plan_op *op = find_op(p, PLAN_OP_LINEAR, "transformer.h.1.attn.c_attn.lora_B");
	assert_true(op->scalar == 2 && op->operand[3] == op->operand[4] && op->transposed);
	assert_int_equal(fixture_param(p, "transformer.wte.weight")->role, PLAN_FROZEN);
	assert_int_equal(find_op(p, PLAN_OP_CLASSIFIER, "lm_head")->operand[6], -1);
	/* Four adapters' weights; below the first of them nothing: no norm, no embedding. */
	assert_int_equal(count_ops(p, PLAN_OP_LINEAR_BACKWARD_WEIGHT), 4);
	assert_int_equal(count_ops(p, PLAN_OP_LAYERNORM_BACKWARD), 4);
	assert_int_equal(count_ops(p, PLAN_OP_EMBEDDING_BACKWARD), 0);
	plan_destroy(p);
	/* "c_proj" is two modules of gpt2; an adapter of c_fc comes before its GELU. */
	s = fixture_gpt2(2, 2, 16, 8, 256);
	fixture_lora(&s, 4, 2, (const char *const[]){ "c_proj", "c_fc" });
	p = fixture_compile(&s);
	(void)fixture_param(p, "base_model.model.transformer.h.0.attn.c_proj.lora_A.weight");
	(void)fixture_param(p, "base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight");
	assert_int_equal(find_op(p, PLAN_OP_LINEAR, "transformer.h.1.mlp.c_fc")->act, PLAN_ACT_NONE);
	assert_int_equal(count_ops(p, PLAN_OP_GELU), 2);
	plan_destroy(p);
}

#define refuse(make, change, path)                                             \
	do {                                                                       \
		struct job_spec s = make;                                              \
		struct plan *p = NULL;                                                 \
		change;                                                                \
		assert_int_equal(plan_compile(&s, NULL, &p, &err), ERR_INVALID_VALUE); \
		assert_string_equal(err.param, path);                                  \
		assert_null(p);                                                        \
	} while (0)

static void test_refused(void **state)
{
	refuse(fixture_llama(2, 4, 3, 32, 48, 8, 256), (void)0, "$.model.config.num_key_value_heads");
	refuse(fixture_llama(2, 3, 3, 32, 48, 8, 256), (void)0, "$.model.config.num_attention_heads");
	refuse(fixture_llama(2, 4, 4, 12, 48, 8, 256), (void)0, "$.model.config.num_attention_heads");
	refuse(fixture_llama(0, 4, 4, 32, 48, 8, 256), (void)0, "$.model.config.num_hidden_layers");
	refuse(fixture_llama(2, 4, 4, 32, 0, 8, 256), (void)0, "$.model.config.intermediate_size");
	refuse(fixture_llama(2, 4, 4, 32, 48, 8, 256), s.model.rope_theta = 0,
		"$.model.config.rope_theta");
	refuse(fixture_llama(2, 4, 4, 32, 48, 8, 256), s.data.sequence_length = 9,
		"$.data.sequence_length");
	refuse(fixture_llama(2, 4, 4, 32, 48, 8, 200), (void)0, "$.model.config.vocab_size");
	refuse(fixture_llama(2, 4, 4, 1 << 25, 48, 8, 256), (void)0, "$.model.config.hidden_size");
	refuse(fixture_llama(2, 4, 4, 32, 48, 8, 256), s.task = SPEC_FINE_TUNE, "$.data.format");
	refuse(fixture_gpt2(2, 4, 32, 8, 256), s.model.n_kv_head = 2,
		"$.model.config.num_key_value_heads");
	refuse(fixture_gpt2(2, 4, 32, 8, 256), s.lora.dropout = 1, "$.lora.dropout");
	refuse(fixture_gpt2(2, 4, 32, 8, 256), s.hyper.ema_decay = 1, "$.hyperparameters.ema_decay");
	refuse(fixture_gpt2(2, 4, 32, 8, 256),
		fixture_lora(&s, 4, 2, (const char *const[]){ "c_attn", "q_proj" }),
		"$.lora.target_modules");
	refuse(fixture_gpt2(2, 4, 32, 8, 256), fixture_lora(&s, 4, 0, NULL), "$.lora.target_modules");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_counts),
		cmocka_unit_test(test_gradients_that_need_no_zeros),
		cmocka_unit_test(test_rules_of_thumb),
		cmocka_unit_test(test_lora_saves),
		cmocka_unit_test(test_activation_formulas),
		cmocka_unit_test(test_flops),
		cmocka_unit_test(test_memory_shrinks),
		cmocka_unit_test(test_70b),
		cmocka_unit_test(test_gpt2_fuses),
		cmocka_unit_test(test_classifier_chunks),
		cmocka_unit_test(test_llama),
		cmocka_unit_test(test_fresh_weights),
		cmocka_unit_test(test_lora),
		cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
