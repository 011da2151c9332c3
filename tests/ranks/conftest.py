# SPDX-License-Identifier: Apache-2.0
"""Yards of the modules' own, raised as the integration tests raise them."""
import importlib.util
import pathlib
import sys

INTEGRATION = pathlib.Path(__file__).resolve().parents[1] / "integration"
sys.path.insert(0, str(INTEGRATION))
spec = importlib.util.spec_from_file_location("integration_conftest", INTEGRATION / "conftest.py")
integration = importlib.util.module_from_spec(spec)
spec.loader.exec_module(integration)

make_yard = integration.make_yard
pytest_runtest_makereport = integration.pytest_runtest_makereport
