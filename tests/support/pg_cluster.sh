#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A private PostgreSQL cluster for tests: `pg_cluster.sh start DIR`, `stop DIR [MODE]`,
# `restart DIR [MODE]`, `url DIR`.
# Listens on a unix socket inside DIR only; as root, runs as user postgres. It promises nothing
# about durability (fsync is off) and must not be used for anything but tests.
set -eu

action=${1:?usage: pg_cluster.sh start|stop|restart|url DIR}
dir=${2:?usage: pg_cluster.sh start|stop|restart|url DIR}

find_bin() {
	for candidate in "${TRAINYARD_PG_BIN:-}" "$(pg_config --bindir 2>/dev/null || true)" \
		/usr/lib/postgresql/*/bin; do
		if [ -n "$candidate" ] && [ -x "$candidate/postgres" ] && [ -x "$candidate/initdb" ]; then
			echo "$candidate"
			return
		fi
	done
	echo "pg_cluster.sh: no PostgreSQL server found (package postgresql)" >&2
	exit 1
}

as_postgres() {
	if [ "$(id -u)" = 0 ]; then
		runuser -u postgres -- "$@"
	else
		"$@"
	fi
}

start() {
	bin=$(find_bin)
	mkdir -p "$dir"
	if [ "$(id -u)" = 0 ]; then
		chown postgres "$dir"
	fi
	(
		cd "$dir"
		as_postgres "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 \
			--no-sync --no-instructions >"$dir/initdb.log" 2>&1 || {
			cat "$dir/initdb.log" >&2
			exit 1
		}
		cat >>"$dir/data/postgresql.conf" <<-EOF
			listen_addresses = ''
			unix_socket_directories = '$dir'
			fsync = off
			full_page_writes = off
			shared_buffers = 32MB
			max_connections = 60
			dynamic_shared_memory_type = mmap
			log_min_messages = warning
		EOF
		as_postgres "$bin/pg_ctl" -D "$dir/data" -l "$dir/postgres.log" -t 60 -w start \
			>/dev/null 2>&1 || {
			cat "$dir/postgres.log" >&2
			exit 1
		}
	)
}

restart() {
	bin=$(find_bin)
	(
		cd "$dir"
		as_postgres "$bin/pg_ctl" -D "$dir/data" -l "$dir/postgres.log" -m "$1" -t 60 -w restart \
			>/dev/null 2>&1
	)
}

stop() {
	bin=$(find_bin)
	(
		cd "$dir"
		as_postgres "$bin/pg_ctl" -D "$dir/data" -m "$1" -t 60 -w stop >/dev/null 2>&1
	)
}

case $action in
start) start ;;
stop) stop "${3:-immediate}" ;;
restart) restart "${3:-immediate}" ;;
url) echo "host=$dir port=5432 user=postgres dbname=postgres" ;;
*)
	echo "pg_cluster.sh: unknown action $action" >&2
	exit 2
	;;
esac
