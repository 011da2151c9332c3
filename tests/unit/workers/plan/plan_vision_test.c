/* SPDX-License-Identifier: Apache-2.0
 * Plans of images and of click-through tables: published sizes, Hugging Face's names, the order of
 * residual sums, and what each kind of parameter gets. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include <stdio.h>

static struct job_spec resnet(enum spec_block block, enum spec_stem stem, int64_t side,
	int64_t classes, const int64_t blocks[4])
{
	struct job_spec s = fixture_cnn();
	s.model = (struct spec_model){ .family = SPEC_CNN,
		.block = block,
		.stem = stem,
		.channels = { 64, 128, 256, 512 },
		.channel_count = 4,
		.in_channels = 3,
		.in_height = side,
		.in_width = side,
		.n_classes = classes };
	memcpy(s.model.blocks, blocks, 4 * sizeof(blocks[0]));
	return s;
}

static const int64_t two[] = { 2, 2, 2, 2 }, fifty[] = { 3, 4, 6, 3 };

static int count_ops(const struct plan *p, enum plan_op_kind kind)
{
	int n = 0;
	for (int i = 0; i < p->op_count; i++)
		n += p->ops[i].kind == kind;
	return n;
}

/* torchvision's counts; FLOPs of a sample forward and backward are three times the published
 * multiply-adds times two, less the first layer's data gradient. */
static void test_published_sizes(void **state)
{
	const struct {
		struct job_spec spec;
		int64_t parameters;
		double forward_macs, first_macs;
	} cases[] = {
		{ resnet(SPEC_BLOCK_BASIC, SPEC_STEM_7, 224, 1000, two), 11689512, 1.814e9, 118013952 },
		{ resnet(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_7, 224, 1000, fifty), 25557032, 4.089e9,
			118013952 },
		{ resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 32, 10, two), 11173962, 0.5554e9, 1769472 },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup(plan_destroyp) struct plan *p = fixture_compile(&cases[i].spec);
		assert_int_equal(p->parameter_count, cases[i].parameters);
		assert_int_equal(p->trained_count, cases[i].parameters);
		double want = 6 * cases[i].forward_macs - 2 * cases[i].first_macs;
		if (fabs(p->flops_per_sample / want - 1) > 0.002)
			fail_msg("case %zu: %.5g FLOPs a sample, not %.5g", i, p->flops_per_sample, want);
	}
}

static void test_resnet_names(void **state)
{
	struct job_spec s = resnet(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_7, 64, 10, two);
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	const struct {
		const char *name;
		int64_t shape[4];
		int rank;
		enum plan_role role;
	} want[] = {
		{ "resnet.embedder.embedder.convolution.weight", { 64, 3, 7, 7 }, 4, PLAN_TRAINED },
		{ "resnet.embedder.embedder.normalization.weight", { 64 }, 1, PLAN_TRAINED },
		{ "resnet.embedder.embedder.normalization.running_var", { 64 }, 1, PLAN_STATE },
		{ "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight", { 256, 64, 1, 1 }, 4,
			PLAN_TRAINED },
		{ "resnet.encoder.stages.0.layers.0.shortcut.normalization.running_mean", { 256 }, 1,
			PLAN_STATE },
		{ "resnet.encoder.stages.3.layers.0.layer.0.convolution.weight", { 512, 1024, 1, 1 }, 4,
			PLAN_TRAINED },
		{ "resnet.encoder.stages.3.layers.0.layer.1.convolution.weight", { 512, 512, 3, 3 }, 4,
			PLAN_TRAINED },
		{ "resnet.encoder.stages.3.layers.1.layer.2.normalization.bias", { 2048 }, 1,
			PLAN_TRAINED },
		{ "classifier.1.weight", { 10, 2048 }, 2, PLAN_TRAINED },
		{ "classifier.1.bias", { 10 }, 1, PLAN_TRAINED },
	};
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		const struct plan_param *pr = fixture_param(p, want[i].name);
		assert_int_equal(pr->rank, want[i].rank);
		for (int k = 0; k < pr->rank; k++)
			assert_int_equal(pr->shape[k], want[i].shape[k]);
		assert_int_equal(pr->role, want[i].role);
		assert_int_equal(pr->decay, want[i].role == PLAN_TRAINED && want[i].rank > 1);
		assert_int_equal(pr->gradient >= 0, want[i].role == PLAN_TRAINED);
	}
	for (int i = 0; i < p->param_count; i++)
		assert_null(strstr(p->params[i].name, "stages.0.layers.1.shortcut"));
	/* He, by what goes out; norms begin as the identity. */
	const struct plan_param *pr =
		fixture_param(p, "resnet.encoder.stages.3.layers.0.layer.1.convolution.weight");
	assert_int_equal(pr->init, PLAN_INIT_NORMAL);
	assert_true(fabs(pr->init_scale - sqrt(2.0 / (9 * 512))) < 1e-9);
	assert_int_equal(fixture_param(p, want[1].name)->init, PLAN_INIT_ONE);
	assert_int_equal(fixture_param(p, want[2].name)->init, PLAN_INIT_ONE);
}

