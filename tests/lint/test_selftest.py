# SPDX-License-Identifier: Apache-2.0
"""Each rule is seen failing: selftest/NAME is a small tree with violations planted for rule NAME,
and selftest/NAME/expected.txt has, a line each, what the rule must say of it."""
import pathlib

import pytest

import checks
import images
import truths

HERE = pathlib.Path(__file__).resolve().parent / "selftest"
RULES = {rule.__name__: rule for rule in (
    checks.arrows, checks.library_users, checks.sizes, checks.banned, checks.typedefs, checks.spdx,
    checks.package_list, checks.formatted, truths.routes, truths.errors, truths.handlers,
    truths.ranges, images.dockerfiles)}


@pytest.mark.parametrize("name", sorted(RULES))
def test_rule_is_seen_failing(name):
    expected = (HERE / name / "expected.txt").read_text(encoding="utf-8").splitlines()
    assert expected
    assert sorted(RULES[name](HERE / name)) == sorted(expected)


def test_settings_rule_is_seen_failing():
    said = {"trainyard-server": "| a | new |", "trainyard-agent": None}
    assert truths.settings(HERE / "settings", said) == [
        "docs/settings.md: the table of trainyard-server is not what it prints; "
        "tests/lint/settings_write.py renews it",
        "trainyard-agent: --print-settings fails"]
