#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How many GET /v1/jobs/{id} a second a yard answers, with wrk and 32 connections, beside
libmicrohttpd itself (bench/peers) with the same body in the same run. One JSON object a line.

Called by ./run bench api, with the programs of TRAINYARD_BUILD."""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
from yards import BUILD, Yard, gpt2_job, succeeded, words  # pylint: disable=wrong-import-position

CONNECTIONS = 32
THREADS = 2
WARM_S, MEASURE_S = 2, 10
UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def wrk(url, key=None):
    """(requests per second, p50 ms, p99 ms, errors) of one measured run after a warm one."""
    headers = ["-H", f"Authorization: Bearer {key}"] if key else []
    for seconds in (WARM_S, MEASURE_S):
        out = subprocess.run(
            ["wrk", "-t", str(THREADS), "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--latency",
             *headers, url], text=True, capture_output=True, check=True).stdout
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])
    p50, p99 = (float(value) * UNITS_MS[unit] for value, unit in (
        re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)", out).groups() for percent in (50, 99)))
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", out)
    errors = (int(refused[1]) if refused else 0) + (
        sum(map(int, broken.groups())) if broken else 0)
    return rate, p50, p99, errors


def peer(bytes_):
    with subprocess.Popen([BUILD / "bench/mhd_hello", str(os.cpu_count()), str(bytes_)], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hello:
        try:
            return wrk(f"http://127.0.0.1:{hello.stdout.readline().strip()}/")
        finally:
            hello.stdin.close()


def main():
    yard = Yard(devices=1, environment={"TRAINYARD_RATE_PER_S": "0"})
    try:
        client, _ = yard.tenant()
        text = client.upload(words(5000), "words.txt")["id"]
        job = succeeded(client, client.post("/v1/jobs", gpt2_job(text, 20)))
        path = f"/v1/jobs/{job['id']}"
        body = client.raw("GET", path)[2]
        ours = wrk(yard.url + path, client.key)
        theirs = peer(len(body))
    finally:
        yard.remove()
    conditions = (f"wrk -t{THREADS} -c{CONNECTIONS}, {MEASURE_S} s after {WARM_S} s warm-up, "
                  f"{len(body)}-byte body, {os.cpu_count()} cores shared by wrk, server and "
                  "PostgreSQL; the peer answers from memory: no key, no database")
    for metric, unit, index in (("throughput", "requests/s", 0), ("latency p50", "ms", 1),
                                ("latency p99", "ms", 2), ("errors", "requests", 3)):
        print(json.dumps({
            "case": "GET /v1/jobs/{id}", "metric": metric, "value": ours[index], "unit": unit,
            "peer": "libmicrohttpd hello", "peer_value": theirs[index],
            "ratio": round(ours[index] / theirs[index], 4) if theirs[index] else None,
            "conditions": conditions}))
    return 1 if ours[3] else 0


if __name__ == "__main__":
    sys.exit(main())
