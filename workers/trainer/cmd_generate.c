/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer generate: text from a model folder (a finished model, a checkpoint, or files
 * from elsewhere), token by token. It runs the training engine's forward pass, so it shows what was
 * trained; it is not made to be fast. */
#include "workers/trainer/command.h"

#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/base/utf8.h"
#include "workers/engine/tokenizer/tokenizer.h"
#include "workers/trainer/device.h"
#include "workers/trainer/hf_adapter.h"
#include "workers/trainer/hf_config.h"
#include "workers/trainer/hf_model.h"
#include "workers/trainer/options.h"
#include "workers/trainer/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1024 * 1024, PROMPT_BYTES_MAX = 1024 * 1024, BYTES_VOCABULARY = 256 };

static const char usage[] =
	"usage: trainyard-trainer generate DIR --prompt TEXT [options]\n"
	"\n"
	"Continues a prompt with the language model in DIR: a finished model, a checkpoint, or "
	"Hugging\n"
	"Face files of gpt2 or llama. Adapters alone need --base. Prints the continuation.\n"
	"\n"
	"  --prompt TEXT      what to continue\n"
	"  --max-tokens N     at most so many tokens (100); fewer when the model ends the text\n"
	"  --temperature X    0 takes the most likely token (1)\n"
	"  --top-k N          choose among the N most likely only (0: all)\n"
	"  --seed N           the same seed gives the same text (0)\n"
	"  --base DIR         the model that the adapters in DIR adapt\n"
	"  --tokenizer PATH   tokenizer.json (otherwise that of DIR, or of --base)\n"
	"  --average          the moving average of what was trained (the ema file of DIR)\n"
	"  --device KIND      " DEVICE_WORDS " (cpu)\n"
	"  --threads N        compute threads (1)\n";

struct generate_command {
	const char *dir, *base, *prompt, *tokenizer_path, *device;
	bool average;
	int64_t max_tokens, threads;
	struct sampler sampler;
};

/* The text so far. */
struct text {
	int32_t *tokens;
	int64_t count;
	int64_t room;
};

struct model {
	struct job_spec spec;
	struct plan *plan;
	struct engine *engine;
	struct tokenizer *tokenizer;
};

static void model_finish(struct model *m)
{
	engine_destroy(m->engine);
	plan_destroy(m->plan);
	tokenizer_close(m->tokenizer);
}

static int open_tokenizer(
	const struct generate_command *c, int64_t vocabulary, struct tokenizer **ret, struct err *err)
{
	const char *places[] = { c->dir, c->base };
	char path[FILE_PATH_MAX];
	if (c->tokenizer_path != NULL)
		return tokenizer_open(c->tokenizer_path, c->tokenizer_path, "--tokenizer", ret, err);
	if (vocabulary == BYTES_VOCABULARY)
		return tokenizer_open_bytes(ret, err);
	for (size_t i = 0; i < ARRAY_LEN(places) && places[i] != NULL; i++) {
		int rc = file_join(path, places[i], "tokenizer.json", err);
		if (rc < 0)
			return rc;
		if (file_exists(path))
			return tokenizer_open(path, "tokenizer.json", "--tokenizer", ret, err);
	}
	return err_set(err, ERR_MISSING_FIELD, "--tokenizer", "%s has no tokenizer.json", c->dir);
}

/* A job that only runs forward: one sequence, no optimizer state. */
static struct job_spec forward_spec(const struct spec_model *m, int64_t length)
{
	struct job_spec s = { .task = SPEC_LANGUAGE_MODEL, .model = *m, .device_count = 1 };
	s.data.format = SPEC_FORMAT_TEXT;
	s.data.tokenizer = SPEC_TOKENIZER_BYTES;
	s.data.sequence_length = length < m->n_positions ? length : m->n_positions;
	s.data.packing = true;
	s.hyper.batch_size = s.hyper.micro_batch_size = s.hyper.max_steps = 1;
	s.hyper.optimizer = SPEC_SGD;
	s.hyper.schedule = SPEC_CONSTANT;
	return s;
}

