#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the lines of bench/gpu/bench.py (standard input) into what table.py does not show: of each
case its MFU, its memory beside the plan's, and where its time goes by kind of operation."""
import json
import sys

LONGEST = 12


def show(result):
    print(f"\n{result['title']}: {result['step_ms']:.2f} ms a step, "
          f"{result['tflop_per_s']:.1f} TFLOP/s")
    if result["mfu"] is not None:
        print(f"  MFU {100 * result['mfu']:.1f} % of {result['peak_flops'] / 1e12:.0f} TFLOP/s: "
              f"{result['mfu_convention']}")
    if result["share_of_best_product"] is not None:
        print(f"  {100 * result['share_of_best_product']:.1f} % of the best product measured here")
    beyond = result["device_bytes"]
    print(f"  memory {result['memory_bytes']:,} bytes, {result['plan_bytes']:,} planned"
          + (f"; {beyond:,} more in use on the card, with CUDA's own" if beyond else ""))
    spent = sorted(result["operations"].items(), key=lambda item: -item[1]["ms_per_step"])
    total = sum(figures["ms_per_step"] for _, figures in spent)
    for kind, figures in spent[:LONGEST]:
        rates = "".join(f"  {figures[key] / 1e3:,.2f} {unit}" for key, unit in
                        (("gflop_per_s", "TFLOP/s"), ("gbyte_per_s", "TB/s")) if key in figures)
        print(f"  {kind:<28} {figures['ms_per_step']:9.3f} ms "
              f"{100 * figures['ms_per_step'] / total if total else 0:5.1f} %{rates}")
    if len(spent) > LONGEST:
        rest = sum(figures["ms_per_step"] for _, figures in spent[LONGEST:])
        print(f"  {len(spent) - LONGEST} more kinds {'':<14} {rest:9.3f} ms")


for line in sys.stdin:
    row = json.loads(line)
    if row.get("operations"):
        show(row)
    elif row.get("note"):
        print(f"\n{row.get('title', row['case'])}: {row['note']}")
