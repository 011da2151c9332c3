/* SPDX-License-Identifier: Apache-2.0
 * Two thousand steps of a small gpt2 in fp32, bf16 and fp16 on the same text: the loss curves stay
 * together. What drifts slowly (moments or sums of too few bits, weights that are not what the
 * masters say) shows nowhere else. */
#include "tests/unit/workers/engine/engine_cases.h"

enum { STEPS = 2000, WINDOW = 100, WORDS = 97, TEXT = 200 * 1000 };

/* A text with words and an order among them, so that there is something to learn for long. */
static struct fixture_file story(void)
{
	static char text[TEXT];
	char word[WORDS][8];
	uint64_t random = 17;
	for (int i = 0; i < WORDS; i++) {
		int length = 2 + (int)(2.49 * (1 + fixture_random(&random)));
		for (int k = 0; k < length; k++)
			word[i][k] = (char)('a' + (int)(12.9 * (1 + fixture_random(&random))));
		word[i][length] = 0;
	}
	int last = 0;
	for (size_t at = 0; at < TEXT;) {
		/* One of four successors of each word. */
		last = (last * 5 + (int)(2 * (1 + fixture_random(&random))) * 31 + 7) % WORDS;
		size_t length = strlen(word[last]);
		for (size_t k = 0; k <= length && at < TEXT; k++)
			text[at++] = k < length ? word[last][k] : ' ';
	}
	return fixture_write(text, TEXT);
}

static void run(const struct fixture_file *file, enum spec_precision precision, double *ret_loss)
{
	struct err err = { 0 };
	struct fixture f;
	struct job_spec s = fixture_spec(SPEC_GPT2);
	s.model.norm_eps = 1e-5;
	s.model.tied = true;
	s.model.n_embd = 64;
	s.model.n_inner = 256;
	s.model.n_head = 4;
	s.model.n_positions = 64;
	s.data.sequence_length = 64;
	s.precision = precision;
	s.hyper.max_steps = STEPS;
	s.hyper.warmup_steps = 100;
	s.hyper.learning_rate = 2e-3;
	s.hyper.micro_batch_size = 8;
	fixture_open_files(&f, s, 2, file, 1);
	for (int i = 0; i < STEPS / WINDOW; i++)
		ret_loss[i] = 0;
	for (int i = 0; i < STEPS; i++) {
		struct engine_step step;
		assert_ok(engine_step(f.engine, &step, &err));
		assert_false(step.non_finite);
		ret_loss[i / WINDOW] += step.loss / WINDOW;
	}
	fixture_close(&f);
}

static void test_soak(void **state)
{
	double loss[3][STEPS / WINDOW];
	struct fixture_file file = story();
	for (int k = 0; k < 3; k++)
		run(&file, (enum spec_precision)k, loss[k]);
	unlink(file.path);
	double apart[3] = { 0 };
	for (int i = 0; i < STEPS / WINDOW; i++) {
		print_message("steps %4d..%4d: fp32 %.4f bf16 %.4f fp16 %.4f\n", i * WINDOW,
			(i + 1) * WINDOW - 1, loss[0][i], loss[1][i], loss[2][i]);
		for (int k = 1; k < 3; k++)
			apart[k] = fmax(apart[k], fabs(loss[k][i] / loss[0][i] - 1));
	}
	print_message("at most apart: bf16 %.4f fp16 %.4f\n", apart[1], apart[2]);
	assert_true(apart[1] < 0.02 && apart[2] < 0.02);
	assert_true(loss[0][STEPS / WINDOW - 1] < 0.3 * loss[0][0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_soak),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
