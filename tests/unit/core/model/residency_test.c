/* SPDX-License-Identifier: Apache-2.0
 * The residency rule by the cases of residency_cases.txt, and its decisions on a real database.
 * Run by with_pg.sh. */
#include "tests/unit/core/model/store_fixture.h"

#include "core/model/residency.h"

static void read_set(const char *text, struct residency_set *ret)
{
	struct err err = { 0 };
	char copy[200];
	*ret = (struct residency_set){ 0 };
	if (strcmp(text, "-") == 0)
		return;
	snprintf(copy, sizeof(copy), "{%s}", text);
	assert_ok(residency_set_parse(copy, ret, &err));
}

static void check_allow(int line, const char *set_text, const char *place, const char *expected)
{
	char reason[RESIDENCY_REASON_MAX];
	struct residency_set set;
	read_set(set_text, &set);
	bool allowed = residency_allows(&set, strcmp(place, "-") == 0 ? "" : place, reason);
	if (allowed != (strcmp(expected, "yes") == 0))
		fail_msg("line %d: %s in %s: %s", line, place, set_text, reason);
	assert_true(strlen(reason) > 0);
}

static void check_tight(
	int line, const char *parent_text, const char *child_text, const char *expected)
{
	struct err err = { 0 };
	struct residency_set parent, child, effective;
	read_set(parent_text, &parent);
	read_set(child_text, &child);
	int rc = residency_tighten(&parent, &child, &effective, &err);
	if (strcmp(expected, "refused") == 0) {
		if (rc != ERR_RESIDENCY)
			fail_msg("line %d: not refused", line);
		assert_non_null(strstr(err.message, parent.region[0]));
		assert_non_null(strstr(err.message, child.region[child.count - 1]));
		return;
	}
	char text[RESIDENCY_TEXT_MAX], want[RESIDENCY_TEXT_MAX];
	if (rc < 0)
		fail_msg("line %d: %s", line, err.message);
	residency_set_format(&effective, text);
	snprintf(want, sizeof(want), "{%.200s}", expected);
	assert_string_equal(text, want);
}

static void cases_hold(void **state)
{
	FILE *f = fopen(RESIDENCY_CASES, "r");
	assert_non_null(f);
	char line[200];
	int number = 0, checked = 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		char kind[16], a[64], b[64], c[64];
		number++;
		if (line[0] == '#' || sscanf(line, "%15s %63s %63s %63s", kind, a, b, c) != 4)
			continue;
		if (strcmp(kind, "allow") == 0)
			check_allow(number, a, b, c);
		else
			check_tight(number, a, b, c);
		checked++;
	}
	fclose(f);
	assert_true(checked >= 45);
}

static void unknown_regions_enter_no_set(void **state)
{
	struct err err = { 0 };
	struct residency_set set = { 0 };
	assert_int_equal(residency_set_add(&set, "mars", &err), ERR_INVALID_VALUE);
	assert_int_equal(residency_set_add(&set, NULL, &err), ERR_INVALID_VALUE);
	assert_int_equal(residency_set_parse("{us,mars}", &set, &err), ERR_RESIDENCY);
	assert_int_equal(residency_set_parse("us", &set, &err), ERR_INTERNAL);
	assert_int_equal(set.count, 0);
	for (int i = 0; i < 2; i++) {
		assert_ok(residency_set_add(&set, "us", &err));
		assert_ok(residency_set_add(&set, "eu", &err));
	}
	assert_int_equal(set.count, 2);
}

/* region, allowed? */
static void decide(struct db_conn *conn, const char *tenant, const char *place, bool expected)
{
	struct err err = { 0 };
	struct residency_set set = { 0 };
	bool allowed = !expected;
	assert_ok(residency_set_add(&set, "us", &err));
	struct residency_question q = { .ask = RESIDENCY_DISPATCH,
		.tenant_id = tenant,
		.subject = "job_x",
		.allowed_set = &set,
		.place = place };
	assert_ok(residency_decide(conn, &q, &allowed, &err));
	assert_int_equal(allowed, expected);
	assert_int_equal(err.code, expected ? 0 : ERR_RESIDENCY);
}

static void every_decision_is_a_row(void **state)
{
	struct store_fixture *fx = *state;
	struct err err = { 0 };
	char tenant[IDENT_MAX];
	store_tenant(fx->conn, "us", tenant);
	decide(fx->conn, tenant, "us-east-1", true);
	decide(fx->conn, tenant, "eu-west-1", false);
	decide(fx->conn, tenant, "mars", false);
	decide(fx->conn, tenant, NULL, false);
	cleanup(db_result_freep) struct db_result *r = NULL;
	assert_ok(db_exec(fx->conn, &r, &err,
		"select question, allowed_set::text, place, allowed, reason, rule_version"
		" from residency_decisions where subject = 'job_x' order by id"));
	assert_int_equal(db_rows(r), 4);
	assert_string_equal(db_str(r, 0, 0), "dispatch");
	assert_string_equal(db_str(r, 1, 1), "{us}");
	assert_string_equal(db_str(r, 1, 2), "eu-west-1");
	assert_false(db_bool(r, 1, 3));
	assert_string_equal(db_str(r, 1, 4), "eu-west-1 does not lie in [us]");
	assert_int_equal(db_i64(r, 1, 5), RESIDENCY_RULE_VERSION);
	assert_int_equal(
		db_exec(fx->conn, NULL, &err, "delete from residency_decisions"), ERR_INTERNAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cases_hold),
		cmocka_unit_test(unknown_regions_enter_no_set),
		store_test(every_decision_is_a_row),
	};
	return cmocka_run_group_tests(tests, store_group_setup, store_group_teardown);
}
