#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How fast trainyard-billing finalizes invoices of a hundred lines and a thousand segments, proves
conservation of a yard, and verifies what it made, on a private PostgreSQL. One JSON object a line.

Called by ./run bench billing, with the programs of TRAINYARD_BUILD."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TRAINYARD_BUILD", ROOT / "build"))
CLUSTER = ROOT / "tests/support/pg_cluster.sh"
TENANTS, LINES, SEGMENTS_PER_LINE, DEVICES_PER_TENANT = 50, 100, 10, 5
SEGMENTS = TENANTS * LINES * SEGMENTS_PER_LINE

# Each tenant has five devices that trained without a pause: a hundred jobs, ten minutes each.
YARD = f"""
insert into tenants (id, name, residency, created_at)
 select 'tenant_' || t, 'bench', '{{any}}', '2025-01-01Z' from generate_series(1, {TENANTS}) t;
insert into api_keys (id, role, name, secret_hash, redacted, agent_region)
 values ('key_1', 'agent', 'agent', '\\x01', 'ty', 'us-east-1');
insert into agents (id, key_id, name, region, instance_type, boot_id, engine_build)
 values ('agent_1', 'key_1', 'agent', 'us-east-1', 'h100-80gb', 'b', 'e');
create table bench_rows as
 select t, d, s, (t - 1) * {DEVICES_PER_TENANT} + d as device,
  s % {LINES} + 1 as job, '2025-01-01Z'::timestamptz + s * interval '10 min' as at
 from generate_series(1, {TENANTS}) t, generate_series(1, {DEVICES_PER_TENANT}) d,
  generate_series(0, {LINES * SEGMENTS_PER_LINE // DEVICES_PER_TENANT - 1}) s;
insert into devices (id, agent_id, device_index, name, instance_type, region, memory_bytes,
  registered_at, open_since)
 select 'dev_' || device, 'agent_1', device, 'gpu', 'h100-80gb', 'us-east-1', 1, min(at),
  max(at) + interval '10 min' from bench_rows group by device;
insert into jobs (id, tenant_id, name, status, spec, plan, residency, instance_type, device_count)
 select distinct 'job_' || t || '_' || job, 'tenant_' || t, 'bench', 'succeeded', '{{}}'::jsonb,
  '{{}}'::jsonb, '{{any}}'::text[], 'h100-80gb', 1 from bench_rows;
insert into attempts (id, job_id, tenant_id, number, agent_id, token, lease_until, status, outcome,
  stall_ms) select 'att' || substr(id, 4), id, tenant_id, 1, 'agent_1', 't', now(), 'ended',
  'succeeded', 1 from jobs;
insert into attempt_devices (attempt_id, rank, device_id, released)
 select distinct 'att_' || t || '_' || job, d, 'dev_' || device, true from bench_rows;
insert into segments (device_id, period, state, reason, attempt_id, job_id, tenant_id, price_id)
 select 'dev_' || device, tstzrange(at, at + interval '10 min'), 'billed', 'training',
  'att_' || t || '_' || job, 'job_' || t || '_' || job, 'tenant_' || t,
  'price_h100-80gb_2025-01-01' from bench_rows order by at;
drop table bench_rows;
analyze;
"""


def billing(url, *arguments):
    """(seconds, standard output) of one run that must succeed."""
    began = time.monotonic()
    done = subprocess.run([BUILD / "billing/trainyard-billing", *arguments], text=True,
                          capture_output=True, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, "TRAINYARD_DB_URL": url})
    if done.returncode != 0:
        sys.exit(f"trainyard-billing {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return time.monotonic() - began, done.stdout


def psql(url, script):
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-d", url], input=script,
                   text=True, check=True)


def report(case, metric, value, unit):
    print(json.dumps({
        "case": case, "metric": metric, "value": value, "unit": unit, "peer": None,
        "peer_value": None, "ratio": None,
        "conditions": f"{os.cpu_count()} cores; PostgreSQL without fsync on the same machine; "
                      f"{TENANTS} tenants x {LINES} lines x {SEGMENTS_PER_LINE} segments"}),
          flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="trainyard-bench.") as folder:
        os.chmod(folder, 0o755)
        cluster = pathlib.Path(folder) / "pg"
        subprocess.run([CLUSTER, "start", cluster], check=True)
        try:
            url = subprocess.run([CLUSTER, "url", cluster], text=True, capture_output=True,
                                 check=True).stdout.strip()
            for migration in sorted((ROOT / "migrations").glob("*.sql")):
                psql(url, migration.read_text(encoding="utf-8"))
            psql(url, YARD)
            seconds, _ = billing(url, "reconcile")
            report("reconcile", "segments", SEGMENTS / seconds, "1/s")
            seconds, out = billing(url, "close", "--all", "--to=2025-02-01T00:00:00Z", "--json")
            invoices = [json.loads(line) for line in out.splitlines()]
            if [i["line_count"] for i in invoices] != [LINES] * TENANTS:
                sys.exit(f"not {TENANTS} invoices of {LINES} lines: {out}")
            report("close", "invoices", TENANTS / seconds, "1/s")
            report("close", "segments", SEGMENTS / seconds, "1/s")
            seconds, _ = billing(url, "close", "--all", "--to=2025-02-01T00:00:00Z")
            report("close again", "tenants", TENANTS / seconds, "1/s")
            seconds, _ = billing(url, "verify", "--all")
            report("verify", "invoices", TENANTS / seconds, "1/s")
        finally:
            subprocess.run([CLUSTER, "stop", cluster], check=False)


main()
