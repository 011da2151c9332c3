#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The cost model of a step beside published training runs, and the meshes that the search finds for
usual models on 8 to 4,096 H100. Prints one JSON object a line (docs/performance.md).

The parts of each step, for people: build/bench/scale/bench-scale --why"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TRAINYARD_BUILD", HERE.parent.parent / "build"))

sys.exit(subprocess.run([BUILD / "bench/scale/bench-scale"], check=False).returncode)