/* The bottleneck strides in its 3x3; the first stage keeps the image. */
static void test_strides(void **state)
{
	struct job_spec s = resnet(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_3, 33, 10, two);
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	int strided = 0;
	for (int i = 0; i < p->backward_begin; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind != PLAN_OP_CONV || op->dim[6] == 1)
			continue;
		strided++;
		assert_int_equal(op->dim[6], 2);
		assert_true(strstr(op->name, "layer.1.convolution") || strstr(op->name, "shortcut"));
		assert_null(strstr(op->name, "stages.0"));
	}
	assert_int_equal(strided, 6);
	/* 33 -> 33, 17, 9, 5 */
	for (int i = 0; i < p->backward_begin; i++)
		if (p->ops[i].kind == PLAN_OP_AVGPOOL) {
			assert_int_equal(p->ops[i].dim[1], 25);
			assert_int_equal(p->ops[i].dim[2], 2048);
		}
	assert_int_equal(count_ops(p, PLAN_OP_MAXPOOL), 0);
	s.model.stem = SPEC_STEM_7;
	cleanup(plan_destroyp) struct plan *q = fixture_compile(&s);
	assert_int_equal(count_ops(q, PLAN_OP_MAXPOOL), 1);
	assert_int_equal(count_ops(q, PLAN_OP_MAXPOOL_BACKWARD), 1);
}

/* Every gradient of a tensor is written before it is added to, and complete before it is read. */
static void test_residual_order(void **state)
{
	struct job_spec s = resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 16, 10, two);
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	int added = 0;
	for (int i = p->backward_begin; i < p->optimize_begin; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind != PLAN_OP_CONV_BACKWARD_DATA || !op->accumulate)
			continue;
		added++;
		int dx = op->operand[2], writer = -1;
		for (int k = p->backward_begin; k < i; k++)
			for (int j = 0; j < PLAN_OPERANDS_MAX; j++)
				if (p->ops[k].operand[j] == dx)
					writer = k;
		assert_true(writer >= p->backward_begin);
		assert_true(p->ops[writer].kind == PLAN_OP_CONV_BACKWARD_DATA ||
			p->ops[writer].kind == PLAN_OP_BATCHNORM_BACKWARD);
		/* What reads it next is the block before, or the stem. */
		assert_true(i + 1 < p->optimize_begin);
		assert_int_equal(p->ops[i + 1].kind, PLAN_OP_BATCHNORM_BACKWARD);
		assert_int_equal(p->ops[i + 1].operand[5], dx);
	}
	assert_int_equal(added, 8); /* one a block */
	assert_int_equal(count_ops(p, PLAN_OP_CONV), 20);
	assert_int_equal(count_ops(p, PLAN_OP_CONV_BACKWARD_WEIGHT), 20);
	assert_int_equal(count_ops(p, PLAN_OP_CONV_BACKWARD_DATA), 19);
	assert_int_equal(count_ops(p, PLAN_OP_BATCHNORM), 20);
	assert_int_equal(count_ops(p, PLAN_OP_BATCHNORM_BACKWARD), 20);
}

static void test_precision(void **state)
{
	struct job_spec s = resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 16, 10, two);
	cleanup(plan_destroyp) struct plan *full = fixture_compile(&s);
	assert_int_equal(count_ops(full, PLAN_OP_CAST), 0);
	s.precision = SPEC_BF16;
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	assert_int_equal(count_ops(p, PLAN_OP_CAST), 1);
	assert_true(p->kind_bytes[PLAN_ACTIVATIONS] < full->kind_bytes[PLAN_ACTIVATIONS] * 6 / 10);
	const struct plan_param *w =
		fixture_param(p, "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight");
	assert_int_equal(p->buffers[w->weight].type, PLAN_BF16);
	assert_int_not_equal(w->master, w->weight);
	const struct plan_param *mean =
		fixture_param(p, "resnet.embedder.embedder.normalization.running_mean");
	assert_int_equal(p->buffers[mean->weight].type, PLAN_F32);
}

static struct job_spec dlrm(void)
{
	struct job_spec s = fixture_cnn();
	s.task = SPEC_CLICK_THROUGH;
	s.data.format = SPEC_FORMAT_CSV;
	s.model = (struct spec_model){ .family = SPEC_DLRM,
		.dense_features = 13,
		.embedding_dim = 64,
		.lookups = 4,
		.hidden = { 512, 256, 64 },
		.hidden_count = 3,
		.top = { 512, 256 },
		.top_count = 2,
		.table_count = 26 };
	for (int i = 0; i < 26; i++)
		s.model.table_rows[i] = 100000;
	s.hyper.batch_size = 256;
	s.hyper.micro_batch_size = 128;
	return s;
}

