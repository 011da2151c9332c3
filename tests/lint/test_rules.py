# SPDX-License-Identifier: Apache-2.0
"""The house keeps its own rules."""
import pathlib

import pytest

import checks
import images
import truths

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = [checks.arrows, checks.library_users, checks.sizes, checks.banned, checks.typedefs,
         checks.spdx, checks.package_list, checks.formatted, truths.routes, truths.errors,
         truths.settings, truths.handlers, truths.ranges, images.dockerfiles]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_keeps(rule):
    violations = rule(ROOT)
    assert not violations, "\n".join(violations)


def test_every_program_prints_its_settings():
    """So that truths.settings cannot pass by finding no program."""
    assert set(truths.printed_settings(truths.build_folder(ROOT))) == set(truths.PROGRAMS)
