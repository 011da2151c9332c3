/* SPDX-License-Identifier: Apache-2.0
 * Where data may be: the one rule and the one function that decides by it, writing each decision
 * as a row with the rule's version. Asked at upload, submit, dispatch, fetch and export by
 * handlers and the scheduler. Thread-safe: no state. */
#pragma once

#include "core/base/attr.h"
#include "core/base/err.h"
#include "core/db/db.h"
#include "core/spec/spec.h"

#include <stdbool.h>

enum {
	RESIDENCY_RULE_VERSION = 1,
	RESIDENCY_REASON_MAX = 400,
	RESIDENCY_TEXT_MAX = SPEC_REGIONS_MAX * (SPEC_REGION_MAX + 1) + 3,
};

/* Regions, any of which will do; {any} = anywhere. Zero-initialise. Never holds an unknown one. */
struct residency_set {
	char region[SPEC_REGIONS_MAX][SPEC_REGION_MAX];
	int count;
};

/* Adds a region. INVALID_VALUE when the tree does not list it or the set is full; one that the
 * set contains already is left out. */
int residency_set_add(struct residency_set *set, const char *region, struct err *err) must_check;
/* From a text[] column's text: {us,eu-west}. RESIDENCY when a region is unknown. */
int residency_set_parse(
	const char *array_text, struct residency_set *ret, struct err *err) must_check;
/* For a parameter that is cast: $1::text[]. */
void residency_set_format(
	const struct residency_set *set, char ret_text[static RESIDENCY_TEXT_MAX]);

/* Children may only tighten: every region of child must lie in one of parent's. An empty child
 * inherits parent. RESIDENCY naming both otherwise. */
int residency_tighten(const struct residency_set *parent, const struct residency_set *child,
	struct residency_set *ret_effective, struct err *err) must_check;

/* The rule itself, pure: place lies in one of the set's regions; an unknown place or an empty set
 * is refused. Writes the reason either way. */
bool residency_allows(const struct residency_set *set, const char *place,
	char ret_reason[static RESIDENCY_REASON_MAX]);

enum residency_ask {
	RESIDENCY_UPLOAD,
	RESIDENCY_SUBMIT,
	RESIDENCY_DISPATCH,
	RESIDENCY_FETCH,
	RESIDENCY_EXPORT,
};

struct residency_question {
	enum residency_ask ask;
	const char *tenant_id; /* NULL for none */
	const char *subject;   /* id of the file, job or attempt */
	const struct residency_set *allowed_set;
	const char *place; /* the region asked about */
};
/* Applies the rule and writes the decision's row in the caller's transaction. A refusal is not an
 * error: *ret_allowed is false and, when err is not NULL, err->message holds the reason (the
 * caller may return err->code, which is then RESIDENCY). */
int residency_decide(struct db_conn *conn, const struct residency_question *question,
	bool *ret_allowed, struct err *err) must_check;
