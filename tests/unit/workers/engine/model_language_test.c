/* SPDX-License-Identifier: Apache-2.0
 * gpt2 and llama, whole, with masks, packing and adapters, against a second implementation. */
#include "tests/unit/workers/engine/model_fixture.h"

enum { T_MAX = 16, C_MAX = 32, WIDE_MAX = 4 * C_MAX, VOCAB_MAX = 300 };

/* What every row of the micro-batch is. */
struct row {
	int token, label, position, start;
};

static struct row row_of(const struct model *m, int64_t sample, int64_t t)
{
	const struct plan *p = m->e->plan;
	struct data_batch b = engine_batch(m->e, &p->inputs);
	int64_t r = sample * p->sequence_length + t;
	return (struct row){ ((int32_t *)b.input)[r], ((int32_t *)b.labels)[r],
		b.positions ? b.positions[r] : (int)t, b.starts ? b.starts[r] : 0 };
}

/* y[n] (+)= x[k] w, the weight [n, k] or [k, n]. */
static void product(const double *x, const double *w, bool transposed, int k, int n, double *y)
{
	for (int j = 0; j < n; j++)
		for (int i = 0; i < k; i++)
			y[j] += x[i] * (transposed ? w[j * k + i] : w[i * n + j]);
}

/* A layer of the base, with its bias and its adapter where there are. */
static void layer(const struct model *m, const char *name, bool transposed, const double *x, int k,
	int n, double *y)
{
	const struct spec_lora *lora = &m->e->spec->lora;
	const double *bias = model_find(m, "%s.bias", name);
	for (int j = 0; j < n; j++)
		y[j] = bias ? bias[j] : 0;
	product(x, model_get(m, "%s.weight", name), transposed, k, n, y);
	const double *a = model_find(m, "base_model.model.%s.lora_A.weight", name);
	if (!a)
		return;
	const double *b = model_get(m, "base_model.model.%s.lora_B.weight", name);
	double inner[C_MAX] = { 0 }, out[WIDE_MAX] = { 0 };
	product(x, a, true, k, (int)lora->rank, inner);
	product(inner, b, true, (int)lora->rank, n, out);
	for (int j = 0; j < n; j++)
		y[j] += out[j] * lora->alpha / (double)lora->rank;
}

/* Layer norm with a bias, RMS norm without. */
static void norm(const struct model *m, const char *name, const double *x, int c, double *y)
{
	const double *g = model_get(m, "%s.weight", name), *b = model_find(m, "%s.bias", name);
	double mean = 0, var = 0;
	for (int i = 0; i < c && b; i++)
		mean += x[i] / c;
	for (int i = 0; i < c; i++)
		var += (x[i] - mean) * (x[i] - mean) / c;
	for (int i = 0; i < c; i++)
		y[i] = (x[i] - mean) / sqrt(var + m->e->spec->model.norm_eps) * g[i] + (b ? b[i] : 0);
}

/* One query head over the keys from `start` to t. q, k, v are rows with a distance of `stride`. */
static void attend(const double *q, const double *k, const double *v, int stride, int start, int t,
	int size, double *y)
{
	double p[T_MAX], sum = 0;
	for (int j = start; j <= t; j++) {
		double s = 0;
		for (int i = 0; i < size; i++)
			s += q[i] * k[j * stride + i];
		p[j] = exp(s / sqrt(size));
		sum += p[j];
	}
	for (int i = 0; i < size; i++) {
		y[i] = 0;
		for (int j = start; j <= t; j++)
			y[i] += p[j] / sum * v[j * stride + i];
	}
}

static void add(const double *x, int n, double *y)
{
	for (int i = 0; i < n; i++)
		y[i] += x[i];
}

static void gpt2_block(const struct model *m, int64_t sample, int index, double (*x)[C_MAX])
{
	const struct spec_model *s = &m->e->spec->model;
	int c = (int)s->n_embd, heads = (int)s->n_head, size = c / heads,
		length = (int)m->e->plan->sequence_length;
	static double qkv[T_MAX][3 * C_MAX];
	double n[C_MAX], att[C_MAX], out[C_MAX], hidden[WIDE_MAX];
	char at[64], name[96];
	snprintf(at, sizeof(at), "transformer.h.%d", index);
#define NAMED(part) (snprintf(name, sizeof(name), "%s.%s", at, part), name)
	for (int t = 0; t < length; t++) {
		norm(m, NAMED("ln_1"), x[t], c, n);
		layer(m, NAMED("attn.c_attn"), false, n, c, 3 * c, qkv[t]);
	}
	for (int t = 0; t < length; t++) {
		struct row row = row_of(m, sample, t);
		for (int h = 0; h < heads; h++)
			attend(qkv[t] + h * size, qkv[0] + c + h * size, qkv[0] + 2 * c + h * size, 3 * C_MAX,
				row.start, t, size, att + h * size);
		layer(m, NAMED("attn.c_proj"), false, att, c, c, out);
		add(out, c, x[t]);
		norm(m, NAMED("ln_2"), x[t], c, n);
		layer(m, NAMED("mlp.c_fc"), false, n, c, 4 * c, hidden);
		for (int i = 0; i < 4 * c; i++)
			hidden[i] *=
				0.5 * (1 + tanh(sqrt(2 / M_PI) * (hidden[i] + 0.044715 * pow(hidden[i], 3))));
		layer(m, NAMED("mlp.c_proj"), false, hidden, 4 * c, c, out);
		add(out, c, x[t]);
	}
}

/* Half-split pairs turn by position / theta^(2i / size). */
static void rotate(double *x, int size, int position, double theta)
{
	for (int i = 0; i < size / 2; i++) {
		double angle = position * pow(theta, -2.0 * i / size);
		double a = x[i], b = x[i + size / 2];
		x[i] = a * cos(angle) - b * sin(angle);
		x[i + size / 2] = b * cos(angle) + a * sin(angle);
	}
}