/* The averages of what was trained: of the adapters when there are some, else of the model. */
static int load_average(const struct generate_command *c, struct model *m, struct err *err)
{
	cleanup(hf_weights_finish) struct hf_weights w = { 0 };
	bool adapters = m->spec.lora.rank > 0;
	const char *stem = adapters ? "ema_adapter_model" : "ema";
	if (!hf_weights_exist(c->dir, stem))
		return err_set(
			err, ERR_INVALID_VALUE, "--average", "%s has no %s.safetensors", c->dir, stem);
	int rc = hf_weights_of(m->engine, &w, err);
	if (rc == 0)
		rc = hf_weights_read(&w, c->dir, stem, &m->spec.model, adapters, err);
	if (rc == 0)
		rc = engine_parameters_changed(m->engine, err);
	return rc;
}

static int load(const struct generate_command *c, struct model *m, struct err *err)
{
	int rc = 0;
	if (c->base != NULL || !c->average || m->spec.lora.rank > 0)
		rc = hf_model_read(m->engine, NULL, &m->spec, c->base != NULL ? c->base : c->dir, err);
	if (rc == 0 && c->base != NULL && !c->average)
		rc = hf_model_read_adapters(m->engine, NULL, &m->spec, c->dir, err);
	return rc < 0 || !c->average ? rc : load_average(c, m, err);
}

static int open_model(
	const struct generate_command *c, int64_t length, struct model *m, struct err *err)
{
	bool beside = c->base == NULL && hf_weights_exist(c->dir, "adapter_model");
	enum device_kind device;
	m->spec = forward_spec(&m->spec.model, length);
	int rc = device_parse(c->device, "--device", &device, err);
	if (rc == 0)
		rc = device_choose(device, &device, err);
	if (rc == 0 && (c->base != NULL || beside))
		rc = hf_adapter_read(c->dir, &m->spec.lora, err);
	if (rc == 0)
		rc = plan_compile(&m->spec, NULL, &m->plan, err);
	if (rc == 0)
		rc = engine_create(&m->spec, m->plan, device_backend(device, m->plan->type),
			(int)c->threads, &m->engine, err);
	return rc < 0 ? rc : load(c, m, err);
}

static int take_tokens(void *ctx, const int32_t *ids, size_t count, struct err *err)
{
	struct text *t = ctx;
	if ((int64_t)count > t->room - t->count)
		return err_set(err, ERR_TOO_LARGE, "--prompt", "the prompt has too many tokens");
	memcpy(t->tokens + t->count, ids, count * sizeof(*ids));
	t->count += (int64_t)count;
	return 0;
}

static int encode(
	const struct generate_command *c, const struct tokenizer *tok, struct text *t, struct err *err)
{
	cleanup(tokenizer_encoder_destroyp) struct tokenizer_encoder *e = NULL;
	size_t bytes = strlen(c->prompt), prefix = 0;
	const int32_t *front = tokenizer_prefix(tok, &prefix);
	if (bytes > PROMPT_BYTES_MAX || !utf8_is_valid(c->prompt, bytes))
		return err_set(
			err, ERR_INVALID_VALUE, "--prompt", "UTF-8 of at most %d bytes", PROMPT_BYTES_MAX);
	int rc = take_tokens(t, front, prefix, err);
	if (rc == 0)
		rc = tokenizer_encoder_create(tok, &e, err);
	if (rc == 0)
		rc = tokenizer_encode(e, c->prompt, bytes, take_tokens, t, err);
	if (rc == 0 && t->count == 0)
		rc = err_set(err, ERR_INVALID_VALUE, "--prompt", "it must have at least one token");
	return rc;
}

