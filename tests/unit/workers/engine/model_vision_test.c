/* SPDX-License-Identifier: Apache-2.0
 * mlp, cnn, residual networks and dlrm, whole, against a second implementation. */
#include "tests/unit/workers/engine/model_fixture.h"

enum { WIDTH_MAX = 512, IMAGE_MAX = 4096, BATCH = 3 };

/* Dense layers with ReLU between them, and after the last where asked. w [n, k]. */
static int dense_layers(const struct model *m, const char *prefix, bool relu_last, double *x, int k)
{
	int layers = 0;
	while (model_find(m, "%s.%d.weight", prefix, layers))
		layers++;
	assert_true(layers > 0);
	for (int l = 0; l < layers; l++) {
		const double *w = model_get(m, "%s.%d.weight", prefix, l),
					 *b = model_get(m, "%s.%d.bias", prefix, l);
		int n = 0;
		for (int i = 0; i < m->count; i++)
			if (m->value[i] == w)
				n = (int)m->e->plan->params[i].shape[0];
		double y[WIDTH_MAX];
		for (int j = 0; j < n; j++) {
			y[j] = b[j];
			for (int i = 0; i < k; i++)
				y[j] += w[j * k + i] * x[i];
			if ((l + 1 < layers || relu_last) && y[j] < 0)
				y[j] = 0;
		}
		memcpy(x, y, (size_t)n * sizeof(double));
		k = n;
	}
	return k;
}

static double sample_loss(const struct model *m, const double *y, int sample)
{
	const struct plan *p = m->e->plan;
	int n = (int)p->n_classes;
	if (p->task == SPEC_CLICK_THROUGH) {
		double label = (double)((float *)engine_buffer(m->e, p->inputs.labels))[sample];
		return log(1 + exp(y[0])) - label * y[0];
	}
	if (p->task != SPEC_REGRESSION) {
		const int32_t *labels = engine_buffer(m->e, p->inputs.labels);
		return model_cross_entropy(y, n, labels[sample], m->e->spec->hyper.label_smoothing);
	}
	const float *targets = engine_buffer(m->e, p->inputs.labels);
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += pow(y[i] - (double)targets[sample * n + i], 2) / n;
	return sum;
}

static double mlp_loss(const struct model *m)
{
	const struct plan *p = m->e->plan;
	const float *input = engine_buffer(m->e, p->inputs.input);
	int k = (int)(p->in_channels * p->in_height * p->in_width);
	double loss = 0;
	for (int b = 0; b < p->micro_batch; b++) {
		double x[WIDTH_MAX];
		for (int i = 0; i < k; i++)
			x[i] = (double)input[b * k + i];
		dense_layers(m, "layers", false, x, k);
		loss += sample_loss(m, x, b);
	}
	return loss / (double)p->micro_batch;
}

/* One image, channels last. */
struct image {
	int h, w, c;
	double x[IMAGE_MAX];
};

static void conv(struct image *a, const double *weight, int out, int kernel, int stride, int pad)
{
	struct image y = { .h = (a->h + 2 * pad - kernel) / stride + 1,
		.w = (a->w + 2 * pad - kernel) / stride + 1,
		.c = out };
	assert_true(y.h * y.w * y.c <= IMAGE_MAX);
	for (int i = 0; i < y.h * y.w * out; i++) {
		int o = i % out, col = i / out % y.w, row = i / out / y.w;
		double sum = 0;
		for (int t = 0; t < kernel * kernel; t++) {
			int r = row * stride + t / kernel - pad, s = col * stride + t % kernel - pad;
			for (int k = 0; r >= 0 && s >= 0 && r < a->h && s < a->w && k < a->c; k++)
				sum +=
					a->x[(r * a->w + s) * a->c + k] * weight[(o * a->c + k) * kernel * kernel + t];
		}
		y.x[i] = sum;
	}
	*a = y;
}

static void maxpool(struct image *a, int kernel, int stride, int pad)
{
	struct image y = { .h = (a->h + 2 * pad - kernel) / stride + 1,
		.w = (a->w + 2 * pad - kernel) / stride + 1,
		.c = a->c };
	for (int i = 0; i < y.h * y.w * y.c; i++) {
		int o = i % y.c, col = i / y.c % y.w, row = i / y.c / y.w;
		double most = -INFINITY;
		for (int t = 0; t < kernel * kernel; t++) {
			int r = row * stride + t / kernel - pad, s = col * stride + t % kernel - pad;
			if (r >= 0 && s >= 0 && r < a->h && s < a->w)
				most = fmax(most, a->x[(r * a->w + s) * a->c + o]);
		}
		y.x[i] = most;
	}
	*a = y;
}

static void relu(struct image *a)
{
	for (int i = 0; i < a->h * a->w * a->c; i++)
		a->x[i] = fmax(a->x[i], 0);
}

