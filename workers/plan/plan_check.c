/* SPDX-License-Identifier: Apache-2.0
 * What a spec must keep before any family looks at it: tasks, families and formats that belong
 * together, and numbers in range. The spec's reader checks more; this is what keeps a plan sound
 * whoever made the spec. Called by plan_compile. */
#include "workers/plan/plan_private.h"

static const int64_t batch_max = 1 << 20;
/* No dimension is so large that a product of two of them could overflow. */
static const int64_t dim_max = 1 << 24;

#define BIT(x) (1u << (unsigned)(x))

enum {
	LANGUAGE = BIT(SPEC_GPT2) | BIT(SPEC_LLAMA),
	FORMATS_TABLE = BIT(SPEC_FORMAT_IDX) | BIT(SPEC_FORMAT_CSV) | BIT(SPEC_FORMAT_NPY),
};

/* What each task may be combined with. */
static const struct {
	unsigned families, formats;
} allowed[SPEC_TASK_COUNT] = {
	[SPEC_LANGUAGE_MODEL] = { LANGUAGE,
		BIT(SPEC_FORMAT_TEXT) | BIT(SPEC_FORMAT_JSONL) | BIT(SPEC_FORMAT_TOKENS) },
	[SPEC_FINE_TUNE] = { LANGUAGE, BIT(SPEC_FORMAT_JSONL) },
	[SPEC_IMAGE_CLASSIFICATION] = { BIT(SPEC_CNN) | BIT(SPEC_MLP),
		BIT(SPEC_FORMAT_IDX) | BIT(SPEC_FORMAT_NPY) | BIT(SPEC_FORMAT_IMAGE_TAR) },
	[SPEC_REGRESSION] = { BIT(SPEC_MLP), FORMATS_TABLE },
	[SPEC_CLASSIFICATION] = { BIT(SPEC_MLP), FORMATS_TABLE },
	[SPEC_CLICK_THROUGH] = { BIT(SPEC_DLRM), BIT(SPEC_FORMAT_CSV) },
};

static int check_combination(const struct job_spec *s, struct err *err)
{
	if ((unsigned)s->task >= SPEC_TASK_COUNT || (unsigned)s->model.family >= SPEC_FAMILY_COUNT)
		return err_set(err, ERR_INVALID_VALUE, "$.task", "unknown task or family");
	unsigned families = allowed[s->task].families;
	bool language_task = families == LANGUAGE;
	if (language_task != spec_is_language(s))
		return err_set(err, ERR_INVALID_VALUE, "$.model.config.family",
			"the families gpt2 and llama and the tasks language_model and fine_tune need each "
			"other");
	if ((families & BIT(s->model.family)) == 0)
		return err_set(
			err, ERR_INVALID_VALUE, "$.task", "the model's family cannot be trained for this task");
	if ((unsigned)s->data.format >= SPEC_FORMAT_COUNT ||
		(allowed[s->task].formats & BIT(s->data.format)) == 0)
		return err_set(err, ERR_INVALID_VALUE, "$.data.format",
			"data of this format cannot be used for this task");
	return 0;
}

static int check_batch(const struct spec_hyper *h, struct err *err)
{
	if (h->batch_size < 1 || h->batch_size > batch_max)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.batch_size",
			"batch_size must be 1 to %lld", (long long)batch_max);
	if (h->micro_batch_size < 0 ||
		(h->micro_batch_size > 0 && h->batch_size % h->micro_batch_size != 0))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.micro_batch_size",
			"batch_size (%lld) must be a multiple of micro_batch_size (%lld)",
			(long long)h->batch_size, (long long)h->micro_batch_size);
	if (h->max_steps < 0 || h->warmup_steps < 0)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.max_steps",
			"max_steps and warmup_steps must not be negative");
	if (h->max_steps == 0 && !(h->epochs > 0))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.epochs",
			"epochs must be above 0 when max_steps is not given");
	return 0;
}

static int check_shares(const struct job_spec *s, struct err *err)
{
	const struct {
		const char *param;
		double value;
	} shares[] = { { "$.hyperparameters.dropout", s->hyper.dropout },
		{ "$.hyperparameters.label_smoothing", s->hyper.label_smoothing },
		{ "$.hyperparameters.ema_decay", s->hyper.ema_decay },
		{ "$.lora.dropout", s->lora.dropout } };
	for (size_t i = 0; i < ARRAY_LEN(shares); i++)
		if (!(shares[i].value >= 0 && shares[i].value < 1))
			return err_set(err, ERR_INVALID_VALUE, shares[i].param,
				"%s must be at least 0 and below 1", shares[i].param);
	return 0;
}

