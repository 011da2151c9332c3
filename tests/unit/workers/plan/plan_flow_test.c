/* SPDX-License-Identifier: Apache-2.0
 * Values through a plan: every plan is executed with a hash in place of each value, in the arena's
 * bytes. So a buffer that is read before it was written or after another took its bytes, an
 * operation that nobody reads, and a recomputation that is not the same are all seen. */
#include "tests/unit/workers/plan/plan_fixture.h"

#include <time.h>

enum { PARTS_MAX = SPEC_TABLES_MAX + 4, RANDOM_PLANS = 250 };

/* What operations do with each operand: r reads, w writes, m changes, a writes or, when the
 * operation accumulates, changes. */
static const char *const access_of[PLAN_OP_COUNT] = {
	[PLAN_OP_CAST] = "rw",
	[PLAN_OP_EMBEDDING] = "rrrrw",
	[PLAN_OP_EMBEDDING_BACKWARD] = "rrmmr",
	[PLAN_OP_LAYERNORM] = "rrrwww",
	[PLAN_OP_LAYERNORM_BACKWARD] = "rrrrramm",
	[PLAN_OP_RMSNORM] = "rrww",
	[PLAN_OP_RMSNORM_BACKWARD] = "rrrram",
	[PLAN_OP_ROPE] = "mrr",
	[PLAN_OP_ATTENTION] = "rwwr",
	[PLAN_OP_ATTENTION_BACKWARD] = "rrrrwr",
	[PLAN_OP_SWIGLU] = "rw",
	[PLAN_OP_SWIGLU_BACKWARD] = "rrw",
	[PLAN_OP_CLASSIFIER] = "rrrwwwm",
	[PLAN_OP_LINEAR] = "rrrwrw",
	[PLAN_OP_LINEAR_BACKWARD_DATA] = "rrwrr",
	[PLAN_OP_LINEAR_BACKWARD_WEIGHT] = "rrmm",
	[PLAN_OP_GELU] = "rw",
	[PLAN_OP_RELU_BACKWARD] = "rrw",
	[PLAN_OP_ADD] = "rm",
	[PLAN_OP_DROPOUT] = "rw",
	[PLAN_OP_DROPOUT_BACKWARD] = "rw",
	[PLAN_OP_CONV] = "rrrw",
	[PLAN_OP_CONV_BACKWARD_DATA] = "rra",
	[PLAN_OP_CONV_BACKWARD_WEIGHT] = "rrmm",
	[PLAN_OP_BATCHNORM] = "rrrwwwmmr",
	[PLAN_OP_BATCHNORM_BACKWARD] = "rrrrrrwmma",
	[PLAN_OP_MAXPOOL] = "rww",
	[PLAN_OP_MAXPOOL_BACKWARD] = "rrw",
	[PLAN_OP_AVGPOOL] = "rw",
	[PLAN_OP_AVGPOOL_BACKWARD] = "rw",
	[PLAN_OP_EMBEDDING_BAG] = "rrw",
	[PLAN_OP_INTERACTION] = "rw",
	[PLAN_OP_INTERACTION_BACKWARD] = "rrw",
	[PLAN_OP_SPARSE_STORE] = "rrmm",
	[PLAN_OP_SOFTMAX_XENT] = "mrww",
	[PLAN_OP_MSE] = "mrw",
	[PLAN_OP_BCE] = "mrww",
	[PLAN_OP_GRADIENT_NORM] = "r",
	[PLAN_OP_SPARSE_REDUCE] = "rrwww",
	[PLAN_OP_ADAMW] = "mrmmw",
	[PLAN_OP_SGD] = "mrmw",
	[PLAN_OP_SPARSE_ADAMW] = "mmmrrr",
	[PLAN_OP_SPARSE_SGD] = "mmrrr",
	[PLAN_OP_ROUND] = "rw",
	[PLAN_OP_AVERAGE] = "rm",
};

/* Columns [shift, shift + width) of rows of `row` elements; width 0 = whole rows. */
struct span {
	int64_t shift, width, row;
};

