/* SPDX-License-Identifier: Apache-2.0
 * Whole models: the engine's loss and gradients against central differences of a second, plain
 * implementation of each family in double, which shares no code with the engine or the plan. */
#include "tests/unit/workers/engine/engine_fixture.h"
#include "workers/engine/engine_private.h"

/* The engine's parameters in double, by name. */
struct model {
	struct engine *e;
	int count;
	double **value;
};

static struct model model_copy(struct engine *e)
{
	struct model m = { .e = e, .count = e->plan->param_count };
	m.value = calloc((size_t)m.count, sizeof(double *));
	for (int i = 0; i < m.count; i++) {
		const struct plan_param *p = &e->plan->params[i];
		const float *w = engine_buffer(e, p->weight);
		m.value[i] = calloc((size_t)p->count, sizeof(double));
		for (int64_t k = 0; k < p->count; k++)
			m.value[i][k] = (double)w[k];
	}
	return m;
}

static void model_free(struct model *m)
{
	for (int i = 0; i < m->count; i++)
		free(m->value[i]);
	free(m->value);
}

static const double *get(const struct model *m, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static const double *get(const struct model *m, const char *fmt, ...)
{
	char name[128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	for (int i = 0; i < m->count; i++)
		if (!strcmp(m->e->plan->params[i].name, name))
			return m->value[i];
	fail_msg("no parameter %s", name);
	return NULL;
}

static double cross_entropy(const double *x, int n, int label, double smoothing)
{
	double sum = 0, all = 0;
	for (int i = 0; i < n; i++) {
		sum += exp(x[i]);
		all += x[i];
	}
	return log(sum) - (1 - smoothing) * x[label] - smoothing * all / n;
}

/* y[n] = x[k] w + b, w [k, n]. */
static void conv1d(const double *x, const double *w, const double *b, int k, int n, double *y)
{
	for (int j = 0; j < n; j++) {
		y[j] = b[j];
		for (int i = 0; i < k; i++)
			y[j] += x[i] * w[i * n + j];
	}
}

static void norm(const double *x, const double *g, const double *b, int c, double *y)
{
	double mean = 0, var = 0;
	for (int i = 0; i < c; i++)
		mean += x[i] / c;
	for (int i = 0; i < c; i++)
		var += (x[i] - mean) * (x[i] - mean) / c;
	for (int i = 0; i < c; i++)
		y[i] = (x[i] - mean) / sqrt(var + 1e-5) * g[i] + b[i];
}

enum { C = 20, HEADS = 2, HS = C / HEADS, T = 12, LAYERS = 2, VOCAB = 256 };

static void attend(double qkv[T][3 * C], double y[T][C])
{
	for (int h = 0; h < HEADS; h++)
		for (int t = 0; t < T; t++) {
			double p[T], sum = 0;
			for (int j = 0; j <= t; j++) {
				double s = 0;
				for (int i = 0; i < HS; i++)
					s += qkv[t][h * HS + i] * qkv[j][C + h * HS + i];
				p[j] = exp(s / sqrt(HS));
				sum += p[j];
			}
			for (int i = 0; i < HS; i++) {
				y[t][h * HS + i] = 0;
				for (int j = 0; j <= t; j++)
					y[t][h * HS + i] += p[j] / sum * qkv[j][2 * C + h * HS + i];
			}
		}
}

static void gpt2_block(const struct model *m, int layer, double x[T][C])
{
	double n[C], qkv[T][3 * C], att[T][C], out[C], hidden[4 * C];
	for (int t = 0; t < T; t++) {
		norm(x[t], get(m, "transformer.h.%d.ln_1.weight", layer),
			get(m, "transformer.h.%d.ln_1.bias", layer), C, n);
		conv1d(n, get(m, "transformer.h.%d.attn.c_attn.weight", layer),
			get(m, "transformer.h.%d.attn.c_attn.bias", layer), C, 3 * C, qkv[t]);
	}
	attend(qkv, att);
	for (int t = 0; t < T; t++) {
		conv1d(att[t], get(m, "transformer.h.%d.attn.c_proj.weight", layer),
			get(m, "transformer.h.%d.attn.c_proj.bias", layer), C, C, out);
		for (int i = 0; i < C; i++)
			x[t][i] += out[i];
		norm(x[t], get(m, "transformer.h.%d.ln_2.weight", layer),
			get(m, "transformer.h.%d.ln_2.bias", layer), C, n);
		conv1d(n, get(m, "transformer.h.%d.mlp.c_fc.weight", layer),
			get(m, "transformer.h.%d.mlp.c_fc.bias", layer), C, 4 * C, hidden);
		for (int i = 0; i < 4 * C; i++)
			hidden[i] *=
				0.5 * (1 + tanh(sqrt(2 / M_PI) * (hidden[i] + 0.044715 * pow(hidden[i], 3))));
		conv1d(hidden, get(m, "transformer.h.%d.mlp.c_proj.weight", layer),
			get(m, "transformer.h.%d.mlp.c_proj.bias", layer), 4 * C, C, out);
		for (int i = 0; i < C; i++)
			x[t][i] += out[i];
	}
}

static double gpt2_loss(const struct model *m)
{
	const struct plan *p = m->e->plan;
	const int32_t *tokens = engine_buffer(m->e, p->input), *labels = engine_buffer(m->e, p->labels);
	const double *wte = get(m, "transformer.wte.weight"), *wpe = get(m, "transformer.wpe.weight");
	double loss = 0;
	for (int b = 0; b < p->micro_batch; b++) {
		double x[T][C], n[C], logits[VOCAB];
		for (int t = 0; t < T; t++)
			for (int i = 0; i < C; i++)
				x[t][i] = wte[tokens[b * T + t] * C + i] + wpe[t * C + i];
		for (int l = 0; l < LAYERS; l++)
			gpt2_block(m, l, x);
		for (int t = 0; t < T; t++) {
			norm(x[t], get(m, "transformer.ln_f.weight"), get(m, "transformer.ln_f.bias"), C, n);
			for (int v = 0; v < VOCAB; v++) {
				logits[v] = 0;
				for (int i = 0; i < C; i++)
					logits[v] += n[i] * wte[v * C + i];
			}
			loss +=
				cross_entropy(logits, VOCAB, labels[b * T + t], m->e->spec->hyper.label_smoothing);
		}
	}
	return loss / (double)p->rows;
}

/* Dense layers of the mlp and the cnn: w [n, k]. */
static void dense_layers(const struct model *m, const char *prefix, double *x, int k)
{
	const struct spec_model *s = &m->e->spec->model;
	for (int l = 0; l <= s->hidden_count; l++) {
		bool last = l == s->hidden_count;
		int n = (int)(last ? s->n_classes : s->hidden[l]);
		const double *w = get(m, "%s.%d.weight", prefix, l), *b = get(m, "%s.%d.bias", prefix, l);
		double y[512];
		for (int j = 0; j < n; j++) {
			y[j] = b[j];
			for (int i = 0; i < k; i++)
				y[j] += w[j * k + i] * x[i];
			if (!last && y[j] < 0)
				y[j] = 0;
		}
		memcpy(x, y, (size_t)n * sizeof(double));
		k = n;
	}
}

static double sample_loss(const struct model *m, const double *y, int sample)
{
	const struct plan *p = m->e->plan;
	int n = (int)p->n_classes;
	if (p->task != SPEC_REGRESSION) {
		const int32_t *labels = engine_buffer(m->e, p->labels);
		return cross_entropy(y, n, labels[sample], m->e->spec->hyper.label_smoothing);
	}
	const float *targets = engine_buffer(m->e, p->labels);
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += pow(y[i] - (double)targets[sample * n + i], 2) / n;
	return sum;
}

static double mlp_loss(const struct model *m)
{
	const struct plan *p = m->e->plan;
	const float *input = engine_buffer(m->e, p->input);
	int k = (int)(p->in_channels * p->in_height * p->in_width);
	double loss = 0;
	for (int b = 0; b < p->micro_batch; b++) {
		double x[512];
		for (int i = 0; i < k; i++)
			x[i] = (double)input[b * k + i];
		dense_layers(m, "layers", x, k);
		loss += sample_loss(m, x, b);
	}
	return loss / (double)p->micro_batch;
}

static void conv_relu(
	const double *x, const double *w, const double *bias, int h, int wd, int in, int out, double *y)
{
	for (int i = 0; i < h; i++)
		for (int j = 0; j < wd; j++)
			for (int o = 0; o < out; o++) {
				double sum = bias[o];
				for (int t = 0; t < 9; t++) {
					int r = i + t / 3 - 1, s = j + t % 3 - 1;
					for (int k = 0; r >= 0 && s >= 0 && r < h && s < wd && k < in; k++)
						sum += x[(r * wd + s) * in + k] * w[(o * in + k) * 9 + t];
				}
				y[(i * wd + j) * out + o] = sum > 0 ? sum : 0;
			}
}

static void pool(const double *x, int h, int w, int c, double *y)
{
	for (int i = 0; i < h / 2; i++)
		for (int j = 0; j < w / 2; j++)
			for (int k = 0; k < c; k++) {
				const double *a = x + (2 * i * w + 2 * j) * c + k;
				y[(i * (w / 2) + j) * c + k] = fmax(fmax(a[0], a[c]), fmax(a[w * c], a[w * c + c]));
			}
}

static double cnn_loss(const struct model *m)
{
	const struct spec_model *s = &m->e->spec->model;
	const struct plan *p = m->e->plan;
	const float *input = engine_buffer(m->e, p->input);
	double loss = 0;
	for (int b = 0; b < p->micro_batch; b++) {
		double x[4096], y[4096];
		int h = (int)s->in_height, w = (int)s->in_width, in = (int)s->in_channels;
		for (int i = 0; i < h * w * in; i++)
			x[i] = (double)input[b * h * w * in + i];
		for (int st = 0; st < s->channel_count; st++) {
			for (int k = 0; k < s->blocks_per_stage; k++) {
				conv_relu(x, get(m, "features.%d.%d.weight", st, k),
					get(m, "features.%d.%d.bias", st, k), h, w, in, (int)s->channels[st], y);
				in = (int)s->channels[st];
				memcpy(x, y, (size_t)(h * w * in) * sizeof(double));
			}
			pool(x, h, w, in, y);
			h /= 2;
			w /= 2;
			memcpy(x, y, (size_t)(h * w * in) * sizeof(double));
		}
		dense_layers(m, "classifier", x, h * w * in);
		loss += sample_loss(m, x, b);
	}
	return loss / (double)p->micro_batch;
}

/* Some elements of every parameter; relative to the largest gradient of its tensor. */
static void check_gradients(
	struct model *m, double (*loss)(const struct model *m), double tolerance)
{
	const double step = 1e-5;
	for (int i = 0; i < m->count; i++) {
		const struct plan_param *p = &m->e->plan->params[i];
		const float *g = engine_buffer(m->e, p->gradient);
		double size = 0, worst = 0;
		for (int64_t k = 0; k < p->count; k++)
			size = fmax(size, fabs((double)g[k]));
		for (int64_t k = 0; k < p->count; k += 1 + p->count / 12) {
			double *v = &m->value[i][k], keep = *v;
			*v = keep + step;
			double high = loss(m);
			*v = keep - step;
			double low = loss(m);
			*v = keep;
			worst = fmax(worst, fabs((double)g[k] - (high - low) / (2 * step)));
		}
		if (!(worst <= tolerance * size))
			fail_msg("%s: gradient differs by %.3g of %.3g", p->name, worst, size);
	}
}

static void check_family(struct job_spec spec, double (*loss)(const struct model *m))
{
	spec.hyper.micro_batch_size = spec.hyper.batch_size = 3;
	struct err err = { 0 };
	struct fixture f;
	fixture_open(&f, spec, 2);
	/* Larger, unequal parameters than a fresh model's, so that every path carries weight. */
	uint64_t state = 3;
	for (int i = 0; i < f.plan->param_count; i++) {
		const struct plan_param *p = &f.plan->params[i];
		float *w = engine_buffer(f.engine, p->weight);
		for (int64_t k = 0; k < p->count; k++)
			w[k] += (float)(0.2 * fixture_random(&state));
	}
	double sum = 0;
	f.engine->backend->enter(f.engine->ctx);
	assert_ok(engine_step_micro(f.engine, 5, 1.0f / (float)f.plan->rows, &sum, &err));
	struct model m = model_copy(f.engine);
	assert_true(fabs(sum / (double)f.plan->rows - loss(&m)) < 2e-6 * loss(&m));
	check_gradients(&m, loss, 1e-4);
	model_free(&m);
	fixture_close(&f);
}

static void test_gpt2(void **state)
{
	struct job_spec s = fixture_spec(SPEC_GPT2);
	check_family(s, gpt2_loss);
	s.hyper.label_smoothing = 0.1;
	check_family(s, gpt2_loss);
}

static void test_cnn(void **state)
{
	check_family(fixture_spec(SPEC_CNN), cnn_loss);
}

static void test_mlp(void **state)
{
	check_family(fixture_spec(SPEC_MLP), mlp_loss);
	struct job_spec none = fixture_spec(SPEC_MLP);
	none.model.hidden_count = 0;
	check_family(none, mlp_loss);
}

static void test_regression(void **state)
{
	struct job_spec s = fixture_spec(SPEC_MLP);
	s.task = SPEC_REGRESSION;
	s.model.in_height = 1;
	s.model.n_classes = 3;
	s.model.hidden[1] = 7;
	s.model.hidden_count = 2;
	check_family(s, mlp_loss);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gpt2),
		cmocka_unit_test(test_cnn),
		cmocka_unit_test(test_mlp),
		cmocka_unit_test(test_regression),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
