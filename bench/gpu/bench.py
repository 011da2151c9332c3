#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures one GPU within a budget: its ceilings through our backend, then each case's training
step beside PyTorch's. Prints one JSON object a line (docs/performance.md); progress goes to
standard error. bench/gpu/run.sh calls it with a build that is ready.

usage: bench.py --build FOLDER [--device cuda|cpu] [--quick] [--seconds N] [--no-peer] [CASE...]"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import machine  # noqa: E402

PEER = HERE.parent / "peers" / "torch_gpu.py"
CEILING_SECONDS, CEILING_SHARE, PEER_CEILING_SHARE = 1.5, 30, 20
MFU_CONVENTION = ("model FLOPs (2 per multiply-add of products and convolutions, causal attention "
                  "at half, nothing recomputed) over the card's dense bf16 peak")


def say(text):
    print(f"» {text}", file=sys.stderr, flush=True)


class Budget:
    """Seconds from now on; a process may have its share of them at most."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def share(self, seconds):
        return min(seconds, self.left())


def run(command, seconds):
    """(standard output, None) or (None, why not)."""
    if seconds < 1:
        return None, "no time left of the budget (--seconds)"
    try:
        done = subprocess.run([str(word) for word in command], text=True, capture_output=True,
                              timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None, f"not done within its share of {seconds:.0f} s"
    except OSError as e:
        return None, str(e)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return None, lines[-1]
    return done.stdout, None


class Bench:
    def __init__(self, args):
        self.args, self.budget = args, Budget(args.seconds)
        self.card = machine.card() if args.device == "cuda" else None
        self.peak = self.card["peak_flops"] if self.card else None
        self.gemm_flops = None  # the best product's, measured
        self.peer, self.peer_why = self.find_peer()
        self.failures = 0
        self.threads = 1 if args.quick else os.cpu_count() or 1
        name = self.card["name"] if self.card else "no GPU: the processor"
        self.where = f"{name}" + (f", driver {self.card['driver']}" if self.card else "")
        say(f"{self.where}; PyTorch: {self.peer or self.peer_why}")

    # ------------------------------------------------------------------------------ the peer

    def peer_command(self, *words):
        return [self.args.python, PEER, "--device", self.args.device, *words]

    def find_peer(self):
        if self.args.no_peer:
            return None, "not asked (--no-peer)"
        told, why = run(self.peer_command("version"), self.budget.share(60))
        return (json.loads(told)["version"], None) if told else (None, why)

    def peer_result(self, share, *words):
        """What PyTorch measured; {"note": why} where it did not."""
        if not self.peer:
            return {"note": f"no peer: {self.peer_why}"}
        told, why = run(self.peer_command(*words), self.budget.share(share))
        if why:
            say(f"PyTorch: {why}")
            return {"note": f"PyTorch {self.peer}: {why}"}
        return json.loads(told)

    # ---------------------------------------------------------------------------------- lines

    def emit(self, case, metric, value, unit, peer=None, **more):
        name = peer.get("name") if peer else None
        peer_value = peer.get("value") if peer else None
        if peer and "note" in peer:
            more["peer_note"] = peer["note"]
        conditions = more.pop("conditions", "")
        if more.get("note"):
            conditions = f"{conditions}{'; ' if conditions else ''}{case}: {more['note']}"
        print(json.dumps({
            "case": case, "metric": metric, "value": value, "unit": unit, "peer": name,
            "peer_value": peer_value,
            "ratio": round(value / peer_value, 3) if value and peer_value else None,
            "conditions": conditions, "machine": self.where, **more}), flush=True)

    def ceilings(self):
        quick = self.args.quick
        shapes = cases.QUICK_SHAPES if quick else cases.SHAPES
        say(f"ceilings: {len(shapes)} products, and memory")
        command = [self.args.build / "bench/gpu/bench-ceilings", "--device", self.args.device,
                   "--threads", self.threads, "--seconds",
                   0.05 if quick else CEILING_SECONDS,
                   "--bytes", 1 << 22 if quick else 1 << 31, *shapes]
        told, why = run(command, self.budget.share(CEILING_SHARE))
        if why:
            self.failures += 1
            say(f"ceilings: {why}")
            return self.emit("ceilings", "median", None, "TFLOP/s", note=why)
        theirs = self.peer_result(PEER_CEILING_SHARE, "ceilings", *shapes)
        for line in told.splitlines():
            mine = json.loads(line)
            if mine["unit"] == "TFLOP/s":
                self.gemm_flops = max(self.gemm_flops or 0, mine["value"] * 1e12)
            value = theirs.get("values", {}).get(mine["case"])
            peer = {"name": f"PyTorch {self.peer}", "value": value} if value else theirs
            self.emit(mine["case"], mine["metric"], mine["value"], mine["unit"], peer,
                      conditions=mine["conditions"])
        return None

    def memory(self, mine, watch):
        plan, got = mine["plan_bytes"], mine["memory_bytes"]
        return {"plan_bytes": plan, "memory_bytes": got, "memory_over_plan": round(got / plan, 4),
                "device_bytes": watch.bytes()}

    def case(self, case, folder):
        spec = Path(folder) / f"{case.name}.json"
        spec.write_text(json.dumps(case.spec), encoding="utf-8")
        say(f"{case.title}: ours, at most {case.seconds} s, {self.budget.left():.0f} s left")
        command = [self.args.build / "workers/trainer/trainyard-trainer", "bench", spec,
                   "--device", self.args.device, "--threads", self.threads,
                   "--steps", case.steps, "--warm", 1 if self.args.quick else 3]
        if self.peak:
            command += ["--peak-flops", f"{self.peak:.0f}"]
        with machine.MemoryWatch(self.args.device == "cuda") as watch:
            told, why = run(command, self.budget.share(case.seconds))
        metric = f"{case.unit} per second"
        if why:
            self.failures += 1
            say(f"{case.title}: {why}")
            return self.emit(case.name, metric, None, "1/s", note=why, title=case.title)
        mine = json.loads(told)
        rate = mine["tokens_per_second" if case.unit == "tokens" else "samples_per_second"]
        say(f"{case.title}: {rate:,.0f} {metric}, {mine['step_ms']:.1f} ms a step; PyTorch")
        theirs = self.peer_result(case.peer_seconds, "step", spec, "--steps", case.steps)
        if "per_second" in theirs:
            theirs.update(name=f"PyTorch {self.peer}, {theirs['how']}", value=theirs["per_second"])
        flops = mine["gflop_per_s"] * 1e9
        conditions = (f"{case.title}: bf16, {mine['backend']}, median of {mine['steps']} steps; "
                      f"operations in as many more, each waited for")
        return self.emit(
            case.name, metric, round(rate, 1), "1/s", theirs, conditions=conditions,
            title=case.title, step_ms=mine["step_ms"], tflop_per_s=round(flops / 1e12, 3),
            mfu=mine["mfu"], mfu_convention=MFU_CONVENTION, peak_flops=self.peak,
            share_of_best_product=round(flops / self.gemm_flops, 4) if self.gemm_flops else None,
            peer_step_ms=theirs.get("step_ms"), peer_device_bytes=theirs.get("peak_bytes"),
            open_ms=mine["open_ms"], loss=mine["loss"], operations=mine["operations"],
            **self.memory(mine, watch))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--python", default=sys.executable, help="the one that may have PyTorch")
    parser.add_argument("--quick", action="store_true", help="tiny models: a rehearsal")
    parser.add_argument("--seconds", type=float, default=470, help="for everything (470)")
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    known = cases.QUICK if args.quick else cases.CASES
    wrong = set(args.cases) - {case.name for case in known}
    if wrong:
        parser.error(f"no case {' '.join(sorted(wrong))}: {' '.join(c.name for c in known)}")
    bench = Bench(args)
    bench.ceilings()
    with tempfile.TemporaryDirectory() as folder:
        for case in known:
            if not args.cases or case.name in args.cases:
                bench.case(case, folder)
    bench.emit("fp8", "tokens per second", None, "1/s", note="not built yet")
    say(f"measured, with {bench.failures} failures and {bench.budget.left():.0f} s left")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