/* The values of one buffer: of the whole, or of parts of its rows. */
struct cell {
	int count;
	struct span span[PARTS_MAX];
	uint64_t hash[PARTS_MAX];
	int writer[PARTS_MAX];
};

struct flow {
	const struct plan *p;
	struct cell *cells;
	int *taker;     /* of each buffer: who wrote over it, -1 = nobody */
	bool *used;     /* of each operation: somebody read what it wrote, or it persists */
	bool *together; /* [buffers][buffers]: they share bytes */
};

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ h >> 29;
}

static bool persists(const struct plan *p, int buffer)
{
	return p->buffers[buffer].first_op == 0 && p->buffers[buffer].last_op == p->op_count - 1;
}

static void flow_init(struct flow *f, const struct plan *p)
{
	size_t n = (size_t)p->buffer_count;
	*f = (struct flow){ .p = p,
		.cells = calloc(n, sizeof(*f->cells)),
		.taker = calloc(n, sizeof(int)),
		.used = calloc((size_t)p->op_count, sizeof(bool)),
		.together = calloc(n * n, sizeof(bool)) };
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *a = &p->buffers[i];
		f->taker[i] = -1;
		if (persists(p, i))
			f->cells[i] = (struct cell){ .count = 1, .hash = { mix(1, (uint64_t)a->bytes) } };
		/* Parameters are the same in two plans by name and kind, whatever their index. */
		for (const char *c = a->name; *c && persists(p, i); c++)
			f->cells[i].hash[0] = mix(f->cells[i].hash[0], (uint64_t)*c + 256u * a->kind);
		for (int k = 0; k < p->buffer_count; k++) {
			const struct plan_buffer *b = &p->buffers[k];
			f->together[(size_t)i * n + (size_t)k] =
				k != i && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
		}
	}
}

static void flow_finish(struct flow *f)
{
	free(f->cells);
	free(f->taker);
	free(f->used);
	free(f->together);
}

/* Whether parts make whole rows. */
static bool tiles(const struct cell *c)
{
	int64_t at = 0;
	for (bool found = true; found && at < c->span[0].row;) {
		found = false;
		for (int i = 0; i < c->count && !found; i++)
			if (c->span[i].shift == at && c->span[i].row == c->span[0].row) {
				at += c->span[i].width;
				found = true;
			}
	}
	return at == c->span[0].row;
}

static uint64_t read_part(struct flow *f, int buffer, int i)
{
	const struct cell *c = &f->cells[buffer];
	if (!persists(f->p, buffer) || c->writer[i] > 0)
		f->used[c->writer[i]] = true;
	return c->hash[i];
}

static uint64_t read_value(struct flow *f, int op, int buffer, struct span span)
{
	const struct plan *p = f->p;
	const struct cell *c = &f->cells[buffer];
	if (f->taker[buffer] >= 0)
		fail_msg("%s %s reads %s, over which %s wrote", p->ops[op].name,
			plan_op_word(p->ops[op].kind), p->buffers[buffer].name, p->ops[f->taker[buffer]].name);
	for (int i = 0; i < c->count; i++)
		if (memcmp(&c->span[i], &span, sizeof(span)) == 0)
			return read_part(f, buffer, i);
	if (c->count == 0 || (c->span[0].width > 0 && !tiles(c)))
		fail_msg("%s %s reads %s, which nobody wrote", p->ops[op].name,
			plan_op_word(p->ops[op].kind), p->buffers[buffer].name);
	uint64_t h = mix((uint64_t)span.shift, (uint64_t)span.width);
	for (int i = 0; i < c->count; i++)
		h = mix(mix(h, (uint64_t)c->span[i].shift), read_part(f, buffer, i));
	return h;
}