static void input_images(const struct model *m, struct image *x)
{
	const struct plan *p = m->e->plan;
	const float *input = engine_buffer(m->e, p->inputs.input);
	int count = (int)(p->in_height * p->in_width * p->in_channels);
	assert_int_equal(p->micro_batch, BATCH);
	for (int b = 0; b < BATCH; b++) {
		x[b].h = (int)p->in_height;
		x[b].w = (int)p->in_width;
		x[b].c = (int)p->in_channels;
		for (int i = 0; i < count; i++)
			x[b].x[i] = (double)input[b * count + i];
	}
}

static double cnn_loss(const struct model *m)
{
	static struct image x[BATCH];
	const struct spec_model *s = &m->e->spec->model;
	double loss = 0;
	input_images(m, x);
	for (int b = 0; b < BATCH; b++) {
		for (int st = 0; st < s->channel_count; st++) {
			for (int k = 0; k < s->blocks_per_stage; k++) {
				const double *bias = model_get(m, "features.%d.%d.bias", st, k);
				conv(&x[b], model_get(m, "features.%d.%d.weight", st, k), (int)s->channels[st], 3,
					1, 1);
				for (int i = 0; i < x[b].h * x[b].w * x[b].c; i++)
					x[b].x[i] += bias[i % x[b].c];
				relu(&x[b]);
			}
			maxpool(&x[b], 2, 2, 0);
		}
		dense_layers(m, "classifier", false, x[b].x, x[b].h * x[b].w * x[b].c);
		loss += sample_loss(m, x[b].x, b);
	}
	return loss / BATCH;
}

/* Statistics of the batch, biased variance, as in training. */
static void batch_norm(const struct model *m, const char *name, struct image *x)
{
	const double *gain = model_get(m, "%s.weight", name), *bias = model_get(m, "%s.bias", name);
	int pixels = x[0].h * x[0].w, c = x[0].c;
	for (int k = 0; k < c; k++) {
		double mean = 0, var = 0;
		for (int i = 0; i < BATCH * pixels; i++)
			mean += x[i / pixels].x[i % pixels * c + k] / (BATCH * pixels);
		for (int i = 0; i < BATCH * pixels; i++)
			var += pow(x[i / pixels].x[i % pixels * c + k] - mean, 2) / (BATCH * pixels);
		for (int i = 0; i < BATCH * pixels; i++) {
			double *v = &x[i / pixels].x[i % pixels * c + k];
			*v = (*v - mean) / sqrt(var + 1e-5) * gain[k] + bias[k];
		}
	}
}

static void conv_norm(const struct model *m, const char *prefix, const char *conv_name,
	const char *norm_name, struct image *x, int out, int kernel, int stride)
{
	char name[160];
	snprintf(name, sizeof(name), "%s.%s", prefix, norm_name);
	const double *w = model_get(m, "%s.%s.weight", prefix, conv_name);
	for (int b = 0; b < BATCH; b++)
		conv(&x[b], w, out, kernel, stride, kernel / 2);
	batch_norm(m, name, x);
}

static void residual_block(
	const struct model *m, const char *at, struct image *x, int width, int stride)
{
	static struct image y[BATCH];
	bool bottleneck = m->e->spec->model.block == SPEC_BLOCK_BOTTLENECK;
	int layers = bottleneck ? 3 : 2, out = bottleneck ? 4 * width : width;
	memcpy(y, x, sizeof(y));
	for (int j = 0; j < layers; j++) {
		char name[160];
		snprintf(name, sizeof(name), "%s.layer.%d", at, j);
		bool strided = j == (bottleneck ? 1 : 0);
		conv_norm(m, name, "convolution", "normalization", y, j + 1 < layers ? width : out,
			bottleneck && j != 1 ? 1 : 3, strided ? stride : 1);
		for (int b = 0; b < BATCH && j + 1 < layers; b++)
			relu(&y[b]);
	}
	if (model_find(m, "%s.shortcut.convolution.weight", at))
		conv_norm(m, at, "shortcut.convolution", "shortcut.normalization", x, out, 1, stride);
	for (int b = 0; b < BATCH; b++) {
		for (int i = 0; i < y[b].h * y[b].w * y[b].c; i++)
			x[b].x[i] += y[b].x[i];
		relu(&x[b]);
	}
}

