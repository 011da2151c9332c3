#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Renews the tables of docs/settings.md from what the built programs print."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import truths  # pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[2]
truths.settings_write(ROOT, truths.printed_settings(truths.build_folder(ROOT)))
