/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/run.c: the queue has no gaps, forgets only what is stored, and the end keeps
 * its place. */
#include "tests/unit/workers/agent/agent_fixture.h"

#include "core/json/reader.h"
#include "workers/agent/run.h"

static struct run *make(void)
{
	struct err err = { 0 };
	struct run *r = NULL;
	assert_int_equal(run_create("att_1", 41, "/nowhere", &r, &err), 0);
	return r;
}

static void push(struct run *r, const char *dir)
{
	struct err err = { 0 };
	char text[64];
	int n =
		snprintf(text, sizeof(text), "{\"seq\":%lld,\"t\":\"step\"}", (long long)run_next_seq(r));
	assert_int_equal(run_push(r, text, (size_t)n, dir, false, &err), 0);
}

static int64_t seq_in(const char *text)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, NULL), 0);
	return json_i64_or(json_get(json_doc_root(doc), "seq"), 0);
}

static void starting_is_said_once(void **state)
{
	struct err err = { 0 };
	struct run *r = make();
	(void)state;
	assert_int_equal(run_push_starting(r, &err), 0);
	assert_int_equal(run_push_starting(r, &err), 0);
	assert_ptr_equal(r->first, r->last);
	assert_int_equal(run_next_seq(r), 2);
	run_acked(r, 1, 5);
	assert_null(r->first);
	assert_int_equal(run_push_starting(r, &err), 0);
	assert_null(r->first);
	run_destroy(r);
	r = make(); /* another agent, after the yard had more */
	run_acked(r, 9, 5);
	assert_int_equal(run_push_starting(r, &err), 0);
	assert_null(r->first);
	assert_int_equal(run_next_seq(r), 10);
	run_destroy(r);
}

static void acknowledged_messages_are_forgotten(void **state)
{
	struct run *r = make();
	(void)state;
	for (int i = 0; i < 5; i++)
		push(r, "");
	run_acked(r, 3, 5);
	assert_int_equal(r->first->seq, 4);
	run_acked(r, 2, 5); /* an answer that was overtaken */
	assert_int_equal(r->acked_seq, 3);
	assert_int_equal(r->first->seq, 4);
	assert_int_equal(run_next_seq(r), 6);
	run_acked(r, 5, 5);
	assert_null(r->first);
	assert_int_equal(r->waiting_bytes, 0);
	run_destroy(r);
}

static void files_hold_a_message_back(void **state)
{
	struct run *r = make();
	(void)state;
	push(r, "");
	push(r, "checkpoints/step-4");
	push(r, "");
	assert_int_equal(run_first_unready(r)->seq, 2);
	assert_string_equal(run_first_unready(r)->dir, "checkpoints/step-4");
	run_first_unready(r)->ready = true;
	assert_null(run_first_unready(r));
	run_destroy(r);
}

static void the_end_follows_what_is_held_or_stored(void **state)
{
	struct err err = { 0 };
	struct run_end end = { .outcome = "failed",
		.reason = "trainer_died",
		.rank = 0,
		.exit = { .known = true, .exit_code = -1, .signal = 9 } };
	struct run *r = make();
	(void)state;
	run_acked(r, 7, 5); /* the trainer is gone, and whatever it had not handed over */
	r->last_step = 12;
	assert_int_equal(run_push_end(r, &end, &err), 0);
	assert_int_equal(run_push_end(r, &end, &err), 0); /* once */
	assert_ptr_equal(r->first, r->last);
	assert_int_equal(r->end_seq, 8);
	assert_int_equal(seq_in(r->first->text), 8);
	assert_non_null(strstr(r->first->text, "\"signal\":9"));
	assert_null(strstr(r->first->text, "exit_code"));
	assert_non_null(strstr(r->first->text, "\"step\":12"));
	run_destroy(r);

	r = make();
	run_acked(r, 7, 5);
	push(r, "");
	push(r, "");
	assert_int_equal(run_push_end(r, &end, &err), 0);
	assert_int_equal(r->end_seq, 10);
	run_destroy(r);
}

static void an_end_whose_number_was_taken_gets_the_next(void **state)
{
	struct err err = { 0 };
	struct run_end end = { .outcome = "failed", .reason = "stalled", .rank = -1 };
	struct run *r = make();
	(void)state;
	run_acked(r, 7, 5);
	assert_int_equal(run_push_end(r, &end, &err), 0);
	/* A report from before the crash arrives late and brings 8 to 10. */
	run_acked(r, 10, 99);
	assert_null(r->first);
	assert_int_equal(r->end_acked_us, 99);
	assert_int_equal(run_renumber_end(r, &err), 0);
	assert_int_equal(r->first->seq, 11);
	assert_int_equal(seq_in(r->first->text), 11);
	assert_true(r->first->is_end);
	assert_non_null(strstr(r->first->text, "stalled"));
	assert_int_equal(r->end_acked_us, 0);
	run_acked(r, 11, 100);
	assert_int_equal(r->end_acked_us, 100);
	run_destroy(r);
}

static void the_queue_is_bounded(void **state)
{
	struct err err = { 0 };
	struct run *r = make();
	static char text[LINK_LINE_MAX];
	int rc = 0;
	size_t pushed = 0;
	(void)state;
	memset(text, 'x', sizeof(text));
	for (; rc == 0; pushed++)
		rc = run_push(r, text, sizeof(text), "", false, &err);
	assert_int_equal(rc, ERR_NO_MEMORY);
	assert_true(pushed * sizeof(text) <= RUN_WAITING_MAX + 2 * sizeof(text));
	run_destroy(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starting_is_said_once),
		cmocka_unit_test(acknowledged_messages_are_forgotten),
		cmocka_unit_test(files_hold_a_message_back),
		cmocka_unit_test(the_end_follows_what_is_held_or_stored),
		cmocka_unit_test(an_end_whose_number_was_taken_gets_the_next),
		cmocka_unit_test(the_queue_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
