/* SPDX-License-Identifier: Apache-2.0
 * The tree of regions as a table of (name, parent), parents first. */
#include "core/spec/region.h"

#include <stddef.h>
#include <string.h>

struct region {
	const char *name;
	const char *parent; /* NULL for the root */
};

static const struct region tree[] = {
	{ "any", NULL },
	{ "us", "any" },
	{ "us-east", "us" },
	{ "us-east-1", "us-east" },
	{ "us-east-2", "us-east" },
	{ "us-west", "us" },
	{ "us-west-1", "us-west" },
	{ "us-west-2", "us-west" },
	{ "us-central", "us" },
	{ "us-central-1", "us-central" },
	{ "eu", "any" },
	{ "eu-west", "eu" },
	{ "eu-west-1", "eu-west" },
	{ "eu-central", "eu" },
	{ "eu-central-1", "eu-central" },
	{ "ap", "any" },
	{ "ap-southeast", "ap" },
	{ "ap-southeast-1", "ap-southeast" },
};

static const struct region *find(const char *name)
{
	if (name == NULL)
		return NULL;
	for (size_t i = 0; i < ARRAY_LEN(tree); i++)
		if (strcmp(tree[i].name, name) == 0)
			return &tree[i];
	return NULL;
}

bool region_known(const char *name)
{
	return find(name) != NULL;
}

bool region_contains(const char *outer, const char *inner)
{
	if (find(outer) == NULL)
		return false;
	for (const struct region *r = find(inner); r != NULL; r = find(r->parent))
		if (strcmp(r->name, outer) == 0)
			return true;
	return false;
}

const char *region_parent(const char *name)
{
	const struct region *r = find(name);
	return r != NULL ? r->parent : NULL;
}
