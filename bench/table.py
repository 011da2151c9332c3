#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the lines of a bench (one JSON object each, stdin) into a table for people."""
import json
import sys

rows = [("case", "metric", "value", "unit", "peer", "peer value", "ratio")]
conditions = []


def number(value):
    if value is None:
        return "-"
    return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"


for line in sys.stdin:
    try:
        result = json.loads(line)
    except ValueError:
        sys.exit(f"table.py: not a line of results: {line.rstrip()}")
    rows.append((result["case"], result["metric"], number(result["value"]), result["unit"],
                 result.get("peer") or "-", number(result.get("peer_value")),
                 number(result.get("ratio"))))
    if result.get("conditions") and result["conditions"] not in conditions:
        conditions.append(result["conditions"])

widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
for index, row in enumerate(rows):
    cells = [cell.rjust(width) if i in (2, 5, 6) else cell.ljust(width)
             for i, (cell, width) in enumerate(zip(row, widths))]
    print("  ".join(cells).rstrip())
    if index == 0:
        print("  ".join("-" * width for width in widths))
for text in conditions:
    print(f"\n{text}")
if len(rows) == 1:
    sys.exit("table.py: the bench printed no results")
