# SPDX-License-Identifier: Apache-2.0
"""What the machine's GPU is: its name, the peak of its data sheet, and the memory in use on it,
from nvidia-smi. Read by bench.py."""
import subprocess
import threading

# Dense bf16 FLOP/s of data sheets (SXM), by what the card's name contains; the first that fits.
PEAKS = [("B200", 2250e12), ("GH200", 989e12), ("H200", 989e12), ("H100 PCIe", 756e12),
         ("H100", 989e12), ("A100", 312e12), ("L40S", 362e12), ("L4", 121e12), ("A10", 125e12)]
POLL_SECONDS = 0.2


def ask(*fields):
    """The first GPU's answers; None where there is no nvidia-smi or no GPU."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader,nounits"], text=True, capture_output=True, timeout=20,
            check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    return [word.strip() for word in done.stdout.strip().splitlines()[0].split(",")]


def card():
    """{"name", "driver", "memory_bytes", "clock_mhz", "peak_flops"}; None without a GPU."""
    told = ask("name", "driver_version", "memory.total", "clocks.max.sm")
    if told is None:
        return None
    peak = next((flops for words, flops in PEAKS if words in told[0]), None)
    return {"name": told[0], "driver": told[1], "memory_bytes": int(float(told[2])) << 20,
            "clock_mhz": int(float(told[3])) if told[3].replace(".", "").isdigit() else None,
            "peak_flops": peak}


def used_bytes():
    told = ask("memory.used")
    return int(float(told[0])) << 20 if told and told[0].isdigit() else None


class MemoryWatch:
    """The most memory that was in use beyond what was before, while the block ran."""

    def __init__(self, on):
        self.before = used_bytes() if on else None
        self.most, self.over = self.before, threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)

    def poll(self):
        while not self.over.wait(POLL_SECONDS):
            now = used_bytes()
            if now is not None:
                self.most = max(self.most, now)

    def __enter__(self):
        if self.before is not None:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.before is not None:
            self.thread.join()

    def bytes(self):
        return None if self.before is None else self.most - self.before
