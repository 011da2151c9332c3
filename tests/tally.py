#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts a runner's tests: `tally.py meson LOG.json` or `tally.py pytest LOG.xml`.

Prints "passed failed skipped" for ./run test to add up. For meson, where one test is a program of
many, it counts the program's own tests and repeats each program's closing lines on stderr."""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree


def meson(path):
    passed = failed = skipped = 0
    for line in open(path, encoding="utf-8", errors="replace"):
        test = json.loads(line)
        text = test.get("stdout", "") + test.get("stderr", "")
        closing = re.findall(r"^\[  (PASSED|FAILED |SKIPPED|FAILED)\s*\] (\d+) test", text, re.M)
        counts = {word.strip(): int(number) for word, number in closing}
        for word, number in counts.items():
            print(f"[  {word:<7} ] {number} test(s). {test['name']}", file=sys.stderr)
        ok = test["result"] in ("OK", "EXPECTEDFAIL")
        if test["result"] == "SKIP":
            skipped += 1
        elif not counts:
            passed += ok
            failed += not ok
        else:
            passed += counts.get("PASSED", 0)
            skipped += counts.get("SKIPPED", 0)
            failed += counts.get("FAILED", 0) or (not ok)
    return passed, failed, skipped


def pytest(path):
    suite = ElementTree.parse(path).getroot().find("testsuite")
    number = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return number["tests"] - failed - number["skipped"], failed, number["skipped"]


try:
    print(*{"meson": meson, "pytest": pytest}[sys.argv[1]](sys.argv[2]))
except FileNotFoundError:  # the runner did not get as far as its log
    print(0, 1, 0)
