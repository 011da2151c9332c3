# SPDX-License-Identifier: Apache-2.0
"""The API against its description: a yard (the one of TRAINYARD_URL and TRAINYARD_OPERATOR_KEY, or
one of its own), tenants on it, and clients that hold every reply against openapi.yaml."""
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "demo")]
from contract import Checked, Description  # pylint: disable=wrong-import-position
from client import Client  # pylint: disable=wrong-import-position


class Given:
    """A yard that somebody else raised."""

    def __init__(self):
        self.url = os.environ["TRAINYARD_URL"]
        self.operator = Client(self.url, os.environ["TRAINYARD_OPERATOR_KEY"])


@pytest.fixture(scope="session")
def yard():
    if os.environ.get("TRAINYARD_URL") and os.environ.get("TRAINYARD_OPERATOR_KEY"):
        yield Given()
        return
    sys.path.insert(0, str(HERE.parent / "integration"))
    import yards  # pylint: disable=import-outside-toplevel
    made = yards.Yard(devices=1, environment={"TRAINYARD_RATE_PER_S": "0"})
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="session")
def description():
    return Description(HERE.parents[1] / "api-spec/openapi.yaml")


@pytest.fixture(scope="session")
def operator(yard, description):
    return Checked(yard.operator, description)


@pytest.fixture
def make_tenant(yard, operator, description):
    """Makes a tenant; a checked client of its owner, with the tenant's id."""

    def make(residency=("any",)):
        tenant = operator.ok("tenants_create", json={"name": "contract",
                                                     "residency": list(residency)})
        key = operator.ok("api_keys_create", id=tenant["id"],
                          json={"name": "test", "role": "owner"})
        made = Checked(Client(yard.url, key["key"]), description)
        made.tenant_id = tenant["id"]
        return made

    return make


@pytest.fixture
def tenant(make_tenant):
    return make_tenant()
