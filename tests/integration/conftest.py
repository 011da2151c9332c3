# SPDX-License-Identifier: Apache-2.0
"""One yard for the whole session; it must still tile time when the tests have done their worst."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import yards  # pylint: disable=wrong-import-position


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        item.session.stash[FAILED] = True


FAILED = pytest.StashKey()


def keep_after_failure(session, yard):
    """A yard of failed tests stays on disk, stopped, for whoever looks into it."""
    failed = session.stash.get(FAILED, False)
    yard.remove(keep=failed)
    if failed:
        print(f"\nthe yard of the failed tests: {yard.dir}")


@pytest.fixture(scope="session")
def yard(request):
    made = yards.Yard(devices=2, environment={"TRAINYARD_RATE_PER_S": "0"})
    yield made
    try:
        made.assert_tiled()
    finally:
        keep_after_failure(request.session, made)


@pytest.fixture
def client(yard):
    """The owner of a tenant of the test's own."""
    return yard.tenant()[0]


@pytest.fixture(scope="session")
def make_yard(request):
    """Raises further yards; they are lowered when the session ends."""
    made = []

    def make(**arguments):
        made.append(yards.Yard(**arguments))
        return made[-1]

    yield make
    for one in made:
        keep_after_failure(request.session, one)
