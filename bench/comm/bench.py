#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of 104.9 MB of floats between two processes, over TCP on this machine, beside Gloo's
own all-reduce where its program is given. Prints one JSON object a line (docs/performance.md).

usage: bench.py [--peer PROGRAM] [--rounds N]

The peer is called as PROGRAM RANK RANKS FOLDER FLOATS ROUNDS halving and prints "-> X GB/s"."""

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


def ours(rounds):
    out = subprocess.run([BUILD / "bench/comm/bench-comm", str(RANKS), str(FLOATS), str(rounds)],
                         check=True, capture_output=True, text=True).stdout
    return FLOATS * 4e-6 / float(out.split()[0])


def theirs(program, rounds):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([program, str(rank), str(RANKS), folder, str(FLOATS), str(rounds),
                                   "halving"], stdout=subprocess.PIPE, text=True)
                 for rank in range(RANKS)]
        text = "".join(rank.communicate()[0] for rank in ranks)
    return float(re.search(r"-> ([\d.]+) GB/s", text)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    mine, peer = [], []
    for _ in range(TURNS):
        mine.append(ours(options.rounds))
        if options.peer:
            peer.append(theirs(options.peer, options.rounds))
    result = {"case": "all-reduce-105mb-2", "metric": "bytes / time", "unit": "GB/s",
              "value": statistics.median(mine)}
    if peer:
        result |= {"peer": "gloo", "peer_value": statistics.median(peer),
                   "ratio": statistics.median(mine) / statistics.median(peer)}
    result["conditions"] = (f"{RANKS} processes, TCP on 127.0.0.1, median of {TURNS} turns of the "
                            f"median of {options.rounds} rounds, {os.cpu_count()} cores")
    print(json.dumps(result))


main()
