# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Raises and lowers one yard in one folder: a private PostgreSQL cluster (unix socket only), a
# server, agents. Sourced by ./run only. A started process is known by its pid and start time, so
# that lowering a yard never touches another process, however long ago the pid was written.

readonly PG_BIN=/usr/lib/postgresql/15/bin
readonly PG_USER=trainyard
readonly SOCKET_PATH_MAX=107 # bytes of a unix socket's path, sun_path less its end
readonly READY_TRIES=300 READY_PAUSE=0.1 STOP_TRIES=200 PORT_TRIES=5

# ------------------------------------------------------------------ processes

# Sets START: the process' start in clock ticks since boot, or nothing when it is gone. A zombie has
# ended; only its parent has not looked yet. (No subshell: this is asked often.)
look_at() { # PID
	local line fields
	START=
	{ read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
	read -ra fields <<<"${line##*) }"
	[ "${fields[0]}" = Z ] || START=${fields[19]}
}

pid_of() { # NAME: the pid of that part of the yard, when it is alive
	local pid start
	{ read -r pid start <"$DIR/pid/$1"; } 2>/dev/null || return 1
	look_at "$pid"
	[ "$START" = "$start" ] || return 1
	printf '%s' "$pid"
}

launch() { # NAME PROGRAM [ARG...]: detached, its output to DIR/log/NAME.log
	local name=$1 pid
	shift
	setsid "$@" </dev/null >>"$DIR/log/$name.log" 2>&1 &
	pid=$!
	look_at "$pid"
	printf '%s %s\n' "$pid" "$START" >"$DIR/pid/$name"
}

stop_pid() { # PID SIGNAL: sends it, waits, and insists in the end
	local tries=0 start
	look_at "$1"
	start=$START
	[ -n "$start" ] || return 0
	kill "-$2" "$1" 2>/dev/null || return 0
	while look_at "$1" && [ "$START" = "$start" ]; do
		tries=$((tries + 1))
		[ "$tries" != "$STOP_TRIES" ] || kill -KILL "$1" 2>/dev/null || true
		[ "$tries" -lt $((2 * STOP_TRIES)) ] || die "process $1 does not end"
		sleep 0.05
	done
}

stop_part() { # NAME
	local pid
	if pid=$(pid_of "$1"); then
		stop_pid "$pid" TERM
	fi
	rm -f "$DIR/pid/$1"
}

# Trainers outlive their agent on purpose; each names its attempt's folder, which is inside DIR.
# Without an agent their goodbye would reach nobody: they are killed, and `up` resumes their jobs.
stop_trainers() {
	local pid command
	for pid in $(pgrep -f -- "--dir=$DIR/agent-" || true); do
		command=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline") || continue
		case $command in
		*trainyard-trainer*"--dir=$DIR/agent-"*) stop_pid "$pid" KILL ;;
		esac
	done
}

