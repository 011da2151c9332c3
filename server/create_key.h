/* SPDX-License-Identifier: Apache-2.0
 * trainyard-server create-key: the first keys of a yard, made by who holds the database. Called by
 * main. */
#pragma once

#include "core/base/err.h"
#include "server/settings.h"

/* argv from the subcommand's options on: --role=, --name=, --tenant=, --region=. Prints the key,
 * and nothing else, on standard output. */
int create_key_run(
	const struct settings_server *s, int argc, char **argv, struct err *err) must_check;
