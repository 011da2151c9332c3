/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/transfer_files.c: where fetched files go, and how long a failure is borne. */
#include "tests/unit/workers/agent/agent_fixture.h"
#include "tests/unit/workers/agent/server_fixture.h"

#include "core/base/clock.h"
#include "core/crypto/digest.h"
#include "workers/agent/cache.h"
#include "workers/agent/http.h"
#include "workers/agent/transfer.h"

#define CONTENT "seven b"

struct world {
	struct server *server;
	struct settings_agent settings;
	struct agent agent;
	struct run *run;
	struct transfer_job job;
	char sha256[DIGEST_HEX_MAX];
	char reply[256];
};

static void make(void **state, struct world *w)
{
	struct err err = { 0 };
	memset(w, 0, sizeof(*w));
	w->server = server_start();
	w->agent.settings = &w->settings;
	w->agent.clock = clock_system();
	w->settings.transfer_retry_s = 1;
	snprintf(w->settings.work_dir, sizeof(w->settings.work_dir), "%s", (const char *)*state);
	snprintf(w->settings.tokenizer_dir, sizeof(w->settings.tokenizer_dir), "%s",
		fixture_path(state, "tokenizers"));
	assert_int_equal(run_create("att_1", 1, fixture_path(state, "att_1"), &w->run, &err), 0);
	assert_int_equal(file_mkdir(w->run->dir, &err), 0);
	w->job.agent = &w->agent;
	w->job.run = w->run;
	snprintf(w->job.id, sizeof(w->job.id), "att_1");
	snprintf(w->job.job_id, sizeof(w->job.job_id), "job_1");
	snprintf(w->job.token, sizeof(w->job.token), "token");
	snprintf(w->job.dir, sizeof(w->job.dir), "%s", w->run->dir);
	assert_int_equal(
		http_create(w->server->url, "ty_key", "", &w->run->abandon, &w->job.http, &err), 0);
	assert_int_equal(digest_hex_of(CONTENT, strlen(CONTENT), w->sha256), 0);
}

static void serve(struct world *w, const char *status, const char *body)
{
	snprintf(w->reply, sizeof(w->reply), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", status,
		strlen(body), body);
	reply_with(w->server, w->reply);
}

static void finish(struct world *w)
{
	http_destroy(w->job.http);
	server_stop(w->server);
	run_destroy(w->run);
}

static void expect_file(void **state, const char *name, const char *text)
{
	struct err err = { 0 };
	cleanup(freep) char *found = NULL;
	size_t bytes = 0;
	if (file_read(fixture_path(state, name), 4096, &found, &bytes, &err) < 0)
		fail_msg("%s: %s", name, err.message);
	assert_string_equal(found, text);
}

static void each_file_has_its_place(void **state)
{
	struct world w;
	struct err err = { 0 };
	char listing[1600], name[200];
	make(state, &w);
	serve(&w, "200 OK", CONTENT);
	assert_int_equal(file_mkdir(w.settings.tokenizer_dir, &err), 0);
	fixture_write(fixture_path(state, "tokenizers/gpt2.json"), "{}", 2);
	snprintf(listing, sizeof(listing),
		"{\"files\":[{\"role\":\"training_file\",\"sha256\":\"%s\",\"bytes\":7}],"
		"\"resume\":{\"files\":[{\"name\":\"state.json\",\"sha256\":\"%s\",\"bytes\":7}]},"
		"\"init\":{\"files\":[{\"name\":\"model.safetensors\",\"sha256\":\"%s\",\"bytes\":7}]},"
		"\"spec\":{\"data\":{\"tokenizer\":\"gpt2\"}}}",
		w.sha256, w.sha256, w.sha256);
	w.job.listing = listing;
	if (transfer_fetch_all(&w.job, &err) < 0)
		fail_msg("%s", err.message);
	snprintf(name, sizeof(name), "att_1/files/%s", w.sha256);
	expect_file(state, name, CONTENT);
	expect_file(state, "att_1/resume/state.json", CONTENT);
	expect_file(state, "att_1/init/model.safetensors", CONTENT);
	expect_file(state, "att_1/files/gpt2.json", "{}");
	finish(&w);
}

static void a_machine_without_the_tokenizer_says_so(void **state)
{
	struct world w;
	struct err err = { 0 };
	char listing[] = "{\"spec\":{\"data\":{\"tokenizer\":\"gpt2\"}}}";
	char other[] = "{\"spec\":{\"data\":{\"tokenizer\":\"bytes\"}}}";
	make(state, &w);
	w.job.listing = listing;
	assert_int_equal(transfer_fetch_all(&w.job, &err), ERR_INTERNAL);
	assert_non_null(strstr(err.message, "tokenizer_dir"));
	w.job.listing = other;
	assert_int_equal(transfer_fetch_all(&w.job, &err), 0);
	finish(&w);
}

static void a_name_that_leaves_the_folder_is_refused(void **state)
{
	struct world w;
	struct err err = { 0 };
	char listing[400];
	make(state, &w);
	serve(&w, "200 OK", CONTENT);
	snprintf(listing, sizeof(listing),
		"{\"init\":{\"files\":[{\"name\":\"../config.json\",\"sha256\":\"%s\",\"bytes\":7}]}}",
		w.sha256);
	w.job.listing = listing;
	assert_int_equal(transfer_fetch_all(&w.job, &err), ERR_INTERNAL);
	assert_int_equal(atomic_load(&w.server->calls), 0);
	finish(&w);
}

/* It is tried again, but not for ever, and the message keeps what the yard said. */
static void a_failure_that_stays_is_given_up(void **state)
{
	struct world w;
	struct err err = { 0 };
	char listing[400];
	make(state, &w);
	serve(&w, "500 Internal Server Error",
		"{\"error\":{\"code\":\"internal\",\"message\":\"the disk is on fire\"}}");
	snprintf(listing, sizeof(listing),
		"{\"files\":[{\"role\":\"training_file\",\"sha256\":\"%s\",\"bytes\":7}]}", w.sha256);
	w.job.listing = listing;
	int64_t began_us = clock_mono_us(clock_system());
	assert_int_equal(transfer_fetch_all(&w.job, &err), ERR_INTERNAL);
	int64_t took_ms = (clock_mono_us(clock_system()) - began_us) / 1000;
	assert_true(took_ms >= 1000 && took_ms < 20000);
	assert_true(atomic_load(&w.server->calls) >= 2);
	assert_non_null(strstr(err.message, "the disk is on fire"));
	finish(&w);
}

int main(void)
{
	if (http_global_init(NULL) < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_file_has_its_place, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			a_machine_without_the_tokenizer_says_so, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			a_name_that_leaves_the_folder_is_refused, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			a_failure_that_stays_is_given_up, fixture_setup, fixture_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
