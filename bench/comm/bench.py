#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of 104.9 MB of floats between two processes of this machine, by shared memory and over
TCP. Prints one JSON object a line (docs/performance.md).

usage: bench.py [--gloo PROGRAM] [--openmpi PROGRAM] [--rounds N]

Peers: Gloo is called as PROGRAM RANK RANKS FOLDER FLOATS ROUNDS halving, in each rank; Open MPI as
mpirun PROGRAM FLOATS ROUNDS. Both print "-> X GB/s" and are measured in turn with ours. Without
them, the figures of docs/performance.md stand beside ours, and the peer is called recorded."""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TRAINYARD_BUILD", HERE.parent.parent / "build"))
RANKS, FLOATS, TURNS = 2, 26_214_400, 3
RECORDED = {"shm": ("Open MPI 4.1.4, recorded", 8.2), "tcp": ("Gloo, recorded", 1.35)}


def ours(transport, rounds):
    out = subprocess.run([BUILD / "bench/comm/bench-comm", str(RANKS), str(FLOATS), str(rounds),
                          transport], check=True, capture_output=True, text=True).stdout
    return FLOATS * 4e-6 / float(out.split()[0])


def rate(text):
    return float(re.search(r"-> ([\d.]+) GB/s", text)[1])


def gloo(program, rounds):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([program, str(rank), str(RANKS), folder, str(FLOATS), str(rounds),
                                   "halving"], stdout=subprocess.PIPE, text=True)
                 for rank in range(RANKS)]
        return rate("".join(rank.communicate()[0] for rank in ranks))


def openmpi(program, rounds):
    return rate(subprocess.run(["mpirun", "--allow-run-as-root", "-np", str(RANKS), "--bind-to",
                                "none", program, str(FLOATS), str(rounds)], check=True,
                               capture_output=True, text=True).stdout)


def case(transport, name, peer, rounds):
    """Ours and the peer in turns: what else the machine does falls on both."""
    mine, theirs = [], []
    for _ in range(TURNS):
        mine.append(ours(transport, rounds))
        if peer:
            theirs.append(peer())
    peer_name, peer_value = (name, statistics.median(theirs)) if peer else RECORDED[transport]
    value = statistics.median(mine)
    print(json.dumps({
        "case": f"all-reduce-105mb-2-{transport}", "metric": "bytes / time", "unit": "GB/s",
        "value": value, "peer": peer_name, "peer_value": peer_value, "ratio": value / peer_value,
        "conditions": f"{RANKS} processes on this machine, median of {TURNS} turns of the median "
                      f"of {rounds} rounds, {os.cpu_count()} cores"}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gloo")
    parser.add_argument("--openmpi")
    parser.add_argument("--rounds", type=int, default=15)
    o = parser.parse_args()
    case("shm", "Open MPI", o.openmpi and (lambda: openmpi(o.openmpi, o.rounds)), o.rounds)
    case("tcp", "Gloo", o.gloo and (lambda: gloo(o.gloo, o.rounds)), o.rounds)


main()
