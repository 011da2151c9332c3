#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_pg.sh PROGRAM [ARGS]: starts a private throwaway PostgreSQL, runs PROGRAM with its address in
# TRAINYARD_TEST_DB_URL (and its folder in TRAINYARD_TEST_DB_DIR), stops it, and exits with
# PROGRAM's code.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
# A unix socket's path holds 107 bytes: not below a build folder of unknown depth.
dir=$(mktemp -d "${TMPDIR:-/tmp}/trainyard-pg.XXXXXX")

finish() {
	"$here/pg_cluster.sh" stop "$dir" || true
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$here/pg_cluster.sh" start "$dir"
TRAINYARD_TEST_DB_URL=$("$here/pg_cluster.sh" url "$dir")
TRAINYARD_TEST_DB_DIR=$dir
TRAINYARD_TEST_PG_CLUSTER=$here/pg_cluster.sh
export TRAINYARD_TEST_DB_URL TRAINYARD_TEST_DB_DIR TRAINYARD_TEST_PG_CLUSTER

code=0
"$@" || code=$?
exit "$code"