/* count numbers of 1 to dim_max, at most `most` of them. */
static int check_list(
	const int64_t *v, int count, int most, const char *param, const char *what, struct err *err)
{
	if (count < 0 || count > most)
		return err_set(err, ERR_INVALID_VALUE, param, "a model has at most %d %s", most, what);
	for (int i = 0; i < count; i++)
		if (v[i] < 1 || v[i] > dim_max)
			return err_set(err, ERR_INVALID_VALUE, param, "number %d of the %s must be 1 to %lld",
				i + 1, what, (long long)dim_max);
	return 0;
}

static int check_dims(const struct job_spec *s, struct err *err)
{
	const struct spec_model *m = &s->model;
	bool llama = m->family == SPEC_LLAMA;
	const struct {
		const char *param;
		int64_t value;
	} dims[] = {
		{ llama ? "$.model.config.hidden_size" : "$.model.config.n_embd", m->n_embd },
		{ llama ? "$.model.config.num_attention_heads" : "$.model.config.n_head", m->n_head },
		{ "$.model.config.num_key_value_heads", m->n_kv_head },
		{ llama ? "$.model.config.intermediate_size" : "$.model.config.n_inner", m->n_inner },
		{ llama ? "$.model.config.max_position_embeddings" : "$.model.config.n_positions",
			m->n_positions },
		{ "$.model.config.vocab_size", m->vocab_size },
		{ "$.data.sequence_length", s->data.sequence_length },
		{ "$.model.config.dense_features", m->dense_features },
		{ "$.model.config.embedding_dim", m->embedding_dim },
		{ "$.model.config.lookups", m->lookups },
		{ "$.lora.rank", s->lora.rank },
	};
	for (size_t i = 0; i < ARRAY_LEN(dims); i++)
		if (dims[i].value < 0 || dims[i].value > dim_max)
			return err_set(err, ERR_INVALID_VALUE, dims[i].param, "%s must be at most %lld",
				dims[i].param, (long long)dim_max);
	const struct {
		const char *param, *what;
		const int64_t *values;
		int count, most;
	} lists[] = {
		{ "$.model.config.hidden", "hidden layers", m->hidden, m->hidden_count, SPEC_LAYERS_MAX },
		{ "$.model.config.channels", "stages", m->channels, m->channel_count, SPEC_CHANNELS_MAX },
		{ "$.model.config.top", "top layers", m->top, m->top_count, SPEC_LAYERS_MAX },
	};
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		int rc = check_list(
			lists[i].values, lists[i].count, lists[i].most, lists[i].param, lists[i].what, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_scope(const struct job_spec *s, struct err *err)
{
	struct plan_mesh mesh;
	int rc = s->device_count > 1 ? plan_mesh_of(s, 0, &mesh, err) : 0;
	if (rc)
		return rc;
	if (s->device_count > 1 && plan_mesh_size(&mesh) != s->device_count)
		return err_set(err, ERR_INVALID_VALUE, "$.resources.count",
			"$.parallelism shares the job among %d ranks, not %lld", plan_mesh_size(&mesh),
			(long long)s->device_count);
	if (s->lora.rank > 0 && !spec_is_language(s))
		return err_set(err, ERR_INVALID_VALUE, "$.lora",
			"only models of the families gpt2 and llama can be adapted");
	if (s->checkpointing != SPEC_KEEP_ALL && !spec_is_language(s))
		return err_set(err, ERR_INVALID_VALUE, "$.activation_checkpointing",
			"only models of the families gpt2 and llama can recompute activations: use none");
	if (s->hyper.stochastic_rounding && s->precision != SPEC_BF16)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.stochastic_rounding",
			"only weights in bf16 are rounded stochastically: use false");
	if (s->hyper.dropout > 0 && s->model.family == SPEC_DLRM)
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.dropout",
			"models of the family dlrm have no dropout: use 0");
	bool squares = s->task == SPEC_REGRESSION, clicks = s->task == SPEC_CLICK_THROUGH;
	if (s->hyper.label_smoothing > 0 && (squares || clicks))
		return err_set(err, ERR_INVALID_VALUE, "$.hyperparameters.label_smoothing",
			"only losses over classes smooth labels, not that of %s: use 0",
			squares ? "regression" : "click_through");
	return 0;
}

/* The distinct rows that a step looks up in a table are counted in int32. */
static int check_look_ups(const struct job_spec *s, struct err *err)
{
	if (s->model.family != SPEC_DLRM || s->hyper.batch_size * s->model.lookups <= INT32_MAX)
		return 0;
	return err_set(err, ERR_PLAN_TOO_LARGE, "$.hyperparameters.batch_size",
		"batch_size (%lld) times lookups (%lld) must be at most %d", (long long)s->hyper.batch_size,
		(long long)s->model.lookups, INT32_MAX);
}

int plan_check(const struct job_spec *s, struct err *err)
{
	int rc = check_combination(s, err);
	if (!rc)
		rc = check_scope(s, err);
	if (!rc)
		rc = check_dims(s, err);
	if (!rc)
		rc = check_batch(&s->hyper, err);
	if (!rc)
		rc = check_look_ups(s, err);
	return rc ? rc : check_shares(s, err);
}
