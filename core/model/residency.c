/* SPDX-License-Identifier: Apache-2.0
 * The residency rule, version 1: a place is allowed when it lies in one of the set's regions of
 * the tree; whatever the tree does not list is refused. */
#include "core/model/residency.h"

#include "core/spec/region.h"

#include <stdio.h>
#include <string.h>

static const char *const ask_words[] = {
	[RESIDENCY_UPLOAD] = "upload",
	[RESIDENCY_SUBMIT] = "submit",
	[RESIDENCY_DISPATCH] = "dispatch",
	[RESIDENCY_FETCH] = "fetch",
	[RESIDENCY_EXPORT] = "export",
};

int residency_set_add(struct residency_set *set, const char *region, struct err *err)
{
	if (!region_known(region))
		return err_set(err, ERR_INVALID_VALUE, "residency", "The region '%.40s' is not known.",
			region == NULL ? "" : region);
	for (int i = 0; i < set->count; i++)
		if (strcmp(set->region[i], region) == 0)
			return 0;
	if (set->count == SPEC_REGIONS_MAX)
		return err_set(err, ERR_INVALID_VALUE, "residency", "At most %d regions may be named.",
			SPEC_REGIONS_MAX);
	snprintf(set->region[set->count++], SPEC_REGION_MAX, "%s", region);
	return 0;
}

int residency_set_parse(const char *array_text, struct residency_set *ret, struct err *err)
{
	struct residency_set set = { 0 };
	size_t len = strlen(array_text);
	if (len < 2 || array_text[0] != '{' || array_text[len - 1] != '}')
		return err_set(err, ERR_INTERNAL, NULL, "'%.80s' is not an array of regions.", array_text);
	const char *at = array_text + 1, *end = array_text + len - 1;
	while (at < end) {
		size_t n = strcspn(at, ",}");
		char region[SPEC_REGION_MAX];
		if (n >= sizeof(region))
			return err_set(
				err, ERR_RESIDENCY, NULL, "The region '%.40s' is not known: refused.", at);
		memcpy(region, at, n);
		region[n] = '\0';
		if (residency_set_add(&set, region, NULL) < 0)
			return err_set(
				err, ERR_RESIDENCY, NULL, "The region '%s' is not known: refused.", region);
		at += n + 1;
	}
	*ret = set;
	return 0;
}

/* Regions between separators, as much as fits. */
static void join(const struct residency_set *set, const char *separator, char *ret, size_t max)
{
	size_t used = 0;
	ret[0] = '\0';
	for (int i = 0; i < set->count && used < max; i++)
		used += (size_t)snprintf(
			ret + used, max - used, "%s%s", i > 0 ? separator : "", set->region[i]);
}

void residency_set_format(const struct residency_set *set, char ret_text[static RESIDENCY_TEXT_MAX])
{
	char inner[RESIDENCY_TEXT_MAX - 2];
	join(set, ",", inner, sizeof(inner));
	snprintf(ret_text, RESIDENCY_TEXT_MAX, "{%s}", inner);
}

static bool contains(const struct residency_set *set, const char *place)
{
	for (int i = 0; i < set->count; i++)
		if (region_contains(set->region[i], place))
			return true;
	return false;
}

int residency_tighten(const struct residency_set *parent, const struct residency_set *child,
	struct residency_set *ret_effective, struct err *err)
{
	if (child->count == 0) {
		*ret_effective = *parent;
		return 0;
	}
	for (int i = 0; i < child->count; i++) {
		if (contains(parent, child->region[i]))
			continue;
		char outer[RESIDENCY_TEXT_MAX], inner[RESIDENCY_TEXT_MAX];
		join(parent, ", ", outer, sizeof(outer));
		join(child, ", ", inner, sizeof(inner));
		return err_set(err, ERR_RESIDENCY, "residency",
			"Residency may only be tightened: '%s' of [%s] does not lie in [%s].", child->region[i],
			inner, outer);
	}
	*ret_effective = *child;
	return 0;
}

bool residency_allows(const struct residency_set *set, const char *place,
	char ret_reason[static RESIDENCY_REASON_MAX])
{
	char names[RESIDENCY_TEXT_MAX];
	join(set, ", ", names, sizeof(names));
	if (!region_known(place)) {
		snprintf(ret_reason, RESIDENCY_REASON_MAX, "the region '%.40s' is not known: refused",
			place == NULL ? "" : place);
		return false;
	}
	bool allowed = contains(set, place);
	snprintf(ret_reason, RESIDENCY_REASON_MAX, "%s %s in [%s]", place,
		allowed ? "lies" : "does not lie", names);
	return allowed;
}

int residency_decide(
	struct db_conn *conn, const struct residency_question *q, bool *ret_allowed, struct err *err)
{
	char reason[RESIDENCY_REASON_MAX], set_text[RESIDENCY_TEXT_MAX];
	bool allowed = residency_allows(q->allowed_set, q->place, reason);
	residency_set_format(q->allowed_set, set_text);
	int rc = db_exec(conn, NULL, err,
		"insert into residency_decisions"
		" (rule_version, question, tenant_id, subject, allowed_set, place, allowed, reason)"
		" values ($1, $2, $3, $4, $5::text[], $6, $7, $8)",
		DB_I64(RESIDENCY_RULE_VERSION), DB_TEXT(ask_words[q->ask]), DB_TEXT(q->tenant_id),
		DB_TEXT(q->subject), DB_TEXT(set_text), DB_TEXT(q->place == NULL ? "" : q->place),
		DB_BOOL(allowed), DB_TEXT(reason));
	if (rc < 0)
		return rc;
	if (!allowed)
		(void)err_set(err, ERR_RESIDENCY, NULL, "Data residency does not allow this: %s.", reason);
	*ret_allowed = allowed;
	return 0;
}
