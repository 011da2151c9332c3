/* SPDX-License-Identifier: Apache-2.0
 * Which machine takes a job and what is said when none does. Pure: no database. */
#include "tests/support/check.h"

#include "server/scheduler/placement.h"

static struct job_queue_agent agent(const char *id, const char *region, int64_t total, int64_t idle)
{
	struct job_queue_agent g = { .total = total, .idle = idle };
	snprintf(g.id, sizeof(g.id), "%s", id);
	snprintf(g.region, sizeof(g.region), "%s", region);
	snprintf(g.instance_type, sizeof(g.instance_type), "cpu-dev");
	return g;
}

static struct job_queue_job job(const char *region, int64_t count)
{
	struct job_queue_job j = { .device_count = count };
	snprintf(j.instance_type, sizeof(j.instance_type), "cpu-dev");
	assert_int_equal(residency_set_add(&j.residency, region, NULL), 0);
	return j;
}

static void the_tightest_fit_wins(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 8, 8),
		agent("b", "us-east-1", 8, 3), agent("c", "us-east-1", 2, 1),
		agent("d", "eu-west-1", 2, 2) };
	struct placement p;
	struct job_queue_job j = job("us", 2);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	assert_int_equal(p.agent, 1);
	/* not where it failed last, if there is another place */
	snprintf(j.last_agent_id, sizeof(j.last_agent_id), "b");
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	assert_int_equal(p.agent, 0);
	placement_choose(&j, agents + 1, 1, &p);
	assert_int_equal(p.agent, 0);
	snprintf(agents[0].instance_type, sizeof(agents[0].instance_type), "h100-80gb");
	j = job("any", 5);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
}

static void expect_parts(const struct placement *p, int count, const struct placement_part *parts)
{
	assert_int_equal(p->part_count, count);
	for (int i = 0; i < count; i++) {
		assert_int_equal(p->parts[i].agent, parts[i].agent);
		assert_int_equal(p->parts[i].devices, parts[i].devices);
	}
}

static void a_gang_takes_as_few_machines_as_it_can(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 8, 2),
		agent("b", "us-west-1", 8, 3), agent("c", "us-east-1", 8, 1), agent("d", "us-west-1", 4, 4),
		agent("e", "eu-west-1", 8, 0), agent("f", "us-east-1", 8, 1) };
	struct placement p;
	struct job_queue_job j = job("us", 4);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p); /* one machine has enough */
	expect_parts(&p, 1, (struct placement_part[]){ { 3, 4 } });
	j = job("us", 6);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	expect_parts(&p, 2, (struct placement_part[]){ { 3, 4 }, { 1, 2 } });
	/* Regions do not mix, nor do machines that only reach themselves. */
	j = job("us-east", 4);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	expect_parts(&p, 3, (struct placement_part[]){ { 0, 2 }, { 2, 1 }, { 5, 1 } });
	snprintf(agents[2].reach, sizeof(agents[2].reach), "boot-1");
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	assert_string_equal(p.code, "residency"); /* what is free elsewhere may not be used */
	j = job("us", 8);
	placement_choose(&j, agents, ARRAY_LEN(agents), &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
}

/* The machine where a rank was lost is the last that a gang takes, in its region and of regions. */
static void a_gang_avoids_the_machine_that_was_lost(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 4, 4),
		agent("b", "us-east-1", 4, 3), agent("c", "us-east-1", 4, 2) };
	struct placement p;
	struct job_queue_job j = job("us", 5);
	placement_choose(&j, agents, 3, &p);
	expect_parts(&p, 2, (struct placement_part[]){ { 0, 4 }, { 1, 1 } });
	snprintf(j.last_agent_id, sizeof(j.last_agent_id), "a");
	placement_choose(&j, agents, 3, &p);
	expect_parts(&p, 2, (struct placement_part[]){ { 1, 3 }, { 2, 2 } });
	placement_choose(&j, agents, 2, &p); /* nothing else is free */
	expect_parts(&p, 2, (struct placement_part[]){ { 1, 3 }, { 0, 2 } });
	struct job_queue_agent rising[] = { agent("c", "us-east-1", 4, 2),
		agent("b", "us-east-1", 4, 3), agent("a", "us-east-1", 4, 4) };
	placement_choose(&j, rising, 3, &p);
	expect_parts(&p, 2, (struct placement_part[]){ { 1, 3 }, { 0, 2 } });
	struct job_queue_agent apart[] = { agent("a", "us-east-1", 4, 4), agent("b", "us-east-1", 4, 3),
		agent("c", "us-west-1", 4, 2), agent("d", "us-west-1", 4, 2),
		agent("e", "us-west-1", 4, 2) };
	placement_choose(&j, apart, 5, &p);
	expect_parts(&p, 3, (struct placement_part[]){ { 2, 2 }, { 3, 2 }, { 4, 1 } });
}