static void write_value(struct flow *f, int op, int buffer, struct span span, uint64_t hash)
{
	const struct plan *p = f->p;
	struct cell *c = &f->cells[buffer];
	size_t n = (size_t)p->buffer_count;
	if (f->taker[buffer] >= 0 || span.width == 0 || (c->count > 0 && c->span[0].width == 0))
		c->count = 0;
	f->taker[buffer] = -1;
	int at = 0;
	while (at < c->count && c->span[at].shift != span.shift)
		at++;
	assert_true(at < PARTS_MAX);
	if (at == c->count)
		c->count++;
	c->span[at] = span;
	c->hash[at] = hash;
	c->writer[at] = op;
	for (int k = 0; k < p->buffer_count; k++)
		if (f->together[(size_t)buffer * n + (size_t)k])
			f->taker[k] = op;
	if (persists(p, buffer))
		f->used[op] = true;
}

/* Which columns an operand covers. */
static struct span span_of(const struct plan_op *op, int i)
{
	const int64_t *d = op->dim;
	int64_t width = 0, row = 0, shift = op->shift[i];
	switch (op->kind) {
	case PLAN_OP_LINEAR:
		width = i == 0 ? d[1] : d[2];
		row = i == 0 ? d[3] : i >= 3 ? d[4] : d[2];
		break;
	case PLAN_OP_LINEAR_BACKWARD_DATA:
		width = i == 0 ? d[2] : d[1];
		row = i == 0 ? d[3] : i >= 2 ? d[4] : d[1];
		break;
	case PLAN_OP_LINEAR_BACKWARD_WEIGHT:
		width = i == 0 ? d[1] : d[2];
		row = i == 0 ? d[3] : i == 1 ? d[4] : d[2];
		break;
	case PLAN_OP_EMBEDDING_BAG:
		width = i == 2 ? d[2] : 0;
		row = d[5] * d[2];
		shift = (d[4] + 1) * d[2];
		break;
	default: break;
	}
	assert_true(width <= row || width == 0);
	return width < row && width > 0 ? (struct span){ shift, width, row } : (struct span){ 0 };
}

static char access_at(const struct plan_op *op, int i)
{
	char a = access_of[op->kind][i];
	return a == 'a' ? (op->accumulate ? 'm' : 'w') : a;
}

static void run_op(struct flow *f, int o)
{
	const struct plan_op *op = &f->p->ops[o];
	const char *access = access_of[op->kind];
	assert_non_null(access);
	uint64_t h = mix(7, op->kind);
	h = mix(mix(h, (uint64_t)(op->scalar * 1e6)), (uint64_t)op->transposed * 2u + op->inverse);
	for (int i = 0; i < PLAN_DIMS_MAX; i++)
		h = mix(h, (uint64_t)op->dim[i]);
	bool gelu = op->kind == PLAN_OP_LINEAR && op->act == PLAN_ACT_GELU;
	h = mix(h, gelu ? 0 : op->act);
	for (int i = 0; access[i]; i++)
		if (op->operand[i] >= 0 && access_at(op, i) != 'w')
			h = mix(mix(h, (uint64_t)i), read_value(f, o, op->operand[i], span_of(op, i)));
	if (op->kind == PLAN_OP_GELU)
		h = mix(9, read_value(f, o, op->operand[0], (struct span){ 0 }));
	for (int i = 0; access[i]; i++) {
		if (op->operand[i] < 0 || access_at(op, i) == 'r')
			continue;
		uint64_t value = mix(h, (uint64_t)i);
		if (op->kind == PLAN_OP_LINEAR) /* GELU of pre gives y */
			value = gelu && i == 3 ? mix(mix(9, h), 1) : h;
		if (op->kind == PLAN_OP_GELU)
			value = mix(h, 1);
		write_value(f, o, op->operand[i], span_of(op, i), value);
	}
	for (int i = (int)strlen(access); i < PLAN_OPERANDS_MAX; i++)
		assert_int_equal(op->operand[i], -1);
	if (op->workspace >= 0)
		write_value(f, o, op->workspace, (struct span){ 0 }, h);
}

static void run_ops(struct flow *f, int begin, int end)
{
	for (int o = begin; o < end; o++)
		run_op(f, o);
}

