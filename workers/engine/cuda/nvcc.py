#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# nvcc.py REPORT NVCC ARGUMENT...: runs nvcc and keeps what ptxas says about each kernel
# (-Xptxas -v) in REPORT; the rest of what nvcc says is printed. Called by the build.
import re
import subprocess
import sys

OF_PTXAS = re.compile(r"^ptxas info\s*:|^\s+\d+ bytes stack frame,")


def main():
    report, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    lines = done.stderr.splitlines(keepends=True)
    sys.stderr.write("".join(line for line in lines if not OF_PTXAS.match(line)))
    with open(report, "w") as out:
        out.write("".join(line for line in lines if OF_PTXAS.match(line)))
    return done.returncode


sys.exit(main())