static void a_gang_that_waited_long_gets_its_machines(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 4, 4),
		agent("b", "us-east-1", 4, 2), agent("c", "us-east-1", 1, 1) };
	struct job_queue_job gang = job("us", 8), small = job("us", 2);
	struct placement p;
	placement_choose(&gang, agents, 3, &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	assert_string_equal(p.code, "no_capacity");
	assert_non_null(strstr(p.message, "on machines of one region"));
	gang.waited_ms = PLACEMENT_GUARD_MS;
	placement_choose(&gang, agents, 3, &p);
	placement_choose(&small, agents, 3, &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	small.device_count = 1; /* the third is not wanted for the gang */
	placement_choose(&small, agents, 3, &p);
	assert_int_equal(p.agent, 2);
}

enum { ELASTIC_WAIT_MS = 60000 };

/* data ways of so many devices each, 1 or 2. */
static struct job_queue_job elastic_job(int64_t data, int64_t min_data, int64_t others)
{
	struct job_queue_job j = job("us", data * others);
	j.elastic = elastic_of(data * others, min_data, others);
	return j;
}

static void expect_elastic(const struct job_queue_job *j, int64_t idle_a, int64_t idle_b, int count,
	const struct placement_part *parts)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 8, idle_a),
		agent("b", "us-east-1", 8, idle_b) };
	struct placement p;
	placement_choose_elastic(j, agents, 2, ELASTIC_WAIT_MS, &p);
	expect_parts(&p, count, parts);
	assert_int_equal(p.agent, count > 0 ? parts[0].agent : PLACEMENT_NONE);
}

static void an_elastic_job_waits_before_it_shrinks(void **state)
{
	struct job_queue_job j = elastic_job(6, 2, 1);
	expect_elastic(&j, 3, 3, 2, (struct placement_part[]){ { 0, 3 }, { 1, 3 } });
	j.paused_ms = ELASTIC_WAIT_MS - 1;
	j.waited_ms = 10 * ELASTIC_WAIT_MS; /* how long it trained before is not waiting */
	expect_elastic(&j, 4, 0, 0, NULL);
	j.paused_ms++;
	expect_elastic(&j, 3, 3, 2, (struct placement_part[]){ { 0, 3 }, { 1, 3 } }); /* the whole */
	expect_elastic(&j, 5, 0, 1, (struct placement_part[]){ { 0, 3 } }); /* 5 and 4 do not divide */
	expect_elastic(&j, 2, 1, 2, (struct placement_part[]){ { 0, 2 }, { 1, 1 } });
	expect_elastic(&j, 2, 0, 1, (struct placement_part[]){ { 0, 2 } });
	expect_elastic(&j, 1, 0, 0, NULL); /* min_data */
	j = elastic_job(6, 0, 1);
	j.paused_ms = ELASTIC_WAIT_MS;
	expect_elastic(&j, 5, 0, 0, NULL); /* not elastic */
}

static void after_a_lost_machine_it_shrinks_at_once(void **state)
{
	struct job_queue_job j = elastic_job(4, 1, 2);
	j.after_lost = true;
	expect_elastic(&j, 8, 8, 1, (struct placement_part[]){ { 0, 8 } }); /* the whole is free */
	expect_elastic(&j, 7, 0, 1, (struct placement_part[]){ { 0, 4 } }); /* 2 x 2, not 3 x 2 */
	expect_elastic(&j, 3, 0, 1, (struct placement_part[]){ { 0, 2 } });
	expect_elastic(&j, 1, 0, 0, NULL); /* the other axes stay */
}