/* A training step; every operation of it must be of use. */
static void check_flow(const struct plan *p)
{
	struct flow f;
	flow_init(&f, p);
	run_ops(&f, 0, p->op_count);
	for (int o = 0; o < p->optimize_begin; o++)
		if (!f.used[o])
			fail_msg("nobody reads what %s %s (operation %d) writes", p->ops[o].name,
				plan_op_word(p->ops[o].kind), o);
	flow_finish(&f);
	/* An evaluation ends after the forward pass. */
	flow_init(&f, p);
	run_ops(&f, 0, p->backward_begin);
	int results[] = { p->hidden, p->output, p->row_loss };
	for (size_t i = 0; i < ARRAY_LEN(results); i++)
		if (results[i] >= 0)
			(void)read_value(&f, p->backward_begin - 1, results[i], (struct span){ 0 });
	flow_finish(&f);
}

static bool live_together(const struct plan_buffer *a, const struct plan_buffer *b)
{
	return a->first_op <= b->last_op && b->first_op <= a->last_op;
}

static void check_layout(const struct plan *p)
{
	int64_t end = 0, kinds[PLAN_KIND_COUNT] = { 0 };
	for (int i = 0; i < p->buffer_count; i++) {
		const struct plan_buffer *a = &p->buffers[i];
		assert_true(a->bytes > 0 && a->offset >= 0 && a->offset % PLAN_ALIGN_BYTES == 0);
		if (a->first_op < 0)
			fail_msg("no operation names %s", a->name);
		assert_true(a->first_op <= a->last_op && a->last_op < p->op_count);
		end = a->offset + a->bytes > end ? a->offset + a->bytes : end;
		kinds[a->kind] += a->bytes;
		for (int k = 0; k < i; k++) {
			const struct plan_buffer *b = &p->buffers[k];
			bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
			if (!apart && live_together(a, b))
				fail_msg("%s and %s overlap", a->name, b->name);
		}
	}
	assert_true(p->total_bytes >= end && p->total_bytes < end + 8192);
	assert_memory_equal(kinds, p->kind_bytes, sizeof(kinds));
	for (int o = 0; o < p->op_count; o++)
		for (int k = 0; k < PLAN_OPERANDS_MAX; k++) {
			int i = p->ops[o].operand[k];
			assert_true(i < p->buffer_count);
			if (i >= 0)
				assert_true(p->buffers[i].first_op <= o && p->buffers[i].last_op >= o);
		}
}

/* The rules of struct plan_param: types by role and rank, one flat range for each member in the
 * order of params. */
static void check_params(const struct plan *p)
{
	int64_t flat = 0, copy = 0, first_master = -1, first_gradient = -1, first_copy = -1;
	int64_t all = 0, trained = 0;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *q = &p->params[i];
		const struct plan_buffer *b = p->buffers, *w = &b[q->weight];
		bool narrow = p->type != PLAN_F32 && q->rank > 1 && q->role != PLAN_STATE && !q->sparse;
		assert_int_equal(w->type, narrow ? p->type : PLAN_F32);
		assert_int_equal(w->kind, PLAN_WEIGHTS);
		assert_int_equal(w->bytes, q->count * plan_type_bytes(w->type));
		assert_true((q->master != q->weight) == (narrow && q->role == PLAN_TRAINED));
		all += q->role == PLAN_STATE ? 0 : q->count;
		trained += q->role == PLAN_TRAINED ? q->count : 0;
		bool dense = q->role == PLAN_TRAINED && !q->sparse;
		assert_true((q->gradient >= 0) == dense && (q->flat >= 0) == dense);
		assert_true(q->decay == (dense && q->rank > 1));
		if (q->role != PLAN_TRAINED)
			assert_true(q->moment1 < 0 && q->moment2 < 0 && q->average < 0);
		if (!dense)
			continue;
		if (first_master < 0) {
			first_master = b[q->master].offset;
			first_gradient = b[q->gradient].offset;
		}
		assert_int_equal(q->flat, flat);
		assert_int_equal(b[q->master].offset, first_master + 4 * flat);
		assert_int_equal(b[q->gradient].offset, first_gradient + 4 * flat);
		const int others[] = { q->moment1, q->moment2, q->average };
		for (size_t k = 0; k < ARRAY_LEN(others); k++)
			if (others[k] >= 0) {
				assert_int_equal(b[others[k]].type, PLAN_F32);
				assert_int_equal(
					(b[others[k]].offset - first_master) % (4 * p->flat_count), 4 * flat);
			}
		flat += (q->count + 15) / 16 * 16;
		if (q->master == q->weight)
			continue;
		if (first_copy < 0)
			first_copy = w->offset;
		assert_int_equal(w->offset, first_copy + copy);
		copy += (w->bytes + 63) / 64 * 64;
	}
	assert_int_equal(flat, p->flat_count);
	assert_int_equal(all, p->parameter_count);
	assert_int_equal(trained, p->trained_count);
	for (int i = 0; i < p->sparse_count; i++)
		assert_true(p->params[p->sparse_first + i].sparse);
}