static int put_token(const struct tokenizer *tok, int32_t id, struct err *err)
{
	cleanup(buf_finish) struct buf out;
	buf_init(&out, TOKENIZER_WORD_MAX_BYTES);
	tokenizer_decode(tok, &id, 1, true, &out);
	if (out.failed != 0 || fwrite(buf_cstr(&out), 1, out.len, stdout) != out.len ||
		fflush(stdout) != 0)
		return err_set(err, ERR_IO, NULL, "standard output cannot be written");
	return 0;
}

static int continue_text(
	const struct generate_command *c, struct model *m, struct text *t, struct err *err)
{
	const int64_t window = m->plan->sequence_length;
	int32_t end = tokenizer_end_id(m->tokenizer);
	cleanup(freep) float *logits = calloc((size_t)m->spec.model.vocab_size, sizeof(*logits));
	if (logits == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for logits");
	for (int64_t i = 0; i < c->max_tokens; i++) {
		int64_t first = t->count > window ? t->count - window : 0;
		int rc = engine_logits(m->engine, t->tokens + first, t->count - first, logits, err);
		if (rc < 0)
			return rc;
		int32_t next = sampler_pick(&c->sampler, t->count, logits, m->spec.model.vocab_size);
		if (next == end)
			break;
		t->tokens[t->count++] = next;
		rc = put_token(m->tokenizer, next, err);
		if (rc < 0)
			return rc;
	}
	putchar('\n');
	return 0;
}

static int run(void *ctx, struct err *err)
{
	struct generate_command *c = ctx;
	cleanup(model_finish) struct model m = { 0 };
	cleanup(freep) int32_t *tokens = calloc(TOKENS_MAX, sizeof(*tokens));
	struct text t = { .tokens = tokens, .room = TOKENS_MAX - c->max_tokens };
	if (tokens == NULL)
		return err_set(err, ERR_NO_MEMORY, NULL, "no memory for tokens");
	if (c->dir == NULL || c->prompt == NULL)
		return err_set(err, ERR_MISSING_FIELD, "--prompt",
			"a model and a prompt are needed: generate DIR --prompt TEXT");
	int rc = hf_config_read(c->base != NULL ? c->base : c->dir, &m.spec.model, err);
	if (rc == 0 && !spec_is_language(&m.spec))
		rc = err_set(err, ERR_INVALID_VALUE, NULL, "%s is not a language model", c->dir);
	if (rc == 0)
		rc = open_tokenizer(c, m.spec.model.vocab_size, &m.tokenizer, err);
	if (rc == 0)
		rc = encode(c, m.tokenizer, &t, err);
	if (rc == 0)
		rc = open_model(c, t.count + c->max_tokens, &m, err);
	if (rc == 0)
		rc = continue_text(c, &m, &t, err);
	return rc < 0 ? rc : COMMAND_OK;
}

int cmd_generate(int argc, char **argv)
{
	struct generate_command c = {
		.device = "cpu", .max_tokens = 100, .threads = 1, .sampler = { .temperature = 1 }
	};
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &c.dir, 0, 0 },
		{ "--prompt", OPTIONS_TEXT, &c.prompt, 0, 0 },
		{ "--max-tokens", OPTIONS_COUNT, &c.max_tokens, 1, TOKENS_MAX / 2 },
		{ "--temperature", OPTIONS_NUMBER, &c.sampler.temperature, 0, 100 },
		{ "--top-k", OPTIONS_COUNT, &c.sampler.top_k, 0, TOKENS_MAX },
		{ "--seed", OPTIONS_COUNT, &c.sampler.seed, 0, 9e15 },
		{ "--base", OPTIONS_TEXT, &c.base, 0, 0 },
		{ "--tokenizer", OPTIONS_TEXT, &c.tokenizer_path, 0, 0 },
		{ "--average", OPTIONS_FLAG, &c.average, 0, 0 },
		{ "--device", OPTIONS_TEXT, &c.device, 0, 0 },
		{ "--threads", OPTIONS_COUNT, &c.threads, 1, OPTIONS_THREADS_MAX },
	};
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
