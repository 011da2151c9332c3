/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/reconcile.c and advance.c as far as they go without a server: the list
 * decides what runs, residency is asked first, an end that was not taken is sent again. */
#include "tests/unit/workers/agent/agent_fixture.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "workers/agent/advance.h"
#include "workers/agent/reconcile.h"

static struct settings_agent settings;

struct yard {
	struct agent agent;
	char entry[1024];
};

static struct yard *make(void **state)
{
	struct err err = { 0 };
	struct yard *y = calloc(1, sizeof(*y));
	memset(&settings, 0, sizeof(settings));
	snprintf(settings.work_dir, sizeof(settings.work_dir), "%s", (const char *)*state);
	snprintf(settings.region, sizeof(settings.region), "us-east-1");
	snprintf(settings.server_url, sizeof(settings.server_url), "http://127.0.0.1:1");
	snprintf(settings.device_kind, sizeof(settings.device_kind), "cpu");
	settings.devices = 2;
	assert_int_equal(agent_init(&y->agent, &settings, &err), 0);
	return y;
}

static void drop(struct yard *y)
{
	while (y->agent.runs != NULL) {
		struct run *r = y->agent.runs;
		y->agent.runs = r->next;
		run_destroy(r);
	}
	close(y->agent.wake);
	free(y);
}

static void list(struct yard *y, const char *text, int64_t began_us)
{
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, NULL), 0);
	reconcile_list(&y->agent, json_doc_root(doc), began_us);
}

static void list_one(struct yard *y, const char *id, int epoch, const char *more, int64_t began_us)
{
	snprintf(y->entry, sizeof(y->entry),
		"[{\"attempt_id\":\"%s\",\"epoch\":%d,\"job_id\":\"job_1\",\"token\":\"t\",\"devices\":[0],"
		"\"stall_ms\":1000,\"files\":[],\"spec\":{},%s}]",
		id, epoch, more);
	list(y, y->entry, began_us);
}

static const char us[] = "\"residency\":[\"us\"],\"desired\":\"run\"";

static void the_list_begins_and_ends_runs(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_1", 5, us, 1);
	struct run *r = agent_find(&y->agent, "att_1");
	assert_non_null(r);
	assert_false(r->over);
	assert_int_equal(r->epoch, 5);
	list_one(y, "att_1", 5, "\"residency\":[\"us\"],\"desired\":\"cancel\"", 2);
	assert_ptr_equal(agent_find(&y->agent, "att_1"), r);
	assert_int_equal(r->desired, RUN_CANCEL);
	list_one(y, "att_1", 6, us, 3); /* another lease of it is not ours */
	assert_true(r->over);
	drop(y);
}

static void what_is_not_listed_is_over(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_1", 5, us, 1);
	list(y, "[]", 2);
	assert_true(y->agent.runs->over);
	assert_true(atomic_load(&y->agent.runs->abandon));
	drop(y);
}

static void entries_that_make_no_sense_are_skipped(void **state)
{
	struct yard *y = make(state);
	list(y,
		"[1,{},{\"attempt_id\":\"../x\",\"epoch\":1},{\"attempt_id\":\"att_1\",\"epoch\":0},"
		"{\"attempt_id\":\"\",\"epoch\":1}]",
		1);
	assert_null(y->agent.runs);
	drop(y);
}

static void expect_end(struct run *r, const char *word)
{
	assert_true(r->end_seq > 0);
	if (strstr(r->last->text, word) == NULL)
		fail_msg("%s is not in %s", word, r->last->text);
}

static void residency_is_asked_before_anything_is_fetched(void **state)
{
	static const char *const sets[] = { "\"residency\":[\"eu\"]", "\"residency\":[]",
		"\"residency\":[\"us-west\",\"mars\"]", "\"residency\":null", "\"other\":1" };
	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		struct yard *y = make(state);
		list_one(y, "att_1", 5, sets[i], 1);
		struct run *r = y->agent.runs;
		advance_run(&y->agent, r);
		assert_int_equal(r->end_seq, 0); /* the lease is not known to be ours yet */
		run_acked(r, 0, 1);
		advance_run(&y->agent, r);
		expect_end(r, "\"reason\":\"residency\"");
		assert_false(r->busy);
		assert_false(file_exists(r->dir));
		drop(y);
	}
}

static void nothing_is_started_before_the_lease_is_known(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_1", 5, us, 1);
	struct run *r = y->agent.runs;
	for (int i = 0; i < 3; i++)
		advance_run(&y->agent, r);
	assert_int_equal(r->phase, RUN_NEW);
	assert_null(r->first);
	assert_false(file_exists(r->dir));
	drop(y);
}

static void a_wish_to_leave_needs_no_trainer(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_1", 5, "\"residency\":[\"us\"],\"desired\":\"pause\"", 1);
	run_acked(y->agent.runs, 0, 1);
	advance_run(&y->agent, y->agent.runs);
	expect_end(y->agent.runs, "\"outcome\":\"paused\"");
	assert_int_equal(y->agent.runs->end_seq, 1);
	drop(y);
}

static void a_lost_folder_ends_the_attempt(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_gone", 5, us, 1);
	run_acked(y->agent.runs, 17, 1);
	advance_run(&y->agent, y->agent.runs);
	expect_end(y->agent.runs, "\"reason\":\"platform_error\"");
	assert_int_equal(y->agent.runs->end_seq, 18);
	drop(y);
}

static void a_device_that_is_not_there_ends_the_attempt(void **state)
{
	struct yard *y = make(state);
	list(y,
		"[{\"attempt_id\":\"att_2\",\"epoch\":5,\"job_id\":\"job_1\",\"devices\":[7],"
		"\"residency\":[\"any\"],\"files\":[],\"spec\":{}}]",
		2);
	struct run *r = agent_find(&y->agent, "att_2");
	run_acked(r, 0, 1);
	advance_run(&y->agent, r);
	expect_end(r, "no device 7");
	drop(y);
}

static void an_end_that_is_still_listed_is_sent_again(void **state)
{
	struct yard *y = make(state);
	list_one(y, "att_gone", 5, us, 1);
	struct run *r = y->agent.runs;
	run_acked(r, 17, 1);
	advance_run(&y->agent, r);
	assert_int_equal(r->end_seq, 18);
	run_acked(r, 20, 100);              /* somebody else's 18 to 20 */
	list_one(y, "att_gone", 5, us, 50); /* a poll from before that says nothing */
	assert_null(r->first);
	list_one(y, "att_gone", 5, us, 200);
	assert_non_null(r->first);
	assert_int_equal(r->first->seq, 21);
	run_acked(r, 21, 300);
	list(y, "[]", 400);
	assert_true(r->over);
	drop(y);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_list_begins_and_ends_runs),
		cmocka_unit_test(what_is_not_listed_is_over),
		cmocka_unit_test(entries_that_make_no_sense_are_skipped),
		cmocka_unit_test(residency_is_asked_before_anything_is_fetched),
		cmocka_unit_test(nothing_is_started_before_the_lease_is_known),
		cmocka_unit_test(a_wish_to_leave_needs_no_trainer),
		cmocka_unit_test(a_lost_folder_ends_the_attempt),
		cmocka_unit_test(a_device_that_is_not_there_ends_the_attempt),
		cmocka_unit_test(an_end_that_is_still_listed_is_sent_again),
	};
	return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
