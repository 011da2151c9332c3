/* SPDX-License-Identifier: Apache-2.0
 * Tests workers/agent/device.c, device_nvml.c and nvml.c: which devices a machine has, with which
 * driver it refuses to start, what the yard is told. */
#include "tests/unit/workers/agent/gpu_fixture.h"

#include "workers/agent/device_nvml.h"

static struct device_set found;

static void find(const char *kind)
{
	struct err err = { 0 };
	if (device_find(fixture_kind(kind), FIXTURE_BUILT_CUDA, &found, &err) < 0)
		fail_msg("%s", err.message);
}

static const char *refused(const char *kind, int built_cuda)
{
	static struct err err;
	memset(&err, 0, sizeof(err));
	assert_int_equal(device_find(fixture_kind(kind), built_cuda, &found, &err), ERR_UNAVAILABLE);
	return err.message;
}

static void assert_has(const char *text, const char *part)
{
	if (strstr(text, part) == NULL)
		fail_msg("'%s' lacks '%s'", text, part);
}

static void assert_cpus(void)
{
	assert_int_equal(found.count, 2);
	assert_null(found.nvml);
	assert_string_equal(found.list[1].name, "cpu1");
	assert_string_equal(found.list[1].uuid, "");
	assert_int_equal(found.list[1].memory_bytes, 1 << 20);
}

/* ------------------------------------------------------------------------------ the kinds */

static void without_a_driver(void **state)
{
	struct err err = { 0 };
	(void)state;
	unsetenv("TRAINYARD_EMULATION_NVML"); /* the library is there, the driver is not */
	assert_has(refused("cuda", FIXTURE_BUILT_CUDA), "Driver Not Loaded");
	find("auto");
	assert_cpus();
	struct settings_agent s = *fixture_kind("cuda");
	snprintf(s.nvml_library, sizeof(s.nvml_library), "libno-such-nvml.so.1");
	assert_int_equal(device_find(&s, FIXTURE_BUILT_CUDA, &found, &err), ERR_UNAVAILABLE);
	assert_has(err.message, "libno-such-nvml.so.1");
	assert_has(err.message, "NVIDIA driver");
	snprintf(s.device_kind, sizeof(s.device_kind), "auto");
	assert_int_equal(device_find(&s, FIXTURE_BUILT_CUDA, &found, &err), 0);
	assert_cpus();
}

static void without_a_gpu(void **state)
{
	fixture_gpus(state, DRIVER);
	assert_has(refused("cuda", FIXTURE_BUILT_CUDA), "no GPU");
	find("auto");
	assert_cpus();
}

static void cpu_means_cpu(void **state)
{
	fixture_gpus(state, DRIVER GPU_0);
	find("cpu");
	assert_cpus();
}

static void an_unknown_kind_is_refused(void **state)
{
	struct err err = { 0 };
	(void)state;
	assert_int_equal(device_find(fixture_kind("gpu"), 0, &found, &err), ERR_INVALID_VALUE);
	assert_string_equal(err.param, "device_kind");
}

/* ------------------------------------------------------------------------------ GPUs */

static void each_gpu_is_a_device(void **state)
{
	fixture_gpus(state, DRIVER GPU_0 GPU_1);
	for (int i = 0; i < 2; i++) {
		find(i == 0 ? "cuda" : "auto");
		assert_int_equal(found.count, 2);
		assert_non_null(found.nvml);
		assert_string_equal(found.list[0].uuid, "GPU-aaaa");
		assert_string_equal(found.list[1].uuid, "GPU-bbbb");
		assert_string_equal(found.list[1].name, "NVIDIA H200");
		assert_true(found.list[1].memory_bytes == 150754820096);
		assert_string_equal(found.driver, "580.65.06");
	}
}

static void mig_instances_are_devices(void **state)
{
	fixture_gpus(state,
		DRIVER "gpu GPU-aaaa 42949672960 NVIDIA A100 mig=on\n"
			   "gpu GPU-bbbb 42949672960 NVIDIA A100\n"
			   "gpu GPU-cccc 42949672960 NVIDIA A100 mig=on\n"
			   "mig MIG-1 GPU-aaaa 1 20937965568 NVIDIA A100 MIG 3g.20gb\n"
			   "mig MIG-2 GPU-aaaa 2 20937965568 NVIDIA A100 MIG 3g.20gb\n");
	find("cuda");
	assert_int_equal(found.count, 3); /* nothing of the third: it is in MIG mode, without one */
	assert_string_equal(found.list[0].uuid, "MIG-1");
	assert_string_equal(found.list[1].uuid, "MIG-2");
	assert_string_equal(found.list[1].name, "NVIDIA A100 MIG 3g.20gb");
	assert_true(found.list[1].memory_bytes == 20937965568);
	assert_int_equal(found.list[1].gpu_instance, 2);
	assert_string_equal(found.list[1].gpu_uuid, "GPU-aaaa");
	assert_string_equal(found.list[2].uuid, "GPU-bbbb");
	assert_true(found.list[2].gpu_instance == NVML_NO_INSTANCE);
}

