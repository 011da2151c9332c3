# SPDX-License-Identifier: Apache-2.0
"""What each CUDA kernel takes of a multiprocessor, as ptxas said when it was built: a table for
docs/cuda_registers.md. usage: registers.py BUILD_FOLDER > docs/cuda_registers.md"""

import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
ARCHS = ("80", "90", "100")

HEAD = """# Registers and shared memory of the CUDA kernels

Written by `python3 tests/cuda/registers.py BUILD_FOLDER`, from what ptxas of CUDA 13.0 said when
`workers/engine/cuda` was compiled. Shared memory is what a kernel declares; attention asks for more
when it is launched. Spills: bytes stored and loaded. A dash: the compiler for that target said
nothing of the kernel.

| kernel | registers sm_80 | sm_90 | sm_100 | shared bytes | spills sm_80 | sm_90 | sm_100 |
|---|---|---|---|---|---|---|---|"""


def readable(names):
    """The names as C++ has them, without the arguments."""
    out = subprocess.run(
        ["c++filt", "--no-params", *names], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {
        name: re.sub(r"__nv_bfloat16", "bf16", re.sub(r"__half\b", "fp16", text)).removeprefix(
            "void "
        )
        for name, text in zip(names, out)
    }


def read(folder):
    """By kernel and architecture: registers, shared bytes, spilled bytes (stored, loaded)."""
    table, at, spills = {}, None, None
    files = sorted(pathlib.Path(folder, "workers/engine/cuda").glob("cuda_*.ptxas"))
    if not files:
        sys.exit(f"{folder}: no cuda_*.ptxas under workers/engine/cuda: build with -Dcuda=enabled")
    for line in "".join(f.read_text() for f in files).splitlines():
        if found := ENTRY.search(line):
            at, spills = found.groups(), None
        elif found := SPILL.search(line):
            spills = tuple(int(x) for x in found.groups()[1:]) if at else None
        elif (found := USED.search(line)) and at and spills is not None:
            shared = SHARED.search(line)
            name, arch = at
            table.setdefault(name, {})[arch] = (
                int(found[1]),
                int(shared[1]) if shared else 0,
                spills,
            )
            at = None
    return table


def main():
    table = read(sys.argv[1])
    words = readable(list(table))
    print(HEAD)
    for name in sorted(table, key=words.get):
        rows = [table[name].get(arch) for arch in ARCHS]
        registers = " | ".join(str(r[0]) if r else "-" for r in rows)
        spills = " | ".join(
            "-" if not r else "0" if r[2] == (0, 0) else f"{r[2][0]}, {r[2][1]}" for r in rows
        )
        print(f"| `{words[name]}` | {registers} | {max(r[1] for r in rows if r)} | {spills} |")


if __name__ == "__main__":
    main()