static void llama_block(const struct model *m, int64_t sample, int index, double (*x)[C_MAX])
{
	const struct spec_model *s = &m->e->spec->model;
	int c = (int)s->n_embd, heads = (int)s->n_head, kv = (int)s->n_kv_head, size = c / heads,
		inner = (int)s->n_inner, length = (int)m->e->plan->sequence_length;
	static double q[T_MAX][C_MAX], k[T_MAX][C_MAX], v[T_MAX][C_MAX];
	double n[C_MAX], att[C_MAX], out[C_MAX], gate[WIDE_MAX], up[WIDE_MAX];
	char at[64], name[96];
	snprintf(at, sizeof(at), "model.layers.%d", index);
	for (int t = 0; t < length; t++) {
		struct row row = row_of(m, sample, t);
		norm(m, NAMED("input_layernorm"), x[t], c, n);
		layer(m, NAMED("self_attn.q_proj"), true, n, c, c, q[t]);
		layer(m, NAMED("self_attn.k_proj"), true, n, c, kv * size, k[t]);
		layer(m, NAMED("self_attn.v_proj"), true, n, c, kv * size, v[t]);
		for (int h = 0; h < heads; h++)
			rotate(q[t] + h * size, size, row.position, s->rope_theta);
		for (int h = 0; h < kv; h++)
			rotate(k[t] + h * size, size, row.position, s->rope_theta);
	}
	for (int t = 0; t < length; t++) {
		struct row row = row_of(m, sample, t);
		for (int h = 0; h < heads; h++) {
			int group = h / (heads / kv) * size;
			attend(q[t] + h * size, k[0] + group, v[0] + group, C_MAX, row.start, t, size,
				att + h * size);
		}
		layer(m, NAMED("self_attn.o_proj"), true, att, c, c, out);
		add(out, c, x[t]);
		norm(m, NAMED("post_attention_layernorm"), x[t], c, n);
		layer(m, NAMED("mlp.gate_proj"), true, n, c, inner, gate);
		layer(m, NAMED("mlp.up_proj"), true, n, c, inner, up);
		for (int i = 0; i < inner; i++)
			gate[i] *= up[i] / (1 + exp(-gate[i]));
		layer(m, NAMED("mlp.down_proj"), true, gate, inner, c, out);
		add(out, c, x[t]);
	}
}

static double language_loss(const struct model *m)
{
	const struct plan *p = m->e->plan;
	const struct spec_model *s = &m->e->spec->model;
	bool llama = s->family == SPEC_LLAMA;
	int c = (int)s->n_embd, valid = 0;
	const double *wte =
		llama ? model_get(m, "model.embed_tokens.weight") : model_get(m, "transformer.wte.weight");
	const double *wpe = llama ? NULL : model_get(m, "transformer.wpe.weight");
	const double *head = llama && !s->tied ? model_get(m, "lm_head.weight") : wte;
	double loss = 0;
	for (int64_t b = 0; b < p->micro_batch; b++) {
		static double x[T_MAX][C_MAX];
		double n[C_MAX], logits[VOCAB_MAX];
		for (int t = 0; t < p->sequence_length; t++) {
			struct row row = row_of(m, b, t);
			for (int i = 0; i < c; i++)
				x[t][i] = wte[row.token * c + i] + (wpe ? wpe[row.position * c + i] : 0);
		}
		for (int l = 0; l < s->n_layer; l++)
			(llama ? llama_block : gpt2_block)(m, b, l, x);
		for (int t = 0; t < p->sequence_length; t++) {
			struct row row = row_of(m, b, t);
			if (row.label < 0)
				continue;
			norm(m, llama ? "model.norm" : "transformer.ln_f", x[t], c, n);
			memset(logits, 0, sizeof(logits));
			product(n, head, true, c, (int)s->vocab_size, logits);
			loss += model_cross_entropy(
				logits, (int)s->vocab_size, row.label, m->e->spec->hyper.label_smoothing);
			valid++;
		}
	}
	return loss / valid;
}

static void test_gpt2(void **state)
{
	struct job_spec s = case_language(SPEC_GPT2);
	model_check(s, language_loss);
	s.hyper.label_smoothing = 0.1;
	s.checkpointing = SPEC_FULL;
	model_check(s, language_loss);
}

static void test_llama(void **state)
{
	struct job_spec s = case_language(SPEC_LLAMA);
	model_check(s, language_loss);
	s.model.tied = true;
	s.model.n_kv_head = 4;
	s.checkpointing = SPEC_SELECTIVE;
	model_check(s, language_loss);
	s.model.n_kv_head = 1;
	s.checkpointing = SPEC_FULL;
	model_check(s, language_loss);
}

/* Masked labels; documents that share a sequence do not see each other. */
static void test_fine_tune(void **state)
{
	model_check(case_fine_tune(SPEC_GPT2, false), language_loss);
	model_check(case_fine_tune(SPEC_GPT2, true), language_loss);
	model_check(case_fine_tune(SPEC_LLAMA, true), language_loss);
}

static void test_adapters(void **state)
{
	model_check(case_lora(case_language(SPEC_GPT2), 0), language_loss);
	model_check(case_lora(case_language(SPEC_LLAMA), 0), language_loss);
	struct job_spec s = case_lora(case_fine_tune(SPEC_LLAMA, true), 0);
	s.model.tied = true;
	s.checkpointing = SPEC_FULL;
	model_check(s, language_loss);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gpt2),
		cmocka_unit_test(test_llama),
		cmocka_unit_test(test_fine_tune),
		cmocka_unit_test(test_adapters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