static void a_lost_gpu_is_left_out(void **state)
{
	fixture_gpus(state, DRIVER GPU_0 GPU_1 "lost GPU-aaaa\n");
	find("cuda");
	assert_int_equal(found.count, 1);
	assert_string_equal(found.list[0].uuid, "GPU-bbbb");
	fixture_add(state, "lost GPU-bbbb\n");
	assert_has(refused("cuda", FIXTURE_BUILT_CUDA), "none of the machine's 2 GPUs");
}

/* ------------------------------------------------------------------------------ versions */

static void an_old_driver_is_refused(void **state)
{
	fixture_gpus(state, "driver 535.129.03 12020\n" GPU_0);
	for (int i = 0; i < 2; i++) {
		const char *why = refused(i == 0 ? "cuda" : "auto", FIXTURE_BUILT_CUDA);
		assert_has(why, "535.129.03 is for CUDA 12.2");
		assert_has(why, "built for CUDA 13.0");
		assert_has(why, "install a driver for CUDA 13.0 or newer");
	}
	assert_has(refused("cuda", 0), "this build has no CUDA");
}

static void the_major_version_decides(void **state)
{
	struct err err = { 0 };
	fixture_gpus(state, "driver 580.65.06 13000\n" GPU_0);
	assert_int_equal(device_find(fixture_kind("cuda"), 13020, &found, &err), 0);
	assert_int_equal(device_find(fixture_kind("cuda"), 12090, &found, &err), 0);
	assert_has(refused("cuda", 14000), "built for CUDA 14.0");
}

/* ------------------------------------------------------------------------------ what is told */

static const char *registration(void)
{
	static char text[2048];
	struct buf out;
	struct json_writer w;
	buf_init(&out, sizeof(text));
	json_writer_init(&w, &out);
	json_begin_object(&w);
	device_write_registration(&found, &w);
	device_write_faults(&found, &w);
	json_end_object(&w);
	snprintf(text, sizeof(text), "%s", buf_cstr(&out));
	buf_finish(&out);
	return text;
}

static void the_yard_is_told(void **state)
{
	fixture_gpus(state, DRIVER GPU_0);
	find("cuda");
	assert_string_equal(registration(),
		"{\"devices\":[{\"index\":0,\"name\":\"NVIDIA H200\",\"memory_bytes\":150754820096,"
		"\"uuid\":\"GPU-aaaa\"}],\"cuda\":{\"driver\":\"580.65.06\",\"driver_cuda\":\"13.0\","
		"\"build_cuda\":\"13.0\"}}");
	find("cpu");
	assert_string_equal(registration(),
		"{\"devices\":[{\"index\":0,\"name\":\"cpu0\",\"memory_bytes\":1048576},"
		"{\"index\":1,\"name\":\"cpu1\",\"memory_bytes\":1048576}]}");
}

static void a_fault_is_told_until_the_yard_has_it(void **state)
{
	int numbers[DEVICE_MAX];
	fixture_gpus(state, DRIVER GPU_0 GPU_1 "rows GPU-bbbb 0 1\n");
	find("cuda");
	assert_null(device_untold_fault(&found, 0));
	assert_has(device_untold_fault(&found, 1), "row remapping failed");
	device_fault_numbers(&found, numbers);
	assert_has(
		registration(), "\"faults\":[{\"index\":1,\"uuid\":\"GPU-bbbb\",\"message\":\"a memory");
	device_fault(&found, 0, "one"); /* after the report was written */
	device_fault(&found, 0, "two");
	device_faults_told(&found, numbers);
	assert_null(device_untold_fault(&found, 1));
	assert_string_equal(device_untold_fault(&found, 0), "one");
	assert_null(device_untold_fault(&found, 7));
}

static void holders_are_counted(void **state)
{
	fixture_gpus(state, DRIVER GPU_0 GPU_1 "processes GPU-bbbb 3\n");
	find("cuda");
	assert_int_equal(device_nvml_holders(&found, 0), 0);
	assert_int_equal(device_nvml_holders(&found, 1), 3);
	find("cpu");
	assert_int_equal(device_nvml_holders(&found, 1), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(without_a_driver),
		TEST(without_a_gpu),
		TEST(cpu_means_cpu),
		TEST(an_unknown_kind_is_refused),
		TEST(each_gpu_is_a_device),
		TEST(mig_instances_are_devices),
		TEST(a_lost_gpu_is_left_out),
		TEST(an_old_driver_is_refused),
		TEST(the_major_version_decides),
		TEST(the_yard_is_told),
		TEST(a_fault_is_told_until_the_yard_has_it),
		TEST(holders_are_counted),
	};
	fixture_nvml = argc > 1 ? argv[1] : "";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