static void test_dlrm(void **state)
{
	struct job_spec s = dlrm();
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	assert_int_equal(p->parameter_count, 166899521);
	assert_int_equal(p->sparse_count, 26);
	const struct plan_param *table = fixture_param(p, "embedding.25.weight");
	assert_ptr_equal(table, &p->params[p->sparse_first + 25]);
	assert_true(table->sparse);
	assert_false(table->decay);
	assert_int_equal(table->gradient, -1);
	assert_int_equal(table->init, PLAN_INIT_UNIFORM);
	assert_true(fabs(table->init_scale - 1 / sqrt(100000)) < 1e-12);
	assert_int_equal(fixture_param(p, "bottom.2.weight")->shape[0], 64);
	assert_int_equal(fixture_param(p, "top.0.weight")->shape[1], 64 + 27 * 26 / 2);
	assert_int_equal(fixture_param(p, "top.2.bias")->count, 1);
	assert_int_equal(count_ops(p, PLAN_OP_EMBEDDING_BAG), 26);
	assert_int_equal(count_ops(p, PLAN_OP_SPARSE_STORE), 26);
	assert_int_equal(count_ops(p, PLAN_OP_BCE), 1);
	/* The store holds a whole batch, each micro-batch its part. */
	for (int i = p->backward_begin; i < p->optimize_begin; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind != PLAN_OP_SPARSE_STORE)
			continue;
		assert_int_equal(op->dim[0], 128);
		assert_int_equal(p->buffers[op->operand[2]].bytes, 256 * 4 * 4);
		assert_int_equal(p->buffers[op->operand[3]].bytes, 256 * 64 * 4);
	}
	/* Tables stay fp32 whatever the precision. */
	s.precision = SPEC_BF16;
	cleanup(plan_destroyp) struct plan *q = fixture_compile(&s);
	assert_int_equal(q->buffers[fixture_param(q, "embedding.0.weight")->weight].type, PLAN_F32);
	assert_int_equal(q->buffers[fixture_param(q, "bottom.0.weight")->weight].type, PLAN_BF16);
}

static void refused(const struct job_spec *s, const char *param)
{
	struct plan *p = NULL;
	assert_int_not_equal(plan_compile(s, NULL, &p, &err), 0);
	assert_null(p);
	assert_string_equal(err.param, param);
}

static void test_refused(void **state)
{
	struct job_spec s = dlrm();
	s.model.hidden[2] = 32;
	refused(&s, "$.model.config.bottom");
	s = dlrm();
	s.model.table_rows[7] = 0;
	refused(&s, "$.model.config.table_rows");
	s = dlrm();
	s.model.table_rows[7] = INT64_C(1) << 31;
	refused(&s, "$.model.config.table_rows");
	s = dlrm();
	s.model.lookups = 0;
	refused(&s, "$.model.config.table_rows");
	s = dlrm();
	s.model.dense_features = 0;
	refused(&s, "$.model.config.dense_features");
	s = resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 16, 10, two);
	s.model.blocks[2] = 0;
	refused(&s, "$.model.config.blocks");
	s.model.blocks[2] = 1 << 20;
	refused(&s, "$.model.config.blocks");
	s = resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 16, 10, two);
	s.model.hidden_count = 1;
	s.model.hidden[0] = 5;
	refused(&s, "$.model.config.hidden");
	s = fixture_cnn();
	s.model.blocks_per_stage = INT64_MAX;
	refused(&s, "$.model.config.channels");
	s = fixture_cnn();
	s.model.in_height = 3;
	refused(&s, "$.model.config.channels");
	/* Sizes out of every bound end in an error, not in an overflow. */
	s = resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3, 1 << 20, 10, two);
	s.hyper.batch_size = s.hyper.micro_batch_size = 1 << 20;
	refused(&s, "$.model");
}

/* A classifier of dense layers: the gradient passes each ReLU inside the product. */
static void test_head(void **state)
{
	struct job_spec s = fixture_mlp();
	s.model.hidden_count = 2;
	s.model.hidden[1] = 32;
	s.hyper.dropout = 0.25;
	cleanup(plan_destroyp) struct plan *p = fixture_compile(&s);
	assert_int_equal(count_ops(p, PLAN_OP_RELU_BACKWARD), 0);
	assert_int_equal(count_ops(p, PLAN_OP_DROPOUT), 2);
	assert_int_equal(count_ops(p, PLAN_OP_DROPOUT_BACKWARD), 2);
	assert_int_equal(count_ops(p, PLAN_OP_LINEAR_BACKWARD_DATA), 2);
	for (int i = 0; i < p->op_count; i++) {
		const struct plan_op *op = &p->ops[i];
		if (op->kind == PLAN_OP_LINEAR_BACKWARD_DATA)
			assert_int_equal(op->act, PLAN_ACT_RELU);
		if (op->kind == PLAN_OP_DROPOUT)
			assert_true(op->scalar == 0.25);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_sizes),
		cmocka_unit_test(test_resnet_names),
		cmocka_unit_test(test_strides),
		cmocka_unit_test(test_residual_order),
		cmocka_unit_test(test_precision),
		cmocka_unit_test(test_dlrm),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_head),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