/* An elastic job that waits keeps machines free for its whole wish only when no size has a place.
 */
static void an_elastic_job_reserves_nothing_for_what_it_does_not_take(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 4, 3) };
	struct job_queue_job j = elastic_job(4, 2, 1);
	struct placement p;
	j.waited_ms = j.paused_ms = PLACEMENT_GUARD_MS;
	placement_choose_elastic(&j, agents, 1, ELASTIC_WAIT_MS, &p);
	expect_parts(&p, 1, (struct placement_part[]){ { 0, 2 } });
	assert_false(agents[0].reserved);
	agents[0].idle = 1;
	placement_choose_elastic(&j, agents, 1, ELASTIC_WAIT_MS, &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	assert_non_null(strstr(p.message, "Waiting for 4 cpu-dev devices"));
	assert_true(agents[0].reserved);
}

static void reasons_are_told_apart(void **state)
{
	struct job_queue_agent us_busy = agent("a", "us-east-1", 2, 0);
	struct job_queue_agent us_some = agent("b", "us-west-1", 2, 1);
	struct job_queue_agent eu_free = agent("c", "eu-west-1", 4, 4);
	struct job_queue_agent eu_busy = agent("d", "eu-west-1", 4, 0);
	const struct {
		struct job_queue_agent agents[2];
		int count;
		int64_t devices;
		const char *code, *says;
	} cases[] = {
		{ { us_busy }, 0, 1, "no_machine", "No machine with cpu-dev devices" },
		{ { us_busy, us_some }, 2, 2, "no_capacity", "Waiting for 2 cpu-dev devices" },
		{ { us_busy }, 1, 1, "no_capacity", "Waiting for 1 cpu-dev device " },
		{ { us_busy, us_some }, 2, 3, "no_machine", "No connected machine has 3" },
		{ { us_busy, eu_free }, 2, 1, "residency", "only free cpu-dev devices are in eu-west-1" },
		{ { eu_free }, 1, 1, "residency", "residency {us}" },
		{ { eu_busy }, 1, 1, "residency", "No machine with cpu-dev devices is in a region" },
		{ { us_busy, eu_busy }, 2, 1, "no_capacity", "Waiting for 1" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct job_queue_agent agents[2] = { cases[i].agents[0], cases[i].agents[1] };
		struct job_queue_job j = job("us", cases[i].devices);
		struct placement p;
		placement_choose(&j, agents, cases[i].count, &p);
		assert_int_equal(p.agent, PLACEMENT_NONE);
		assert_string_equal(p.code, cases[i].code);
		if (strstr(p.message, cases[i].says) == NULL)
			fail_msg("case %zu: %s", i, p.message);
	}
}

static void a_large_job_that_waited_long_gets_a_machine(void **state)
{
	struct job_queue_agent agents[] = { agent("a", "us-east-1", 2, 2),
		agent("b", "us-west-1", 8, 7) };
	struct job_queue_job large = job("us", 8), small = job("us", 3);
	struct placement p;
	placement_choose(&large, agents, 2, &p);
	placement_choose(&small, agents, 2, &p);
	assert_int_equal(p.agent, 1);
	large.waited_ms = PLACEMENT_GUARD_MS;
	placement_choose(&large, agents, 2, &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	placement_choose(&small, agents, 2, &p);
	assert_int_equal(p.agent, PLACEMENT_NONE);
	small.device_count = 2;
	placement_choose(&small, agents, 2, &p);
	assert_int_equal(p.agent, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tightest_fit_wins),
		cmocka_unit_test(reasons_are_told_apart),
		cmocka_unit_test(a_gang_takes_as_few_machines_as_it_can),
		cmocka_unit_test(a_gang_avoids_the_machine_that_was_lost),
		cmocka_unit_test(a_gang_that_waited_long_gets_its_machines),
		cmocka_unit_test(an_elastic_job_waits_before_it_shrinks),
		cmocka_unit_test(after_a_lost_machine_it_shrinks_at_once),
		cmocka_unit_test(an_elastic_job_reserves_nothing_for_what_it_does_not_take),
		cmocka_unit_test(a_large_job_that_waited_long_gets_a_machine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
