#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of operations and of the engine on the GPU (tests/gpu), then the small ones again
under compute-sanitizer, and short trainings of tiny models too. Prints one JSON object a line; what
the programs printed goes to the log. bench/gpu/run.sh calls it with a build that is ready.

usage: checks.py --build FOLDER --log FILE [--device cuda|cpu] [--no-tests] [--no-sanitizer]"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402

ROOT = HERE.parent.parent
TESTS = ["elementwise", "norm", "embedding", "loss", "optimizer", "pool", "dlrm_ops", "linear",
         "batchnorm", "conv", "attention", "model_language", "model_vision", "golden"]
SMALL = ["elementwise", "norm", "embedding", "loss", "pool"]
# Arrays of the tests lie in managed memory, where initcheck does not see what the host wrote:
# it looks at trainings, as do the others.
TOOLS = {"memcheck": SMALL, "racecheck": SMALL, "initcheck": []}
TEST_SECONDS, TOOL_SECONDS = 60, 60
SKIPPED, TOOL_FOUND = 77, 99


class Checks:
    def __init__(self, args, log):
        self.args, self.log = args, log
        self.end = time.monotonic() + args.seconds
        self.failed = 0

    def one(self, name, tool, command, seconds):
        """Runs it, prints its line."""
        begin, text, outcome = time.monotonic(), "", None
        seconds = min(seconds, self.end - begin)
        if not Path(command[0]).exists() and not shutil.which(str(command[0])):
            outcome = "not built"
        elif seconds < 1:
            outcome = "no time left"
        else:
            if tool:
                command = ["compute-sanitizer", "--tool", tool, "--error-exitcode",
                           str(TOOL_FOUND), *command]
            outcome, text = self.run(command, seconds)
        wrong = outcome in ("failed", "found errors", "not done in time") or (
            self.args.device == "cuda" and outcome in ("skipped", "not built"))
        self.failed += wrong
        self.tell(name, tool, outcome, time.monotonic() - begin, text, wrong)

    def run(self, command, seconds):
        try:
            done = subprocess.run([str(word) for word in command], text=True, errors="replace",
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=seconds, check=False)
        except subprocess.TimeoutExpired as e:
            told = e.stdout or b""
            return "not done in time", told if isinstance(told, str) else told.decode(
                errors="replace")
        words = {0: "passed", SKIPPED: "skipped", TOOL_FOUND: "found errors"}
        return words.get(done.returncode, "failed"), done.stdout

    def tell(self, name, tool, outcome, seconds, text, wrong):
        self.log.write(f"==== {name}{' under ' + tool if tool else ''}: {outcome}\n{text}\n")
        self.log.flush()
        seed = re.search(r"TRAINYARD_TEST_SEED=(\d+)", text)
        why = [line for line in text.splitlines()
               if re.search(r"skipped: |error|Error|FAILED|hazard|exceeds", line)]
        line = {"check": name, "tool": tool, "outcome": outcome, "seconds": round(seconds, 2),
                "seed": seed[1] if seed else None, "why": why[:5] if outcome != "passed" else []}
        print(json.dumps(line), flush=True)
        print(f"» {name}{' under ' + tool if tool else ''}: {outcome}"
              + (f": {why[0].strip()}" if wrong and why else ""), file=sys.stderr, flush=True)

    def tests(self):
        for name in TESTS:
            program = self.args.build / f"tests/gpu/gpu_{name}_test"
            more = [ROOT / "tests/golden/engine"] if name == "golden" else []
            self.one(f"test {name}", None, [program, *more], TEST_SECONDS)

    def sanitizer(self, folder):
        if not shutil.which("compute-sanitizer"):
            self.tell("compute-sanitizer", None, "not installed", 0, "", False)
            return
        trainer = self.args.build / "workers/trainer/trainyard-trainer"
        for tool, tests in TOOLS.items():
            for name in tests:
                self.one(f"test {name}", tool, [self.args.build / f"tests/gpu/gpu_{name}_test"],
                         TOOL_SECONDS)
            for case in cases.QUICK:
                spec = Path(folder) / f"{case.name}.json"
                spec.write_text(json.dumps(case.spec), encoding="utf-8")
                self.one(f"training {case.name}", tool,
                         [trainer, "bench", spec, "--device", self.args.device, "--steps", "1",
                          "--warm", "0"], TOOL_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=300, help="for everything (300)")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--no-sanitizer", action="store_true")
    args = parser.parse_args()
    with args.log.open("a", encoding="utf-8") as log, tempfile.TemporaryDirectory() as folder:
        checks = Checks(args, log)
        if not args.no_tests:
            checks.tests()
        if not args.no_sanitizer and args.device == "cuda":
            checks.sanitizer(folder)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
