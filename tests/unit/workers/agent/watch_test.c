/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/watch.c and xid.c, and what advance_fault.c does with an attempt: errors are
 * planted while the agent watches. */
#include "tests/unit/workers/agent/gpu_fixture.h"

#include "core/json/reader.h"
#include "workers/agent/advance.h"
#include "workers/agent/reconcile.h"
#include "workers/agent/watch.h"
#include "workers/agent/xid.h"

#include <poll.h>

enum { WAIT_MS = 20000 };

static struct agent agent; /* the thread's, which never ends */

static void await_fault(int index, const char *part)
{
	char text[DEVICE_FAULT_MAX] = "";
	for (int i = 0; i < WAIT_MS && text[0] == '\0'; i++) {
		pthread_mutex_lock(&agent.lock);
		const char *fault = device_untold_fault(&agent.devices, index);
		snprintf(text, sizeof(text), "%s", fault != NULL ? fault : "");
		pthread_mutex_unlock(&agent.lock);
		poll(NULL, 0, 1);
	}
	if (strstr(text, part) == NULL)
		fail_msg("device %d has the fault '%s', not '%s'", index, text, part);
}

static bool faultless(int index)
{
	pthread_mutex_lock(&agent.lock);
	bool none = device_untold_fault(&agent.devices, index) == NULL;
	pthread_mutex_unlock(&agent.lock);
	return none;
}

/* An attempt on the third device ends, one on the fifth does not. */
static void check_attempts(void)
{
	static const char text[] = "[{\"attempt_id\":\"att_1\",\"epoch\":1,\"devices\":[3,2]},"
							   "{\"attempt_id\":\"att_2\",\"epoch\":2,\"devices\":[4]}]";
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	assert_int_equal(json_doc_parse(text, strlen(text), JSON_BYTES_MAX, &doc, NULL), 0);
	pthread_mutex_lock(&agent.lock);
	reconcile_list(&agent, json_doc_root(doc), 1);
	struct run *one = agent_find(&agent, "att_1"), *two = agent_find(&agent, "att_2");
	run_acked(one, 5, 1);
	one->phase = two->phase = RUN_TRAINING;
	advance_faults(&agent);
	assert_non_null(one->last);
	if (strstr(one->last->text, "\"reason\":\"platform_error\"") == NULL ||
		strstr(one->last->text, "Xid 48") == NULL)
		fail_msg("the attempt ends with %s", one->last->text);
	assert_null(two->last);
	pthread_mutex_unlock(&agent.lock);
}

static void errors_are_seen(void **state)
{
	struct err err = { 0 };
	fixture_gpus(state,
		DRIVER GPU_0 GPU_1 "gpu GPU-cccc 1000000 NVIDIA A100 mig=on\n"
						   "mig MIG-1 GPU-cccc 1 500000 NVIDIA A100 MIG 3g.20gb\n"
						   "mig MIG-2 GPU-cccc 2 500000 NVIDIA A100 MIG 3g.20gb\n"
						   "gpu GPU-dddd 1000000 NVIDIA H200\n"
						   "gpu GPU-eeee 1000000 NVIDIA H200\n");
	agent.clock = clock_system();
	agent.settings = fixture_kind("cuda");
	snprintf(
		fixture_settings.work_dir, sizeof(fixture_settings.work_dir), "%s", (const char *)*state);
	pthread_mutex_init(&agent.lock, NULL);
	pthread_cond_init(&agent.report_due, NULL);
	agent.wake = -1;
	assert_int_equal(device_find(agent.settings, FIXTURE_BUILT_CUDA, &agent.devices, &err), 0);
	assert_int_equal(agent.devices.count, 6);
	assert_int_equal(watch_start(&agent, &err), 0);
	/* In the order of the lines: when the last is seen, the others were. */
	fixture_add(state,
		"xid GPU-aaaa 13\nxid GPU-aaaa 31\nxid GPU-aaaa 43\nxid GPU-aaaa 45\nxid GPU-aaaa 777\n"
		"xid GPU-cccc 48 1\nxid GPU-bbbb 79\n");
	await_fault(1, "Xid 79 of GPU-bbbb: the GPU has fallen off the bus");
	await_fault(2, "Xid 48 of GPU-cccc"); /* MIG-1 */
	assert_true(faultless(0));            /* a process's doing */
	assert_true(faultless(3));            /* another instance's */
	check_attempts();
	fixture_add(state, "xid GPU-cccc 95\n");
	await_fault(3, "Xid 95"); /* not one instance's */
	fixture_add(state, "ecc GPU-aaaa\n");
	await_fault(0, "double-bit");
	assert_true(faultless(4));
	fixture_add(state, "lost GPU-dddd\n");
	await_fault(4, "lost");
	assert_true(faultless(5));
}

static void the_platforms_xids_are_known(void **state)
{
	static const unsigned platform[] = { 46, 48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140 };
	static const unsigned process[] = { 8, 11, 13, 31, 43, 45 };
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(platform); i++)
		assert_true(xid_find(platform[i]) != NULL && xid_find(platform[i])->fault);
	for (size_t i = 0; i < ARRAY_LEN(process); i++)
		assert_true(xid_find(process[i]) != NULL && !xid_find(process[i])->fault);
	assert_null(xid_find(999));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(errors_are_seen, fixture_setup, fixture_teardown),
		cmocka_unit_test(the_platforms_xids_are_known),
	};
	fixture_nvml = argc > 1 ? argv[1] : "";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