static double resnet_loss(const struct model *m)
{
	static struct image x[BATCH];
	const struct spec_model *s = &m->e->spec->model;
	bool wide = s->stem == SPEC_STEM_7;
	double loss = 0;
	const double *stem = model_get(m, "resnet.embedder.embedder.convolution.weight");
	input_images(m, x);
	int width = 0;
	for (int i = 0; i < m->count; i++)
		if (m->value[i] == stem)
			width = (int)m->e->plan->params[i].shape[0];
	for (int b = 0; b < BATCH; b++)
		conv(&x[b], stem, width, wide ? 7 : 3, wide ? 2 : 1, wide ? 3 : 1);
	batch_norm(m, "resnet.embedder.embedder.normalization", x);
	for (int b = 0; b < BATCH; b++) {
		relu(&x[b]);
		if (wide)
			maxpool(&x[b], 3, 2, 1);
	}
	for (int st = 0; st < s->channel_count; st++)
		for (int k = 0; k < s->blocks[st]; k++) {
			char at[128];
			snprintf(at, sizeof(at), "resnet.encoder.stages.%d.layers.%d", st, k);
			residual_block(m, at, x, (int)s->channels[st], st > 0 && k == 0 ? 2 : 1);
		}
	const double *w = model_get(m, "classifier.1.weight"),
				 *bias = model_get(m, "classifier.1.bias");
	for (int b = 0; b < BATCH; b++) {
		double y[WIDTH_MAX];
		int pixels = x[b].h * x[b].w, c = x[b].c;
		for (int j = 0; j < s->n_classes; j++) {
			y[j] = bias[j];
			for (int i = 0; i < pixels * c; i++)
				y[j] += w[j * c + i % c] * x[b].x[i] / pixels;
		}
		loss += sample_loss(m, y, b);
	}
	return loss / BATCH;
}

static double dlrm_loss(const struct model *m)
{
	const struct spec_model *s = &m->e->spec->model;
	const struct plan *p = m->e->plan;
	const struct data_batch in = engine_batch(m->e, &p->inputs);
	int d = (int)s->embedding_dim, features = s->table_count + 1;
	double loss = 0;
	for (int b = 0; b < p->micro_batch; b++) {
		double x[WIDTH_MAX], z[16][WIDTH_MAX] = { 0 };
		for (int i = 0; i < s->dense_features; i++)
			z[0][i] = (double)((float *)in.input)[b * s->dense_features + i];
		assert_int_equal(dense_layers(m, "bottom", true, z[0], (int)s->dense_features), d);
		for (int t = 0; t < s->table_count; t++)
			for (int l = 0; l < s->lookups; l++) {
				int32_t id = in.bags[(t * p->micro_batch + b) * s->lookups + l];
				for (int i = 0; i < d && id >= 0; i++)
					z[t + 1][i] += model_get(m, "embedding.%d.weight", t)[id * d + i];
			}
		int n = d;
		memcpy(x, z[0], (size_t)d * sizeof(double));
		for (int i = 1; i < features; i++)
			for (int j = 0; j < i; j++, n++) {
				x[n] = 0;
				for (int k = 0; k < d; k++)
					x[n] += z[i][k] * z[j][k];
			}
		assert_int_equal(dense_layers(m, "top", false, x, n), 1);
		loss += sample_loss(m, x, b);
	}
	return loss / (double)p->micro_batch;
}

static void test_cnn(void **state)
{
	model_check(fixture_spec(SPEC_CNN), cnn_loss);
}

static void test_resnet(void **state)
{
	model_check(case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_3), resnet_loss);
	struct job_spec s = case_resnet(SPEC_BLOCK_BASIC, SPEC_STEM_7);
	s.model.in_height = 18;
	s.model.in_width = 17;
	model_check(s, resnet_loss);
	s.model.block = SPEC_BLOCK_BOTTLENECK;
	model_check(s, resnet_loss);
	model_check(case_resnet(SPEC_BLOCK_BOTTLENECK, SPEC_STEM_3), resnet_loss);
}

static void test_mlp(void **state)
{
	model_check(fixture_spec(SPEC_MLP), mlp_loss);
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.model.hidden_count = 0;
	s.hyper.label_smoothing = 0.2;
	model_check(s, mlp_loss);
}

static void test_regression(void **state)
{
	struct job_spec s = case_regression();
	s.model.hidden[1] = 7;
	s.model.hidden_count = 2;
	model_check(s, mlp_loss);
}

static void test_dlrm(void **state)
{
	model_check(case_dlrm(), dlrm_loss);
}

#if defined(ENGINE_CUDA)
/* The plan's wish comes to the products, and to nothing that fp32 must stay exact in. */
static void test_tf32(void **state)
{
	double loss[2];
	for (int i = 0; i < 2; i++) {
		struct fixture f;
		struct engine_step s;
		struct err err = { 0 };
		struct job_spec spec = fixture_spec(SPEC_CNN);
		spec.precision = i ? SPEC_TF32 : SPEC_FP32;
		fixture_open(&f, spec, 1);
		assert_int_equal(engine_step(f.engine, &s, &err), 0);
		loss[i] = s.loss;
		fixture_close(&f);
	}
	double off = fabs(loss[1] / loss[0] - 1);
	print_message("tf32: the loss is %.3g off\n", off);
	assert_true(off > 1e-6 && off < 1e-2);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#if defined(ENGINE_CUDA)
		cmocka_unit_test(test_tf32),
#endif
		cmocka_unit_test(test_cnn),
		cmocka_unit_test(test_resnet),
		cmocka_unit_test(test_mlp),
		cmocka_unit_test(test_regression),
		cmocka_unit_test(test_dlrm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