free_port() {
	"$PYTHON" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# ------------------------------------------------------------------ PostgreSQL

as_postgres() {
	if [ "$(id -u)" = 0 ]; then
		(cd / && runuser -u postgres -- "$@")
	else
		"$@"
	fi
}

# The cluster lies in DIR/pg. Where the postgres user cannot reach DIR (root's home, say), DIR/pg
# is a link to a folder of its own under /var/tmp.
pg_place() {
	[ ! -e "$DIR/pg" ] || return 0
	mkdir "$DIR/pg"
	if [ "$(id -u)" = 0 ]; then
		chown postgres: "$DIR/pg"
		if ! as_postgres test -w "$DIR/pg"; then
			rmdir "$DIR/pg"
			local place
			place=$(mktemp -d /var/tmp/trainyard-pg-XXXXXX)
			chown postgres: "$place"
			ln -s "$place" "$DIR/pg"
		fi
	fi
	chmod 700 "$DIR/pg/."
}

pg_start() {
	local data sockets
	data=$(readlink -f "$DIR/pg")/data
	if [ ! -f "$data/PG_VERSION" ]; then
		say "creating a PostgreSQL cluster in $data"
		as_postgres "$PG_BIN/initdb" -D "$data" -U "$PG_USER" --auth-local=trust --auth-host=reject \
			-E UTF8 --locale=C.UTF-8 >"$DIR/log/initdb.log" 2>&1 || die "initdb failed: $DIR/log/initdb.log"
		sockets=$(readlink -f "$DIR/pg")
		if [ $((${#sockets} + 16)) -gt $SOCKET_PATH_MAX ]; then
			sockets=$(as_postgres mktemp -d /tmp/trainyard-XXXXXX)
		fi
		printf '%s\n' "$sockets" >"$DIR/sockets"
		as_postgres tee -a "$data/postgresql.conf" >/dev/null <<-CONF
			listen_addresses = ''
			unix_socket_directories = '$sockets'
			unix_socket_permissions = 0700
			max_connections = 60
			shared_buffers = 64MB
			timezone = 'UTC'
			log_timezone = 'UTC'
			log_min_duration_statement = 1000
			jit = off
		CONF
	fi
	SOCKETS=$(cat "$DIR/sockets")
	[ -d "$SOCKETS" ] || as_postgres mkdir -m 700 "$SOCKETS" # /tmp was swept
	if ! as_postgres "$PG_BIN/pg_ctl" -D "$data" status >/dev/null 2>&1; then
		as_postgres "$PG_BIN/pg_ctl" -D "$data" -l "$data/server.log" -s -w -t 60 start </dev/null \
			>>"$DIR/log/pg_ctl.log" 2>&1 || die "PostgreSQL did not start: $data/server.log"
	fi
	if ! psql_yard -d postgres -Atc "select 1 from pg_database where datname = 'trainyard'" | grep -q 1; then
		psql_yard -d postgres -qc 'create database trainyard'
	fi
}

psql_yard() { as_postgres "$PG_BIN/psql" -X -h "$SOCKETS" -U "$PG_USER" "$@"; }

# ------------------------------------------------------------------ server and agents

get() { # KEY PATH: the body of a GET on the API
	curl -sS --fail-with-body --max-time 10 -H "Authorization: Bearer $1" "http://127.0.0.1:$PORT$2"
}

post() { # KEY PATH JSON
	curl -sS --fail-with-body --max-time 10 -H "Authorization: Bearer $1" \
		-H 'Content-Type: application/json' -d "$3" "http://127.0.0.1:$PORT$2"
}

field() { # NAME: that member of the JSON object on stdin
	"$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# Ready, and ours: on a port that another yard holds, that one would answer, but not to our key.
ready() {
	curl -s -o /dev/null --max-time 2 --fail "http://127.0.0.1:$PORT/readyz" &&
		get "$(cat "$DIR/keys/operator")" '/v1/devices?limit=1' >/dev/null
}

wait_until() { # WHAT LOG CONDITION...: bounded
	local what=$1 log=$2 tries=0
	shift 2
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -ge "$READY_TRIES" ]; then
			tail -n 20 "$log" >&2 || true
			die "$what is not ready; its log: $log"
		fi
		[ $((tries % 50)) != 0 ] || say "waiting for $what"
		sleep "$READY_PAUSE"
	done
}

server_decided() { ready || ! pid_of server >/dev/null; }

server_start() {
	local try
	! pid_of server >/dev/null || return 0
	for ((try = 1; try <= PORT_TRIES; try++)); do
		PORT=$(cat "$DIR/port" 2>/dev/null || printf '%s' "$WANT_PORT")
		[ "$PORT" != 0 ] || PORT=$(free_port)
		AGENT_PORT=$(cat "$DIR/agent-port" 2>/dev/null || free_port)
		launch server env TRAINYARD_DB_URL="$DB" TRAINYARD_API_PORT="$PORT" \
			TRAINYARD_AGENT_PORT="$AGENT_PORT" TRAINYARD_DATA_DIR="$DIR/blobs" \
			TRAINYARD_MIGRATIONS_DIR="$ROOT/migrations" \
			"$BUILD/server/trainyard-server" serve
		wait_until "the server" "$DIR/log/server.log" server_decided
		if pid_of server >/dev/null; then
			printf '%s\n' "$PORT" >"$DIR/port"
			printf '%s\n' "$AGENT_PORT" >"$DIR/agent-port"
			return 0
		fi
		# It ended: a port was taken between choosing and binding. A wanted port is tried once.
		if [ "$WANT_PORT" != 0 ] || [ -f "$DIR/port" ]; then break; fi
	done
	tail -n 5 "$DIR/log/server.log" >&2
	die "the server does not start (is port $PORT taken?); its log: $DIR/log/server.log"
}

key_for() { # NAME ARGS...: makes a credential once and keeps it in DIR/keys/NAME
	local name=$1
	shift
	[ ! -s "$DIR/keys/$name" ] || return 0
	TRAINYARD_DB_URL="$DB" "$BUILD/server/trainyard-server" create-key --name="$name" "$@" \
		2>>"$DIR/log/setup.log" >"$DIR/keys/$name" || die "create-key failed: $DIR/log/setup.log"
}

agent_start() { # N
	local name="agent-$1"
	! pid_of "$name" >/dev/null || return 0
	[ -s "$DIR/keys/$name" ] || {
		key_for "$name" --role=agent --region="$REGION"
		printf '%s %s\n' "$DEVICES" "$REGION" >"$DIR/$name.shape"
	}
	local devices region
	read -r devices region <"$DIR/$name.shape"
	mkdir -p "$DIR/$name"
	launch "$name" env TRAINYARD_SERVER_URL="http://127.0.0.1:$AGENT_PORT" \
		TRAINYARD_AGENT_KEY="$(cat "$DIR/keys/$name")" TRAINYARD_AGENT_NAME="$name" \
		TRAINYARD_REGION="$region" TRAINYARD_INSTANCE_TYPE=cpu-dev TRAINYARD_DEVICES="$devices" \
		TRAINYARD_TOKENIZER_DIR="$ROOT/.cache/tokenizers" \
		TRAINYARD_WORK_DIR="$DIR/$name" \
		TRAINYARD_TRAINER="${TRAINYARD_TRAINER:-$BUILD/workers/trainer/trainyard-trainer}" \
		"$BUILD/workers/agent/trainyard-agent"
}

devices_listed() { # COUNT
	get "$(cat "$DIR/keys/operator")" '/v1/devices?limit=100' |
		"$PYTHON" -c 'import json, sys
sys.exit(len(json.load(sys.stdin)["data"]) < int(sys.argv[1]))' "$1"
}

tenant_make() {
	[ ! -s "$DIR/keys/owner" ] || return 0
	local operator tenant
	operator=$(cat "$DIR/keys/operator")
	tenant=$(post "$operator" /v1/tenants '{"name": "demo", "residency": ["any"]}' | field id)
	printf '%s\n' "$tenant" >"$DIR/tenant"
	post "$operator" "/v1/tenants/$tenant/api-keys" '{"name": "owner", "role": "owner"}' |
		field key >"$DIR/keys/owner"
}

env_write() {
	cat >"$DIR/env.new" <<-ENV
		export TRAINYARD_URL=http://127.0.0.1:$PORT
		export TRAINYARD_AGENT_URL=http://127.0.0.1:$AGENT_PORT
		export TRAINYARD_API_KEY=$(cat "$DIR/keys/owner")
		export TRAINYARD_OPERATOR_KEY=$(cat "$DIR/keys/operator")
		export TRAINYARD_TENANT=$(cat "$DIR/tenant")
		export TRAINYARD_DB_URL='$DB'
	ENV
	mv "$DIR/env.new" "$DIR/env"
}

# ------------------------------------------------------------------ the two commands

yard_up() {
	local dir=$ROOT/var agents='' n total=0
	WANT_PORT=8080 DEVICES=2 REGION=us-east
	while [ $# -gt 0 ]; do
		[ $# -ge 2 ] || die "up: $1 needs a value"
		case $1 in
		--dir) dir=$2 ;;
		--port) WANT_PORT=$2 ;;
		--agents) agents=$2 ;;
		--devices) DEVICES=$2 ;;
		--region) REGION=$2 ;;
		*) die "up: unknown argument $1" ;;
		esac
		shift 2
	done
	[[ "$WANT_PORT${agents:-1}$DEVICES" =~ ^[0-9]+$ ]] || die "up: ports and counts are numbers"
	[ -n "${TRAINYARD_BUILT:-}" ] || cmd_build
	mkdir -p "$dir"
	DIR=$(cd "$dir" && pwd -P)
	umask 077
	mkdir -p "$DIR/log" "$DIR/pid" "$DIR/keys" "$DIR/blobs"
	exec 9>"$DIR/lock"
	flock -w 120 9 || die "another ./run works on $DIR"

	[ -n "$agents" ] || agents=$(cat "$DIR/agents" 2>/dev/null || echo 1)
	n=$(cat "$DIR/agents" 2>/dev/null || echo 0)
	[ "$agents" -ge "$n" ] || agents=$n
	pg_place
	pg_start 9>&-
	DB="host=$SOCKETS user=$PG_USER dbname=trainyard"
	TRAINYARD_DB_URL="$DB" TRAINYARD_MIGRATIONS_DIR="$ROOT/migrations" \
		"$BUILD/server/trainyard-server" migrate >>"$DIR/log/setup.log" 2>&1 ||
		die "migrations failed: $DIR/log/setup.log"
	key_for operator --role=operator
	server_start 9>&-
	PORT=$(cat "$DIR/port")
	AGENT_PORT=$(cat "$DIR/agent-port")
	tenant_make
	for ((n = 1; n <= agents; n++)); do
		agent_start "$n" 9>&-
		total=$((total + $(cut -d' ' -f1 "$DIR/agent-$n.shape")))
	done
	printf '%s\n' "$agents" >"$DIR/agents"
	env_write
	wait_until "the yard's $total devices" "$DIR/log/agent-1.log" devices_listed "$total"
	say "the yard is up: http://127.0.0.1:$PORT, $agents agent(s), $total device(s); . $DIR/env"
}

yard_down() {
	local dir=$ROOT/var part data
	if [ "${1:-}" = --dir ] && [ -n "${2:-}" ]; then
		dir=$2
	elif [ $# -gt 0 ]; then
		die "down: unknown argument $1"
	fi
	if [ ! -d "$dir/pid" ]; then
		say "there is no yard in $dir"
		return 0
	fi
	DIR=$(cd "$dir" && pwd -P)
	for part in "$DIR"/pid/agent-*; do
		[ ! -e "$part" ] || stop_part "$(basename "$part")"
	done
	stop_trainers
	stop_part server
	data=$(readlink -f "$DIR/pg")/data
	if [ -f "$data/postmaster.pid" ]; then
		as_postgres "$PG_BIN/pg_ctl" -D "$data" -s -w -t 60 -m fast stop >>"$DIR/log/pg_ctl.log" 2>&1 ||
			as_postgres "$PG_BIN/pg_ctl" -D "$data" -s -w -t 60 -m immediate stop || true
	fi
	say "the yard in $DIR is down"
}
