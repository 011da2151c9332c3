#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The engine beside PyTorch: each case of bench/engine/cases, in turns, a process a turn, on data
made up here. Prints one JSON object a line (docs/performance.md). Without PyTorch the peer's
columns stay empty. A figure is the median over the rounds of each process's median step.

usage: bench.py [CASE...] [--rounds N] [--threads N] [--ops]"""

import argparse
import array
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TRAINYARD_BUILD", HERE.parent.parent / "build"))
PEERS = HERE.parent / "peers"
# Steps of one process: enough for some seconds.
STEPS = {
    "gpt2-tiny": 60,
    "gpt2-tiny-bf16": 60,
    "dlrm": 150,
    "gpt2-124m-t64": 9,
    "gpt2-124m-t256": 5,
    "gpt2-124m-t256-bf16": 7,
    "resnet-18": 9,
    "resnet-18-bf16": 15,
}
# The shapes of the products of one GPT-2 124M layer and of its head: K, N, and how many there are.
ROWS = 1024  # of a micro-batch: 4 x 256 tokens
GEMM_SHAPES = {(768, 2304): 12, (768, 768): 12, (768, 3072): 12, (3072, 768): 12, (768, 50304): 1}


def make_tokens(folder, config, spec):
    vocabulary = config.get("vocab_size", 50257)
    count = 1 << 20
    text = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
    path = folder / "tokens.npy"
    values = array.array("H", (random.randrange(vocabulary) for _ in range(count)))
    path.write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + values.tobytes()
    )
    return [path]


def make_images(folder, config, spec):
    count, shape = 1024, (config["in_height"], config["in_width"], config["in_channels"])
    images, labels = folder / "images.idx", folder / "labels.idx"
    images.write_bytes(
        bytes([0, 0, 8, 4])
        + struct.pack(">4I", count, *shape)
        + random.randbytes(count * shape[0] * shape[1] * shape[2])
    )
    labels.write_bytes(
        bytes([0, 0, 8, 1])
        + struct.pack(">I", count)
        + bytes(i % config["n_classes"] for i in range(count))
    )
    return [images, labels]


def make_clicks(folder, config, spec):
    path, names = folder / "clicks.csv", spec["data"]["categorical"]
    with path.open("w") as out:
        out.write(
            ",".join(["label", *(f"d{i}" for i in range(config["dense_features"])), *names]) + "\n"
        )
        for _ in range(4096):
            row = [
                str(random.randrange(2)),
                *(f"{random.gauss(0, 1):.4f}" for _ in range(config["dense_features"])),
            ]
            for rows in config["table_rows"]:
                row.append("|".join(str(random.randrange(rows)) for _ in range(config["lookups"])))
            out.write(",".join(row) + "\n")
    return [path]


MAKERS = {"tokens": make_tokens, "idx": make_images, "csv": make_clicks}


def run(command, what):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench.py: {what}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return json.loads(done.stdout)


def ours(case, files, args, ops=False):
    return run(
        [
            BUILD / "bench/engine/bench-engine",
            HERE / f"cases/{case}.json",
            str(args.threads),
            str(STEPS[case]),
            *(["--ops"] if ops else []),
            *files,
        ],
        case,
    )


def torch(case, args):
    script = f'. "{PEERS}/torch_env.sh"; exec /usr/bin/python3 "$0" "$@"'
    return run(
        [
            "sh",
            "-c",
            script,
            PEERS / "torch_step.py",
            HERE / f"cases/{case}.json",
            str(args.threads),
            str(STEPS[case]),
        ],
        f"{case} in PyTorch",
    )


def have_torch():
    return (
        subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode
        == 0
    )


def emit(case, metric, value, unit, peer=None, peer_value=None, inverse=False, conditions=""):
    ratio = None
    if peer_value:
        ratio = peer_value / value if inverse else value / peer_value
    print(
        json.dumps(
            {
                "case": case,
                "metric": metric,
                "value": round(value, 4),
                "unit": unit,
                "peer": peer,
                "peer_value": round(peer_value, 4) if peer_value else None,
                "ratio": round(ratio, 3) if ratio else None,
                "conditions": conditions,
            }
        ),
        flush=True,
    )


def gemm_rate(precision, args):
    """GFLOP/s of the products of one GPT-2 124M step alone, at their shapes and in their three
    forms: of each the faster of our own and oneDNN's with packed weights, weighted by their time.
    """
    kind = {"fp32": "f32", "bf16": "bf16"}[precision]
    shapes = {f"{ROWS}x{n}x{k}": (k * n, count) for (k, n), count in GEMM_SHAPES.items()}
    command = [BUILD / "bench/engine/bench-gemm", "--threads", str(args.threads), "--type", kind]
    done = subprocess.run([*command, *shapes], capture_output=True, text=True, check=True)
    work = seconds = 0.0
    for line in done.stdout.splitlines():
        row = json.loads(line)
        size, count = shapes[row["case"].split()[1]]
        work += count * size
        seconds += count * size / max(row["value"], row["peer_value"] or 0)
    return work / seconds


def compare(case, args, peer, files):
    """Both sides in turns: the rows of each process."""
    mine, theirs = [], []
    for _ in range(args.rounds):
        mine.append(ours(case, files, args))
        if peer:
            theirs.append(torch(case, args))
    return mine, theirs


def middle(rows, key):
    return statistics.median(row[key] for row in rows) if rows else None


def measure(case, args, peer, folder):
    spec = json.loads((HERE / f"cases/{case}.json").read_text())
    config = spec["model"].get("config", {})
    random.seed(1)
    files = MAKERS[spec["data"]["format"]](folder, config, spec)
    mine, theirs = compare(case, args, peer, files)
    plan_bytes = mine[0]["plan_bytes"]
    name = f"PyTorch {theirs[0]['version']}, tuned" if theirs else None
    conditions = (
        f"{case}: {args.threads} threads, {spec['precision']}, batch "
        f"{spec['hyperparameters']['batch_size']}, {mine[0]['backend']}; median of {args.rounds} "
        f"processes in turns, each a median of {STEPS[case]} steps"
    )

    def tell(metric, value, unit, **more):
        emit(case, metric, value, unit, conditions=conditions, **more)

    what = "tokens" if spec["data"]["format"] == "tokens" else "samples"
    speed, peak = middle(theirs, "per_second"), middle(theirs, "peak_bytes")
    tell(f"{what} per second", middle(mine, "per_second"), "1/s", peer=name, peer_value=speed)
    step = middle(theirs, "step_ms")
    tell("step", middle(mine, "step_ms"), "ms", peer=name, peer_value=step, inverse=True)
    tell("model FLOPs", middle(mine, "gflops"), "GFLOP/s")
    memory = middle(mine, "peak_bytes")
    tell(
        "peak memory beyond start-up",
        memory / 2**20,
        "MiB",
        peer=name and f"{name} (whole process)",
        peer_value=peak and peak / 2**20,
    )
    tell("peak memory over the plan's", memory / plan_bytes, "1")
    if case.startswith("gpt2-124m-t256"):
        rate = gemm_rate(spec["precision"], args)
        tell("share of the products' own rate", middle(mine, "gflops") / rate, "1")
    if args.ops:
        spent = ours(case, files, args, ops=True)["ops_ms"]
        for kind, ms in sorted(spent.items(), key=lambda item: -item[1]):
            tell(kind, ms, "ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*STEPS, []], metavar="CASE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--ops", action="store_true", help="also the time of each kind of operation"
    )
    args = parser.parse_args()
    peer = have_torch()
    if not peer:
        print("bench.py: python3-torch is not installed: no peer", file=sys.stderr)
    for case in args.cases or STEPS:
        with tempfile.TemporaryDirectory() as folder:
            measure(case, args, peer, Path(folder))


if __name__ == "__main__":
    main()