static void check(const struct job_spec *s)
{
	struct plan *p = fixture_compile(s);
	check_layout(p);
	check_params(p);
	check_flow(p);
	plan_destroy(p);
}

static uint64_t random_state;

static int64_t draw(int64_t low, int64_t high)
{
	random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return low + (int64_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

static void random_language(struct job_spec *s)
{
	static const char *const gpt2[] = { "c_attn", "c_proj", "c_fc" };
	static const char *const llama[] = { "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
		"up_proj", "down_proj" };
	int64_t kv = draw(1, 3), groups = draw(1, 3), size = 2 * draw(1, 5), t = draw(1, 20);
	bool rotary = draw(0, 1);
	*s = rotary ? fixture_llama(draw(1, 3), kv * groups, kv, kv * groups * size, draw(1, 70), t,
					  draw(256, 400))
				: fixture_gpt2(draw(1, 3), kv, kv * size, t, draw(256, 400));
	s->model.tied = !rotary || draw(0, 1);
	s->checkpointing = (enum spec_checkpointing)draw(0, 2);
	s->data.packing = draw(0, 1);
	s->data.format = draw(0, 1) ? SPEC_FORMAT_JSONL : SPEC_FORMAT_TEXT;
	if (draw(0, 1) == 0)
		return;
	const char *names[4];
	int count = (int)draw(1, rotary ? 4 : 2), from = (int)draw(0, rotary ? 3 : 1);
	for (int i = 0; i < count; i++)
		names[i] = rotary ? llama[from + i] : gpt2[from + i];
	fixture_lora(s, draw(1, 9), count, names);
	s->lora.dropout = draw(0, 1) ? 0.1 : 0;
}

static struct job_spec random_spec(void)
{
	struct job_spec s;
	switch (draw(0, 5)) {
	case 0:
		s = fixture_cnn();
		s.model.blocks_per_stage = draw(1, 3);
		s.model.channels[0] = draw(1, 20);
		s.model.block = (enum spec_block)draw(0, 2);
		s.model.hidden_count = s.model.block == SPEC_BLOCK_PLAIN ? (int)draw(0, 1) : 0;
		s.model.stem = (enum spec_stem)draw(0, 1);
		s.model.blocks[0] = draw(1, 2);
		s.model.blocks[1] = draw(1, 2);
		break;
	case 1:
		s = fixture_mlp();
		s.model.hidden_count = (int)draw(0, 1);
		s.model.hidden[0] = draw(1, 99);
		break;
	case 2:
		s = fixture_dlrm();
		s.model.table_count = (int)draw(1, 3);
		s.model.lookups = draw(1, 4);
		break;
	default: random_language(&s); break;
	}
	s.precision = (enum spec_precision)draw(0, 2);
	s.hyper.stochastic_rounding = s.precision == SPEC_BF16 && draw(0, 1);
	s.hyper.optimizer = draw(0, 2) ? SPEC_ADAMW : SPEC_SGD;
	s.hyper.momentum = draw(0, 1) ? 0.9 : 0;
	bool drops = draw(0, 1) && s.model.family != SPEC_DLRM;
	s.hyper.dropout = drops ? 0.1 : 0;
	s.hyper.ema_decay = draw(0, 1) ? 0.999 : 0;
	s.hyper.micro_batch_size = draw(1, 4);
	s.hyper.batch_size = s.hyper.micro_batch_size * draw(1, 3);
	return s;
}

static void test_random(void **state)
{
	uint64_t seed = (uint64_t)time(NULL);
	if (getenv("PLAN_SEED"))
		seed = strtoull(getenv("PLAN_SEED"), NULL, 10);
	print_message("PLAN_SEED=%llu\n", (unsigned long long)seed);
	random_state = seed;
	for (int i = 0; i < RANDOM_PLANS; i++) {
		struct job_spec s = random_spec();
		check(&s);
	}
}

/* The gradients' hashes of a whole micro-batch, and the loss's. */
static uint64_t gradients_hash(const struct job_spec *s, bool *moved)
{
	struct plan *p = fixture_compile(s);
	struct flow f, before;
	flow_init(&f, p);
	flow_init(&before, p);
	run_ops(&f, 0, p->optimize_begin);
	uint64_t h = read_value(&f, 0, p->row_loss, (struct span){ 0 });
	*moved = true;
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *q = &p->params[i];
		if (q->gradient >= 0) {
			h = mix(h, f.cells[q->gradient].hash[0]);
			*moved &= f.cells[q->gradient].hash[0] != before.cells[q->gradient].hash[0];
		}
		/* Nothing but the optimizer writes weights. */
		assert_true(f.cells[q->weight].hash[0] == before.cells[q->weight].hash[0]);
	}
	flow_finish(&f);
	flow_finish(&before);
	plan_destroy(p);
	return h;
}

/* Recomputing gives the same values to the same operations: the same bits. */
static void test_checkpointing_is_exact(void **state)
{
	static const char *const targets[2][3] = { { "c_attn", "c_fc", "c_proj" },
		{ "k_proj", "up_proj", "down_proj" } };
	for (int i = 0; i < 32; i++) {
		struct job_spec s =
			i & 1 ? fixture_llama(3, 4, 2, 16, 24, 8, 256) : fixture_gpt2(3, 2, 16, 8, 256);
		s.precision = i & 2 ? SPEC_BF16 : SPEC_FP32;
		s.hyper.dropout = i & 4 ? 0.1 : 0;
		if (i & 8)
			fixture_lora(&s, 2, i & 16 ? 1 : 3, targets[i & 1]);
		s.lora.dropout = i & 4 ? 0.1 : 0;
		bool moved = false;
		uint64_t none = gradients_hash(&s, &moved);
		assert_true(moved);
		s.checkpointing = SPEC_SELECTIVE;
		assert_true(gradients_hash(&s, &moved) == none);
		s.checkpointing = SPEC_FULL;
		assert_true(gradients_hash(&s, &moved) == none);
		s.hyper.dropout = 0.25;
		assert_true(gradients_hash(&s, &moved) != none);
	}
}

/* Each adapter is trained, alone and together with others, whatever is below it. */
static void test_every_adapter_is_trained(void **state)
{
	static const char *const llama[] = { "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
		"up_proj", "down_proj" };
	for (int first = 0; first < 7; first++)
		for (int count = 1; count <= 4 && first + count <= 7; count++) {
			struct job_spec s = fixture_llama(2, 4, 2, 16, 24, 8, 256);
			fixture_lora(&s, 3, count, &llama[first]);
			for (int mode = 0; mode < 3; mode++) {
				bool moved = false;
				s.checkpointing = (enum spec_checkpointing)mode;
				s.lora.dropout = mode == 1 ? 0.1 : 0;
				(void)gradients_hash(&s, &moved);
				assert_true(moved);
				check(&s);
			}
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_checkpointing_is_exact),
		cmocka_unit_test(test_every_adapter_is_trained),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
