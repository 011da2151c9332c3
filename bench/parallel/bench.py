#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several ranks on this machine beside one rank with as many threads: the same job, the same batch.
Prints one JSON object a line (docs/performance.md): tokens a second of N ranks of one thread, the
peer is one rank of N threads.

usage: bench.py [CASE...] [--ranks N] [--rounds N] [--steps N]

All-reduce by itself is `./run bench comm`, clusters that are not here `./run bench scale`."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TRAINYARD_BUILD", HERE.parent.parent / "build"))
TRAINER = BUILD / "workers/trainer/trainyard-trainer"
SKIPPED = 2  # steps of each run that are not counted: the first touches of memory

# name: model, sequence length, batch, micro-batch of each rank, precision, ZeRO stage, and the axis
# of the ranks where it is not data
GPT2_124M = {"family": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024,
             "vocab_size": 50257}
TINY = {"family": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 256,
        "vocab_size": 256}
CASES = {
    "gpt2-tiny": (TINY, 128, 8, 4, "fp32", 0),
    "gpt2-tiny-zero1": (TINY, 128, 8, 4, "fp32", 1),
    "gpt2-tiny-zero2": (TINY, 128, 8, 4, "fp32", 2),
    "gpt2-tiny-zero3": (TINY, 128, 8, 4, "fp32", 3),
    "gpt2-124m-t256": (GPT2_124M, 256, 4, 2, "fp32", 0),
    "gpt2-tiny-tensor": (TINY, 128, 8, 8, "fp32", 0, "tensor"),
    "gpt2-tiny-pipeline": (TINY, 128, 8, 1, "fp32", 0, "pipeline"),
    "gpt2-124m-t256-tensor": (GPT2_124M, 256, 4, 4, "fp32", 0, "tensor"),
    "gpt2-124m-t256-pipeline": (GPT2_124M, 256, 8, 1, "fp32", 0, "pipeline"),
    "gpt2-124m-t256-accumulate": (GPT2_124M, 256, 16, 2, "fp32", 0),
    "gpt2-124m-t256-zero1": (GPT2_124M, 256, 4, 2, "fp32", 1),
    "gpt2-124m-t256-bf16": (GPT2_124M, 256, 4, 2, "bf16", 0),
}


def spec_of(case, ranks, steps):
    model, length, batch, micro, precision, zero, *axis = CASES[case]
    mesh = {"data": 1, "tensor": 1, "pipeline": 1}
    mesh[axis[0] if axis else "data"] = ranks
    return {
        "task": "language_model", "model": {"config": model}, "training_file": "file_text",
        "data": {"format": "text", "tokenizer": "bytes", "sequence_length": length},
        "hyperparameters": {"max_steps": steps, "batch_size": batch, "learning_rate": 3e-4,
                            "micro_batch_size": micro if ranks > 1 else "auto"},
        "precision": precision,
        "parallelism": {**mesh, "zero_stage": zero if ranks > 1 else 0},
        "resources": {"instance_type": "cpu-dev", "count": ranks},
    }


def tokens_per_second(case, ranks, threads, steps, folder):
    """The median over the steps of one run."""
    spec = Path(folder, "spec.json")
    spec.write_text(json.dumps(spec_of(case, ranks, steps)))
    command = [TRAINER, "run", spec, "--data", f"training_file={folder}/text",
               "--threads", str(threads), "--out", f"{folder}/out-{ranks}"]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = map(json.loads, done.stdout.splitlines())
    rates = [line["tokens_per_second"] for line in told if line["t"] == "step"]
    return statistics.median(rates[SKIPPED:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", nargs="*", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="0: 40 of a tiny model, 8 of others")
    options = parser.parse_args()
    for case in options.case or CASES:
        steps = options.steps or (40 if case.startswith("gpt2-tiny") else 8)
        many, one = [], []
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "text").write_bytes(b"All work and no play makes a long text. " * 20000)
            for _ in range(options.rounds):
                many.append(tokens_per_second(case, options.ranks, 1, steps, folder))
                one.append(tokens_per_second(case, 1, options.ranks, steps, folder))
        print(json.dumps({
            "case": case, "metric": f"{options.ranks} ranks x 1 thread", "unit": "tokens/s",
            "value": statistics.median(many), "peer": f"1 rank x {options.ranks} threads",
            "peer_value": statistics.median(one),
            "ratio": statistics.median(m / o for m, o in zip(many, one)),
            "conditions": f"{os.cpu_count()} cores, rounds in turns: {options.rounds}, "
                          "medians of steps",
        }), flush=True)


main()
