# SPDX-License-Identifier: Apache-2.0
"""Ten yards in a row, in folders and on ports of their own, do not collide."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from yards import Yard  # pylint: disable=wrong-import-position

COUNT = 10


def test_ten_yards_stand_side_by_side_and_go_one_by_one():
    standing = []
    try:
        for _ in range(COUNT):
            standing.append(Yard(devices=1))
        assert len({yard.url for yard in standing}) == COUNT
        for yard in standing:
            assert len(list(yard.operator.pages("/v1/devices"))) == 1  # its own, no neighbour's
        while standing:
            gone = standing.pop()
            pids = [gone.pid("server"), gone.pid("agent-1")]
            assert all(pids)
            gone.remove()
            assert gone.pid("server") is None and gone.pid("agent-1") is None
            for yard in standing:
                assert yard.pid("server") and yard.pid("agent-1")
                assert yard.operator.raw("GET", "/readyz")[0] == 200
    finally:
        for yard in standing:
            yard.remove()
